"""The weights of a torch network of a library, as the tensors of the policy kind ``layers``, or a refusal of the network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from rl4sys_zmq.errors import ConfigError

ACTIVATION_LAYERS: Mapping[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "identity": nn.Identity,
}
"""The layers, with their default arguments, that compute the activations of ``mlp``."""


@dataclass(frozen=True, slots=True, eq=False)
class PublishedNetwork:
    """The part of a library's network that is sent to actors, as a policy of the kind ``layers``.

    Attributes:
        layers: Weight ``[out, in]`` and bias ``[out]`` of each layer. The training changes these tensors in place or replaces
            them, so this object is read at once and not kept.
        extras: The other tensors of the head, such as ``log_std``.
    """

    head: str
    layers: Sequence[tuple[Tensor, Tensor]]
    activation: str
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def hidden_sizes(self) -> tuple[int, ...]:
        return tuple(len(bias) for _, bias in self.layers[:-1])

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        named = dict(self.extras)
        for index, (weight, bias) in enumerate(self.layers):
            named[f"layers.{index}.weight"], named[f"layers.{index}.bias"] = weight, bias
        return {name: np.array(tensor.detach().cpu().numpy(), np.float32) for name, tensor in named.items()}


def network_layers(*modules: nn.Module) -> tuple[list[tuple[Tensor, Tensor]], str]:
    """Return weight and bias of each linear layer in a sequence of modules, and the name of the activation between them."""
    layers: list[tuple[Tensor, Tensor]] = []
    activations: list[str] = []
    for layer in _flat(modules):
        if type(layer) is nn.Linear and "bias" in layer.state_dict() and len(activations) == len(layers):
            layers.append((layer.weight, layer.bias))
        elif layers and len(activations) < len(layers) and (name := _activation(layer)):
            activations.append(name)
        else:
            raise ConfigError(
                f"the layer {layer} cannot be sent to actors; expected Linear layers with a bias, with one of "
                f"{', '.join(ACTIVATION_LAYERS)} between them",
                key="algorithm_name",
            )
    if len(activations) != len(layers) - 1 or len(set(activations)) > 1:
        raise ConfigError(
            f"{len(layers)} Linear layers have the activations {', '.join(activations) or 'none'}; expected the same one "
            "between all of them, and none at the end",
            key="algorithm_name",
        )
    return layers, activations[0] if activations else "identity"


def _flat(modules: Sequence[nn.Module]) -> Iterator[nn.Module]:
    for module in modules:
        if isinstance(module, nn.Sequential):
            yield from _flat(tuple(module))
        else:
            yield module


def _activation(layer: nn.Module) -> str:
    """Return the name of an activation layer with default arguments; empty for any other layer."""
    return next((name for name, kind in ACTIVATION_LAYERS.items() if type(layer) is kind and repr(layer) in _DEFAULTS), "")


_DEFAULTS = frozenset(
    repr(kind(inplace=inplace) if kind in (nn.ReLU, nn.ELU, nn.SiLU, nn.LeakyReLU) else kind())
    for kind in ACTIVATION_LAYERS.values()
    for inplace in (False, True)
)
