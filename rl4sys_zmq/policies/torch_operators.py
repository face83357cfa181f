"""The operators of ONNX graphs, computed by torch. Actors import it only with ``run_with: torch``.

`compiled` returns the function of one node. Its arguments are the node's inputs, with None for an optional one that is not given;
the arguments at the places of `rl4sys_zmq.policies.onnx_rules.SHAPED` are on the CPU. All others can be tensors on the device
``meta``, which have a shape and a dtype, and no values. No function writes to its arguments.

The meaning of each operator and attribute is that of the ONNX standard, opsets 13 to 23
(https://onnx.ai/onnx/operators/index.html). What torch cannot compute raises ValueError: padding that is different at both ends
together with `ceil_mode`, the indices of MaxPool, dilations of AveragePool, and second outputs of normalisations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rl4sys_zmq.policies.onnx_model import ELEMENT_TYPES, OnnxNode
from rl4sys_zmq.policies.torch_attributes import Attributes, Function, integers_of, tensor_of
from rl4sys_zmq.policies.torch_shapes import (
    build_concat,
    build_constant_of_shape,
    build_flatten,
    build_gather,
    build_one_hot,
    build_pad,
    build_reshape,
    build_shape,
    build_split,
    build_transpose,
    expand,
    sliced,
    squeeze,
    tile,
    unsqueeze,
)
from rl4sys_zmq.policies.torch_windows import build_average_pool, build_conv, build_max_pool

__all__ = ["Function", "compiled"]

MAX_RANGE = 1 << 24
"""The largest number of numbers that an operator Range computes."""

_DTYPES = {number: name for name, number in ELEMENT_TYPES.items()}


def compiled(node: OnnxNode, opset: int) -> Function:
    """Return the function of a node.

    Args:
        node: The node, which follows the rules of `rl4sys_zmq.policies.onnx_rules`.
        opset: The version of the standard operators.

    Raises:
        ValueError: If torch cannot compute it.
    """
    if any(node.outputs[1:]) and node.operator != "Split":
        raise ValueError(f"an operator {node.operator} has a second output")
    if node.operator in _ELEMENTWISE:
        return _ELEMENTWISE[node.operator]
    return _BUILDERS[node.operator](Attributes(node, opset))


# ---- operators without attributes


def _divide(x: Tensor, y: Tensor) -> Tensor:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _power(x: Tensor, y: Tensor) -> Tensor:
    return torch.pow(x, y).to(x.dtype)


def _all(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    return lambda *values: reduce(function, values)


def _range(start: Tensor, limit: Tensor, step: Tensor) -> Tensor:
    first, last, by = start.item(), limit.item(), step.item()
    if not by or not (last - first) / by <= MAX_RANGE:
        raise ValueError(f"an operator Range has the step {by} and more than {MAX_RANGE} numbers")
    return (
        torch.arange(first, last, by, dtype=start.dtype, device=start.device) if (last - first) / by > 0 else start.new_empty(0)
    )


def _globally(function: Callable[..., Tensor]) -> Function:
    return lambda x: function(x, tuple(range(2, x.ndim)), keepdim=True) if x.ndim > 2 else x


_ELEMENTWISE: Mapping[str, Function] = {
    "Abs": torch.abs,
    "Add": torch.add,
    "And": torch.logical_and,
    "Ceil": torch.ceil,
    "Clip": lambda x, low=None, high=None: x if low is None and high is None else torch.clamp(x, low, high),
    "Cos": torch.cos,
    "Div": _divide,
    "Equal": torch.eq,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Expand": expand,
    "Floor": torch.floor,
    "GlobalAveragePool": _globally(torch.mean),
    "GlobalMaxPool": _globally(torch.amax),
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "HardSwish": functional.hardswish,
    "Identity": lambda x: x,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Log": torch.log,
    "MatMul": torch.matmul,
    "Max": _all(torch.maximum),
    "Mean": lambda *values: reduce(torch.add, values) / len(values),
    "Min": _all(torch.minimum),
    "Mish": functional.mish,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Or": torch.logical_or,
    "PRelu": lambda x, slope: torch.where(x < 0, x * slope, x),
    "Pow": _power,
    "Range": _range,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
    "Sqrt": torch.sqrt,
    "Sub": torch.sub,
    "Sum": _all(torch.add),
    "Tanh": torch.tanh,
    "Tile": tile,
    "Where": torch.where,
}


# ---- operators with attributes


def _arg(best: Callable[..., Tensor]) -> Callable[[Attributes], Function]:
    def build(given: Attributes) -> Function:
        axis, keep, last = given.integer("axis", 0), bool(given.integer("keepdims", 1)), given.integer("select_last_index", 0)
        if last:
            return lambda x: x.shape[axis] - 1 - best(x.flip(axis), axis, keepdim=keep)
        return lambda x: best(x, axis, keepdim=keep)

    return build


def _reduced(function: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[[Attributes], Function]:
    def build(given: Attributes) -> Function:
        fixed, keep, nothing = (
            given.integers("axes"),
            bool(given.integer("keepdims", 1)),
            given.integer("noop_with_empty_axes", 0),
        )

        def reduced(x: Tensor, axes: Tensor | None = None) -> Tensor:
            chosen = integers_of(axes) if axes is not None else fixed
            if not chosen and nothing:
                return x
            return function(x, chosen or list(range(x.ndim)), keep)

        return reduced

    return build


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted({axis % x.ndim for axis in axes}, reverse=True):
        x = torch.prod(x, axis, keepdim=keep)
    return x


def _cast(given: Attributes) -> Function:
    dtype = getattr(torch, _DTYPES[given.integer("to", 0)])
    return lambda x: x.to(dtype)


def _constant(given: Attributes) -> Function:
    ((name, value),) = given.node.attributes.items()
    tensor = tensor_of(value if isinstance(value, np.ndarray) else np.asarray(value, np.int64 if "int" in name else np.float32))
    return lambda: tensor


def _gelu(given: Attributes) -> Function:
    approximate = given.text("approximate", "none")
    return lambda x: functional.gelu(x, approximate=approximate)


def _gemm(given: Attributes) -> Function:
    alpha, beta = given.number("alpha", 1.0), given.number("beta", 1.0)
    left, right = given.integer("transA", 0), given.integer("transB", 0)

    def gemm(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        a, b = (a.t() if left else a), (b.t() if right else b)
        return alpha * torch.mm(a, b) if c is None else torch.addmm(c, a, b, beta=beta, alpha=alpha)

    return gemm


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """Return one value for each channel, in a shape that fits to ``[N, C, ...]``."""
    return values.reshape(-1, *[1] * (x.ndim - 2))


def _batch_normalization(given: Attributes) -> Function:
    epsilon = given.number("epsilon", 1e-5)

    def normalized(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        factor = scale / torch.sqrt(variance + epsilon)
        return x * _per_channel(factor, x) + _per_channel(bias - mean * factor, x)

    return normalized


def _group_normalization(given: Attributes) -> Function:
    groups, epsilon = given.integer("num_groups", 1), given.number("epsilon", 1e-5)

    def normalized(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        if given.opset < 21:  # one scale for each group
            scale, bias = (values.repeat_interleave(x.shape[1] // groups) for values in (scale, bias))
        return torch.group_norm(x, groups, scale, bias, epsilon)

    return normalized


def _instance_normalization(given: Attributes) -> Function:
    epsilon = given.number("epsilon", 1e-5)
    return lambda x, scale, bias: torch.group_norm(x, x.shape[1], scale, bias, epsilon)


def _layer_normalization(given: Attributes) -> Function:
    axis, epsilon = given.integer("axis", -1), given.number("epsilon", 1e-5)

    def normalized(x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
        scaled = torch.layer_norm(x, x.shape[axis:], eps=epsilon) * scale
        return scaled if bias is None else scaled + bias

    return normalized


def _simple(function: Callable[..., Tensor], **defaults: float) -> Callable[[Attributes], Function]:
    """Return the builder of a function of one tensor and of numbers."""

    def build(given: Attributes) -> Function:
        numbers = [given.number(name, default) for name, default in defaults.items()]
        return lambda x: function(x, *numbers)

    return build


def _along(function: Callable[..., Tensor]) -> Callable[[Attributes], Function]:
    """Return the builder of a function of one tensor along an axis, the last one by default."""

    def build(given: Attributes) -> Function:
        axis = given.integer("axis", -1)
        return lambda x: function(x, axis)

    return build


def _plain(function: Function) -> Callable[[Attributes], Function]:
    return lambda given: function


_BUILDERS: Mapping[str, Callable[[Attributes], Function]] = {
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "AveragePool": build_average_pool,
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "Celu": _simple(functional.celu, alpha=1.0),
    "Concat": build_concat,
    "Constant": _constant,
    "ConstantOfShape": build_constant_of_shape,
    "Conv": build_conv,
    "Elu": _simple(functional.elu, alpha=1.0),
    "Flatten": build_flatten,
    "Gather": build_gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GroupNormalization": _group_normalization,
    "HardSigmoid": _simple(lambda x, alpha, beta: torch.clamp(alpha * x + beta, 0.0, 1.0), alpha=0.2, beta=0.5),
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "LeakyRelu": _simple(functional.leaky_relu, alpha=0.01),
    "LogSoftmax": _along(torch.log_softmax),
    "MaxPool": build_max_pool,
    "OneHot": build_one_hot,
    "Pad": build_pad,
    "ReduceL2": _reduced(lambda x, axes, keep: torch.sqrt(torch.sum(x * x, axes, keep))),
    "ReduceMax": _reduced(torch.amax),
    "ReduceMean": _reduced(torch.mean),
    "ReduceMin": _reduced(torch.amin),
    "ReduceProd": _reduced(_product),
    "ReduceSum": _reduced(torch.sum),
    "ReduceSumSquare": _reduced(lambda x, axes, keep: torch.sum(x * x, axes, keep)),
    "Reshape": build_reshape,
    "Selu": _simple(
        lambda x, alpha, gamma: gamma * torch.where(x > 0, x, alpha * torch.expm1(x)),
        alpha=1.67326319217681884765625,
        gamma=1.05070102214813232421875,
    ),
    "Shape": build_shape,
    "Slice": _plain(sliced),
    "Softmax": _along(torch.softmax),
    "Split": build_split,
    "Squeeze": _plain(squeeze),
    "Transpose": build_transpose,
    "Unsqueeze": _plain(unsqueeze),
}
