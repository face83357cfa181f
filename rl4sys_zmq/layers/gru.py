"""The kind of layer ``gru``: a gated recurrent unit (Cho et al. 2014, https://arxiv.org/abs/1406.1078)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from rl4sys_zmq.config.options import integer, option
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.layers.layer import (
    Array,
    Layer,
    LayerContext,
    LayerEntry,
    NumpyLayer,
    OnnxNodeWriter,
    RecurrentState,
    Shape,
    Step,
    TorchForm,
    unfit,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MAX_UNITS = 4096
"""The largest number of units. The actor's copy of the weights has about eight numbers for each pair of units."""

_ONE = np.ones((), np.float32)
_HALF = np.full((), 0.5, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class GRU(Layer):
    """A gated recurrent unit in the form of ``torch.nn.GRU``.

    With the input x, the state h before the step, and the state h' after it::

        r  = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
        z  = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
        n  = tanh(W_in x + b_in + r * (W_hn h + b_hn))
        h' = (1 - z) * n + z * h

    The output is h'. The tensors ``weight_ih`` ``[3 units, inputs]``, ``weight_hh`` ``[3 units, units]``, ``bias_ih`` and
    ``bias_hh`` ``[3 units]`` have the rows of r, z and n, in this order. At the start of an episode, h is zero. All elements of h
    are between -1 and 1. There is no form in ONNX.
    """

    kind: ClassVar[str] = "gru"
    tensor_prefix: ClassVar[str] = "gru"
    input_parameters: ClassVar[tuple[int, int] | None] = (0, 2)

    units: int = option(integer(1, MAX_UNITS), required=True)

    @property
    def state_size(self) -> int:
        return self.units

    def output(self, inputs: Shape, features: int) -> Shape:
        if len(inputs) != 1:
            raise unfit(self.kind, inputs, "inputs of one axis")
        return (self.units,)

    def tensors(self, inputs: Shape) -> Mapping[str, Shape]:
        rows = 3 * self.units
        return {"weight_ih": (rows, *inputs), "weight_hh": (rows, self.units), "bias_ih": (rows,), "bias_hh": (rows,)}

    def numpy_form(self, tensors: Sequence[Array]) -> NumpyGRU:
        return NumpyGRU(*tensors)

    def onnx_form(self, graph: OnnxNodeWriter, values: str, names: Sequence[str], features: str, inputs: Shape) -> str:
        raise ConfigError("a policy with a layer of kind 'gru' has no ONNX form: a graph carries no state", key="kind")

    def torch_form(self, inputs: Shape) -> TorchForm:
        import torch

        units = self.units

        def form(x: Tensor, tensors: Sequence[Tensor], rows: LayerContext) -> Tensor:
            table, order, states = x[None], None, x.new_zeros(len(x), units)
            if rows.sequences is not None:
                padded, order = rows.sequences.padding(x.device)
                table, states = x.index_select(0, padded).view(-1, len(rows.sequences.lengths), x.shape[1]), rows.sequences.states
            unit = list(tensors)
            after, _ = torch.gru(table, states[None], unit, True, 1, 0.0, torch.is_grad_enabled(), False, False)
            flat = after.reshape(-1, units)
            return flat if order is None else flat.index_select(0, order)

        return form

    def initialise(self, tensors: Sequence[Tensor], gain: float, generator: torch.Generator) -> None:
        import torch

        for gate in (*tensors[0].split(self.units), *tensors[1].split(self.units)):
            torch.nn.init.orthogonal_(gate, 1.0, generator=generator)
        for bias in tensors[2:]:
            bias.zero_()


class NumpyGRU(NumpyLayer):
    """A gated recurrent unit in numpy.

    All gates are computed by one product. Its input is the concatenation of x, h and a 1, and its matrix has four groups of
    columns: r, z, and the two terms of n that come from x and from h. The sigmoid is ``(1 + tanh(a / 2)) / 2``. So the columns of
    r and z, and those of the term that r multiplies, are halved.
    """

    def __init__(self, weight_ih: Array, weight_hh: Array, bias_ih: Array, bias_hh: Array) -> None:
        from_input, from_state = weight_ih.T, weight_hh.T
        width, units = len(from_input), len(from_state)
        matrix = np.zeros((width + units + 1, 4 * units), np.float32)
        matrix[:width, : 3 * units] = from_input
        matrix[width:-1, : 2 * units] = from_state[:, : 2 * units]
        matrix[width:-1, 3 * units :] = from_state[:, 2 * units :]
        matrix[-1, : 3 * units] = bias_ih
        matrix[-1, : 2 * units] += bias_hh[: 2 * units]
        matrix[-1, 3 * units :] = bias_hh[2 * units :]
        matrix[:, : 2 * units] *= _HALF
        matrix[:, 3 * units :] *= _HALF
        self._matrix, self._units, self.slots = matrix, units, units + 1

    def batch(self, x: Array, state: RecurrentState) -> Array:
        units, before = self._units, state.before
        gates = np.concatenate([x, before, np.ones((len(x), 1), np.float32)], axis=1).dot(self._matrix)
        both = np.tanh(gates[:, : 2 * units])
        both += _ONE
        new = np.tanh(gates[:, 2 * units : 3 * units] + both[:, :units] * gates[:, 3 * units :])
        state.after = new + (before - new) * (both[:, units:] * _HALF)
        return state.after

    def step(self, buffer: Array, state: RecurrentState) -> Step:
        units, gate = self._units, self._matrix.T.dot
        before = buffer[-units - 1 : -1]
        gates = np.empty(4 * units, np.float32)
        both, r, z = gates[: 2 * units], gates[:units], gates[units : 2 * units]
        new, recurrent = gates[2 * units : 3 * units], gates[3 * units :]
        add, multiply, subtract, tanh, one, half = np.add, np.multiply, np.subtract, np.tanh, _ONE, _HALF

        def step(joined: Array, out: Array) -> None:
            before[...] = state.before
            gate(joined, gates)
            tanh(both, both)
            add(both, one, both)  # 2r and 2z
            multiply(r, recurrent, recurrent)
            add(new, recurrent, new)
            tanh(new, new)
            subtract(before, new, out)
            multiply(z, half, z)
            multiply(out, z, out)
            state.after = add(out, new)
            out[...] = state.after

        return step


ENTRY = LayerEntry(name="gru", layer=GRU, summary="A gated recurrent unit, whose state is carried through an episode.")
