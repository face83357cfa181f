"""The kind of layer ``conv``: a convolution of an image. Actors compute it in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rl4sys_zmq.config.options import MAX_WIDTH, option, whole_number
from rl4sys_zmq.layers.layer import Layer, LayerEntry, OnnxNodeWriter, Shape, TorchForm, unfit


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv(Layer):
    """A convolution without padding, of an image ``[channels, height, width]``."""

    kind: ClassVar[str] = "conv"
    tensor_prefix: ClassVar[str] = "convolutions"
    in_numpy: ClassVar[bool] = False

    filters: int = option(whole_number(1, MAX_WIDTH), required=True, doc="number of filters")
    kernel: int = option(whole_number(1, MAX_WIDTH), required=True, doc="width and height of a filter")
    stride: int = option(whole_number(1, MAX_WIDTH), required=True, doc="distance between two places of a filter")

    def output(self, inputs: Shape, features: int) -> Shape:
        if len(inputs) != 3 or min(inputs[1:]) < self.kernel:
            raise unfit(self.kind, inputs, f"an image of at least {self.kernel}x{self.kernel}")
        height, width = ((length - self.kernel) // self.stride + 1 for length in inputs[1:])
        return self.filters, height, width

    def tensors(self, inputs: Shape) -> Mapping[str, Shape]:
        return {"weight": (self.filters, inputs[0], self.kernel, self.kernel), "bias": (self.filters,)}

    def onnx_form(self, graph: OnnxNodeWriter, values: str, names: Sequence[str], features: str, inputs: Shape) -> str:
        return graph.add("Conv", values, *names, kernel_shape=(self.kernel,) * 2, strides=(self.stride,) * 2)

    def torch_form(self, inputs: Shape) -> TorchForm:
        from torch.nn.functional import conv2d

        return lambda x, tensors, rows: conv2d(x, tensors[0], tensors[1], stride=self.stride)


ENTRY = LayerEntry(name="conv", layer=Conv, summary="A convolution without padding.")
