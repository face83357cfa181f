"""A network as a list of layers: the shapes between them, their tensors, and the form of the list on the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import prod
from typing import Any, TypeVar

from rl4sys_zmq.config.options import parse_options
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.layers.layer import LAYERS, Layer, Shape
from rl4sys_zmq.values import TensorSpec

LAYERS_VERSION = 1
"""The version of the meaning of lists of layers. It changes with the meaning of a built-in kind."""

MAX_LAYERS = 256
"""The largest number of layers of a network."""

T = TypeVar("T")


@dataclass(frozen=True)
class LayerList:
    """The layers of a network, from its inputs to its outputs.

    Attributes:
        layers: The layers.
        inputs: The number of inputs of the first layer, ``F``: usually the features of an observation.
        shapes: The shape of the inputs of each layer, followed by the shape of the network's outputs.

    Raises:
        ConfigError: If there are more than `MAX_LAYERS` layers, a layer does not fit its inputs, or several layers are
            recurrent.
    """

    layers: tuple[Layer, ...]
    inputs: int
    shapes: tuple[Shape, ...] = field(init=False)

    def __post_init__(self) -> None:
        if len(self.layers) > MAX_LAYERS:
            raise ConfigError(f"a network has {len(self.layers)} layers; the limit is {MAX_LAYERS}", key="layers")
        if sum(layer.state_size > 0 for layer in self.layers) > 1:
            raise ConfigError("a network has several recurrent layers; it can have one", key="layers")
        shapes: list[Shape] = [(self.inputs,)]
        for layer in self.layers:
            shapes.append(layer.output(shapes[-1], self.inputs))
        object.__setattr__(self, "shapes", tuple(shapes))

    @property
    def outputs(self) -> int:
        """The number of outputs of the network."""
        return prod(self.shapes[-1])

    @property
    def state_size(self) -> int:
        """The number of elements of the recurrent state; 0 for no state."""
        return sum(layer.state_size for layer in self.layers)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Return the tensors of all layers, in their order in a `PolicySpec`."""
        found: list[TensorSpec] = []
        numbers: Counter[str] = Counter()
        for layer, inputs in zip(self.layers, self.shapes, strict=False):
            prefix = layer.tensor_prefix
            for name, shape in layer.tensors(inputs).items():
                found.append(TensorSpec(f"{prefix}.{numbers[prefix]}.{name}" if prefix else name, shape, exact=not layer.trained))
            numbers[prefix] += 1
        return tuple(found)

    def divided(self, tensors: Sequence[T]) -> list[Sequence[T]]:
        """Divide tensors in the order of `tensors` among the layers. Further tensors after those of the layers are ignored."""
        parts, at = [], 0
        for layer, inputs in zip(self.layers, self.shapes, strict=False):
            count = len(layer.tensors(inputs))
            parts.append(tensors[at : at + count])
            at += count
        return parts

    def plain(self) -> list[dict[str, Any]]:
        """Return the list as JSON values."""
        return [{"kind": layer.kind, **{f.name: _plain(getattr(layer, f.name)) for f in fields(layer)}} for layer in self.layers]


def read_layers(document: object, inputs: int) -> LayerList:
    """Return the network that a list of JSON values from the wire describes.

    Args:
        document: The result of `LayerList.plain`.
        inputs: The number of inputs of the first layer.

    Raises:
        ConfigError: If the document is not a valid list, a kind is not registered in this process, or an option is unknown or
            invalid.
    """
    if not isinstance(document, list) or len(document) > MAX_LAYERS:
        raise ConfigError(f"layers is not a list of at most {MAX_LAYERS} layers: {document!s:.80}", key="layers")
    return LayerList(tuple([_layer(item) for item in document]), inputs)


def _layer(item: object) -> Layer:
    if not isinstance(item, Mapping) or not isinstance(item.get("kind"), str):
        raise ConfigError(f"layers contains {item!s:.80}; expected a mapping with a kind", key="layers")
    options = dict(item)
    kind = LAYERS.get(options.pop("kind")).layer
    return kind(**parse_options(kind, options, problem=f"a layer of kind {kind.kind!r} has no such option"))


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
