"""The kind of layer ``image``: it extracts the image ``[channels, height, width]`` from the features of an observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from rl4sys_zmq.config.options import MAX_WIDTH, flag, option, sizes, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.layers.layer import Layer, LayerContext, LayerEntry, OnnxNodeWriter, Shape, TorchForm, unfit

if TYPE_CHECKING:
    from torch import Tensor

PIXEL_SCALE = float(np.float32(1.0 / 255.0))
"""The factor of pixels from 0 to 255."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image(Layer):
    """A first layer that extracts the image from an observation's features. `Concat` can join the other features later.

    Raises:
        ConfigError: If the shape has neither two nor three axes.
    """

    kind: ClassVar[str] = "image"
    in_numpy: ClassVar[bool] = False

    start: int = option(whole_number(0), 0, doc="position of the first pixel among the features")
    shape: tuple[int, ...] = option(sizes, required=True, doc="shape of the image in the observation")
    channels_last: bool = option(flag, False, doc="the last of three axes has the channels, not the first")
    scaled: bool = option(flag, False, doc="pixels go from 0 to 255, and are divided by 255")

    def __post_init__(self) -> None:
        Layer.__post_init__(self)
        if len(self.shape) not in (2, 3) or max(self.shape) > MAX_WIDTH:
            raise ConfigError(f"a layer of kind 'image' has the shape {list(self.shape)}; expected 2 or 3 axes", key="layers")

    def output(self, inputs: Shape, features: int) -> Shape:
        if inputs != (features,) or self._stop > features:
            raise unfit(self.kind, inputs, f"at least {self._stop} features of an observation, as the first layer")
        first, *rest = (1, *self.shape) if len(self.shape) == 2 else self.shape
        return (rest[1], first, rest[0]) if self.channels_last else (first, *rest)

    @property
    def _stop(self) -> int:
        return self.start + prod(self.shape)

    def onnx_form(self, graph: OnnxNodeWriter, values: str, names: Sequence[str], features: str, inputs: Shape) -> str:
        if (self._stop - self.start,) != inputs:
            values = graph.add("Slice", values, *(graph.constant([number]) for number in (self.start, self._stop, 1)))
        shape = (1, *self.shape) if len(self.shape) == 2 else self.shape
        values = graph.add("Reshape", values, graph.constant([-1, *shape]))
        if self.scaled:
            values = graph.add("Mul", values, graph.constant(np.float32(PIXEL_SCALE)))
        return graph.add("Transpose", values, perm=(0, 3, 1, 2)) if self.channels_last else values

    def torch_form(self, inputs: Shape) -> TorchForm:
        shape = (1, *self.shape) if len(self.shape) == 2 else self.shape

        def form(x: Tensor, tensors: Sequence[Tensor], rows: LayerContext) -> Tensor:
            x = x[:, self.start : self._stop].reshape(len(x), *shape)
            if self.scaled:
                x = x * PIXEL_SCALE
            return x.permute(0, 3, 1, 2) if self.channels_last else x

        return form


ENTRY = LayerEntry(name="image", layer=Image, summary="The pixels of an image among the features of an observation.")
