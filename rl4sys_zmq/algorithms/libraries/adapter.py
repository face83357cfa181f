"""The parts that the adapters of all libraries share.

- The conversion of a torch network's weights to tensors of the policy kind ``layers``, or a refusal of the network.
- A private state of the global random generators of Python, numpy and torch, for libraries that draw from them. Another thread
  that draws at the same time would change the results, so these libraries need a process of their own.
- The training on a replay.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rl4sys_zmq.algorithms.action_distributions import ActionScale
from rl4sys_zmq.algorithms.offpolicy.replay_training import ReplayTraining, check_replay_size
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry, read_parameters
from rl4sys_zmq.learner.registry.algorithms import mask_refusal
from rl4sys_zmq.replay import ReplayMemory, ReplayOptions
from rl4sys_zmq.replay.pace import PaceRule
from rl4sys_zmq.values import BoxSpace, ObservationSpace, PolicySpec, Segment, Space

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
    """The part of a network of another library that is sent to actors, as a policy of the kind ``layers``.

    Attributes:
        layers: Weight ``[out, in]`` and bias ``[out]`` of each layer. The training changes these tensors in place or replaces
            them, so do not keep this object.
        extras: The tensors of the action head, such as ``log_std``.
        beside: Layers with the same inputs as the last one. Their outputs follow its outputs.
        quantiles: The number of quantiles that are estimated for each output. Actors get their mean.
    """

    head: str
    layers: Sequence[tuple[Tensor, Tensor]]
    activation: str
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    beside: Sequence[tuple[Tensor, Tensor]] = ()
    quantiles: int = 1

    @property
    def hidden_sizes(self) -> tuple[int, ...]:
        return tuple(len(bias) for _, bias in self.layers[:-1])

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        named = dict(self.extras)
        for name, parts, copies in self._named():
            joined = torch.cat(parts)
            named[name] = joined if copies == 1 else joined.unflatten(0, (copies, -1)).mean(0)  # the mean is linear
        return {name: np.array(tensor.detach().cpu().numpy(), np.float32) for name, tensor in named.items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Copy the weights of a policy into the network. All quantiles of an output get the same weights."""
        weights = {name: torch.from_numpy(np.array(tensor, np.float32)) for name, tensor in tensors.items()}
        for name, tensor in self.extras.items():
            tensor.copy_(weights[name])
        for name, parts, copies in self._named():
            for own, new in zip(parts, torch.cat([weights[name]] * copies).chunk(len(parts)), strict=True):
                own.copy_(new)

    def _named(self) -> Iterator[tuple[str, list[Tensor], int]]:
        """For each tensor of the policy's layers, yield its name, the network's tensors in it, and the quantiles."""
        for index, layer in enumerate(self.layers):
            last = index == len(self.layers) - 1
            parts = (layer, *self.beside) if last else (layer,)
            for name, tensors in zip(("weight", "bias"), zip(*parts, strict=True), strict=True):
                yield f"layers.{index}.{name}", list(tensors), self.quantiles if last else 1


def network_layers(*modules: nn.Module) -> tuple[list[tuple[Tensor, Tensor]], str]:
    """Return weight and bias of each linear layer in a sequence of modules, and the name of the activation between layers."""
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


class PrivateRandomState:
    """A state of the global random generators of Python, numpy and torch that only one algorithm uses."""

    def __init__(self, seed: int) -> None:
        before = _current()
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        torch.manual_seed(seed)
        self._states = _current()
        _set(before)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the code in the ``with`` block draw from this private state, and then restore the generators' earlier states."""
        before = _current()
        _set(self._states)
        try:
            yield
        finally:
            self._states = _current()
            _set(before)

    def state(self) -> dict[str, Any]:
        return dict(self._states)

    def load(self, state: Mapping[str, Any]) -> None:
        self._states = {name: state[name] for name in ("python", "numpy", "torch")}


def _current() -> dict[str, Any]:
    return {"python": random.getstate(), "numpy": np.random.get_state(legacy=True), "torch": torch.get_rng_state()}


def _set(states: Mapping[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])


class LibraryAlgorithm:
    """The base class of algorithms from other libraries: their spaces, their parameters and their policy."""

    _spec: PolicySpec

    def __init__(
        self,
        entry: AlgorithmEntry,
        observation_space: ObservationSpace,
        action_space: Space,
        parameters: Mapping[str, object],
        seed: int,
    ) -> None:
        assert entry.parameters is not None
        self._name = entry.name
        self._observation_space, self._action_space = observation_space, action_space
        self.parameters: Any = read_parameters(entry.parameters, parameters, algorithm=entry.name)
        self.rollout_length: int = self.parameters.rollout_length
        self._random = PrivateRandomState(seed)

    def _published(self) -> PublishedNetwork:
        """Return the network to send to actors. Raise `ConfigError` if no policy of this package can compute it."""
        raise NotImplementedError

    def spec(self) -> PolicySpec:
        return self._spec

    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        return self._published().tensors()


STEPS_PER_VERSION = 256
"""The default number of steps from one published version to the next."""


class LibraryReplayTraining(LibraryAlgorithm, ReplayTraining):
    """The base class of off-policy algorithms from other libraries. A subclass calls `use_replay` in its constructor."""

    stored_returns: Mapping[str, float] = {}
    """The parameters with which the returns in the replay were computed, if they hold more than single rewards."""
    _replay: ReplayMemory

    def use_replay(self, options: ReplayOptions, rule: PaceRule, seed: int) -> None:
        self._use_replay(ReplayMemory(self._observation_space, self._action_space, options), rule, seed)
        self.publish_every_updates = max(1, round(STEPS_PER_VERSION / rule.train_frequency))

    def check_memory(self, available: int) -> None:
        check_replay_size(self._replay.options.capacity, self._replay.nbytes, available)

    def _stored(self, segment: Segment) -> Segment:
        refuse_masks(segment, self._name)
        return segment

    def _replay_settings(self) -> dict[str, Mapping[str, float | None]]:
        rule = self._pace.rule
        pace = {"learning_starts": rule.learning_starts, "train_frequency": rule.train_frequency}
        return {"pace": pace, "stored_returns": dict(self.stored_returns)}

    def _survives(self, rows: NDArray[np.int64], before: Mapping[str, Any]) -> bool:
        try:
            return super()._survives(rows, before)
        except ValueError:  # a distribution of torch refuses parameters that are not finite
            return False


def refuse_masks(segment: Segment, name: str) -> None:
    """Raise `ConfigError` if a segment has action masks, which the algorithm `name` would ignore."""
    if segment.masks is not None:
        raise ConfigError(mask_refusal(name) or f"{name} ignores action masks", key="algorithm_name")


def scaled_actions(actions: NDArray[Any], space: Space) -> Tensor:
    """Return actions as a tensor ``[B, n]`` for the networks of another library. Actions of a Box are scaled to -1 .. 1."""
    if isinstance(space, BoxSpace):
        return ActionScale(space)(torch.from_numpy(actions.astype(np.float32, copy=False)))
    return torch.from_numpy(actions.reshape(len(actions), -1))
