"""The kind of layer ``concat``: it joins features of the observation to the inputs of the layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from rl4sys_zmq.config.options import InvalidValue, integer, option
from rl4sys_zmq.layers.layer import Layer, LayerContext, LayerEntry, OnnxNodeWriter, Shape, TorchForm, unfit

if TYPE_CHECKING:
    from torch import Tensor

_index = integer(0)


def _ranges(value: object) -> tuple[tuple[int, int], ...]:
    if isinstance(value, list | tuple) and all(isinstance(item, list | tuple) and len(item) == 2 for item in value):
        pairs = tuple([(_index(start), _index(stop)) for start, stop in value])
        if pairs and all(start < stop for start, stop in pairs):
            return pairs
    raise InvalidValue("a list of pairs [start, stop] with start below stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Concat(Layer):
    """A layer whose outputs are the flattened inputs, followed by the observation's features in the ranges `columns`."""

    kind: ClassVar[str] = "concat"
    in_numpy: ClassVar[bool] = False

    columns: tuple[tuple[int, int], ...] = option(_ranges, required=True, doc="ranges [start, stop] of features")

    def output(self, inputs: Shape, features: int) -> Shape:
        if max(stop for _, stop in self.columns) > features:
            raise unfit(self.kind, (features,), f"features up to number {max(stop for _, stop in self.columns)}")
        return (prod(inputs) + sum(stop - start for start, stop in self.columns),)

    def onnx_form(self, graph: OnnxNodeWriter, values: str, names: Sequence[str], features: str, inputs: Shape) -> str:
        parts = [
            graph.add("Slice", features, *(graph.constant([number]) for number in (start, stop, 1)))
            for start, stop in self.columns
        ]
        return graph.add("Concat", graph.add("Flatten", values), *parts, axis=1)

    def torch_form(self, inputs: Shape) -> TorchForm:
        import torch

        def form(x: Tensor, tensors: Sequence[Tensor], rows: LayerContext) -> Tensor:
            return torch.cat((x.flatten(1), *(rows.features[:, start:stop] for start, stop in self.columns)), 1)

        return form


ENTRY = LayerEntry(name="concat", layer=Concat, summary="Features of the observation beside the inputs.")
