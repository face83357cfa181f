"""The kind of layer ``activation``: a function of each element of its inputs.

The functions follow torch's definitions: ``gelu`` is the exact form, ``leaky_relu`` has a slope of 0.01. In numpy, the
functions do not overflow for large inputs, so the host gets no floating-point warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.config.options import one_of, option
from rl4sys_zmq.layers.layer import Array, FunctionLayer, Layer, LayerEntry, NumpyLayer, OnnxNodeWriter, Shape, TorchForm
from rl4sys_zmq.values import ACTIVATIONS

if TYPE_CHECKING:
    from torch import Tensor

Activation = Callable[[NDArray[Any], NDArray[Any]], object]
"""A function of `h` and `out` that writes its result for each element of `h` to `out`, which can be `h` itself."""

# 0-d arrays: a Python or numpy scalar doubles the time of a small ufunc call.
_ZERO = np.zeros((), dtype=np.float32)
_HALF = np.full((), 0.5, dtype=np.float32)
_ONE = np.ones((), dtype=np.float32)
_SLOPE = np.full((), 0.01, dtype=np.float32)
_ROOT_HALF = np.full((), 0.5**0.5, dtype=np.float32)
_ERF_P = np.full((), 0.3275911, dtype=np.float32)
_ERF_A = tuple(np.full((), a, dtype=np.float32) for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))
_ERF_LIMIT = np.full((), 4.0, dtype=np.float32)


def erf(x: NDArray[Any]) -> NDArray[Any]:
    """Return the Gauss error function of each element of a float32 array, with an absolute error below 5e-7.

    The approximation is 7.1.26 in Abramowitz and Stegun, Handbook of Mathematical Functions (error 1.5e-7 in exact arithmetic).
    Absolute values above 4 are replaced by 4, so that the exponential does not underflow. The function of such values differs
    from 1 by less than 2e-8.
    """
    a = np.minimum(np.abs(x), _ERF_LIMIT)
    t = _ONE / (_ONE + _ERF_P * a)
    poly = _ERF_A[0] * t
    for coefficient in _ERF_A[1:]:
        poly += coefficient
        poly *= t
    poly *= np.exp(-a * a)
    result: NDArray[Any] = np.copysign(_ONE - poly, x)
    return result


def _relu(h: NDArray[Any], out: NDArray[Any]) -> None:
    np.maximum(h, _ZERO, out=out)


def _leaky_relu(h: NDArray[Any], out: NDArray[Any]) -> None:
    np.maximum(h, _SLOPE * h, out=out)


def _elu(h: NDArray[Any], out: NDArray[Any]) -> None:
    # max(h, 0) + expm1(min(h, 0)): one of the two terms is always exactly zero.
    negative = np.expm1(np.minimum(h, _ZERO))
    np.maximum(h, _ZERO, out=out)
    np.add(out, negative, out)


def _silu(h: NDArray[Any], out: NDArray[Any]) -> None:
    # sigmoid(h) = (1 + tanh(h / 2)) / 2: no exponential that could overflow.
    half = h * _HALF
    gate = np.tanh(half)
    np.add(gate, _ONE, gate)
    np.multiply(half, gate, out)


def _gelu(h: NDArray[Any], out: NDArray[Any]) -> None:
    gate = erf(h * _ROOT_HALF)
    np.add(gate, _ONE, gate)
    np.multiply(gate, _HALF, gate)
    np.multiply(h, gate, out)


def _identity(h: NDArray[Any], out: NDArray[Any]) -> None:
    if out is not h:
        out[...] = h


ACTIVATION_FUNCTIONS: dict[str, Activation] = {
    "tanh": np.tanh,
    "relu": _relu,
    "elu": _elu,
    "silu": _silu,
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "identity": _identity,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationLayer(Layer):
    """An activation function, one of `rl4sys_zmq.values.ACTIVATIONS`."""

    kind: ClassVar[str] = "activation"

    function: str = option(one_of(*ACTIVATIONS), required=True)

    def output(self, inputs: Shape, features: int) -> Shape:
        return inputs

    def numpy_form(self, tensors: Sequence[Array]) -> NumpyLayer:
        return FunctionLayer(ACTIVATION_FUNCTIONS[self.function])

    def onnx_form(self, graph: OnnxNodeWriter, values: str, names: Sequence[str], features: str, inputs: Shape) -> str:
        match self.function:
            case "silu":
                return graph.add("Mul", values, graph.add("Sigmoid", values))
            case "gelu":
                scaled = graph.add("Mul", values, graph.constant(np.float32(0.5**0.5)))
                gate = graph.add("Add", graph.add("Erf", scaled), graph.constant(np.float32(1.0)))
                return graph.add("Mul", graph.add("Mul", values, graph.constant(np.float32(0.5))), gate)
            case "identity":
                return values
            case "leaky_relu":
                return graph.add("LeakyRelu", values, alpha=0.01)
            case name:
                return graph.add({"tanh": "Tanh", "relu": "Relu", "elu": "Elu"}[name], values)

    def torch_form(self, inputs: Shape) -> TorchForm:
        function = torch_activation(self.function)
        return lambda x, tensors, rows: function(x)


def torch_activation(function: str) -> Callable[[Tensor], Tensor]:
    """Return an activation function in torch."""
    import torch
    from torch.nn import functional

    if function == "identity":
        return lambda x: x
    found: Callable[[Tensor], Tensor] = getattr(torch, function, None) or getattr(functional, function)
    return found


ENTRY = LayerEntry(name="activation", layer=ActivationLayer, summary="A function of each element.")
