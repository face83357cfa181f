"""The kind of layer ``layer_norm``: its inputs with mean 0 and variance 1, then a trained factor and offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from rl4sys_zmq.layers.layer import Array, Layer, LayerEntry, Nodes, NumpyLayer, Shape, State, Step, TorchForm, unfit

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_EPS = np.full((), 1e-5, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm(Layer):
    """Layer normalisation (Ba et al. 2016, https://arxiv.org/abs/1607.06450), as ``torch.nn.LayerNorm``."""

    kind: ClassVar[str] = "layer_norm"
    tensor_prefix: ClassVar[str] = "norms"

    def output(self, inputs: Shape, features: int) -> Shape:
        if len(inputs) != 1:
            raise unfit(self.kind, inputs, "inputs of one axis")
        return inputs

    def tensors(self, inputs: Shape) -> Mapping[str, Shape]:
        return {"weight": inputs, "bias": inputs}

    def numpy_form(self, tensors: Sequence[Array]) -> NumpyLayer:
        return NumpyLayerNorm(*tensors)

    def onnx_form(self, graph: Nodes, values: str, names: Sequence[str], features: str, inputs: Shape) -> str:
        return graph.add("LayerNormalization", values, *names, axis=1, epsilon=float(_EPS))

    def torch_form(self, inputs: Shape) -> TorchForm:
        from torch.nn.functional import layer_norm

        return lambda x, tensors, rows: layer_norm(x, inputs, tensors[0], tensors[1], float(_EPS))

    def initialise(self, tensors: Sequence[Tensor], gain: float, generator: torch.Generator) -> None:
        tensors[0].fill_(1.0)
        tensors[1].zero_()

    def initialise_uniform(self, tensors: Sequence[Tensor], generator: torch.Generator) -> None:
        self.initialise(tensors, 1.0, generator)


class NumpyLayerNorm(NumpyLayer):
    """Layer normalisation in numpy."""

    in_place = True

    def __init__(self, weight: Array, bias: Array) -> None:
        self._weight, self._bias = weight, bias

    def batch(self, x: Array, state: State) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + _EPS)
        out: Array = centred / scale * self._weight + self._bias
        return out

    def step(self, buffer: Array, state: State) -> Step:
        def step(x: Array, out: Array) -> None:
            out[...] = self.batch(x, state)

        return step


ENTRY = LayerEntry(name="layer_norm", layer=LayerNorm, summary="Mean 0 and variance 1, then a factor and an offset.")
