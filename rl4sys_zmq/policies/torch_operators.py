"""The operators of ONNX graphs, computed by torch. Only `rl4sys_zmq.policies.torch_session` imports this module, late.

`compiled` returns the function of one node. Its arguments are the node's inputs, with None for an optional one that is not given;
the arguments at the places of `rl4sys_zmq.policies.onnx_rules.SHAPED` are on the CPU. All others can be tensors on the device
``meta``, which have a shape and a dtype, and no values. No function writes to its arguments.

The meaning of each operator and attribute is that of the ONNX standard, opsets 13 to 23
(https://onnx.ai/onnx/operators/index.html). What torch cannot compute raises ValueError: padding that is different at both ends
together with `ceil_mode`, the indices of MaxPool, dilations of AveragePool, and second outputs of normalisations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import ceil, prod
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rl4sys_zmq.policies.onnx_model import ELEMENT_TYPES, Attribute, OnnxNode

__all__ = ["Function", "compiled"]

Function = Callable[..., Tensor | tuple[Tensor, ...]]
"""The function of a node, from its inputs to its outputs."""

MAX_ITEMS = 1024
"""The largest number of integers in an argument that determines a shape."""
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
    return _BUILDERS[node.operator](_Attributes(node, opset))


class _Attributes:
    """The attributes of a node, with the defaults of the standard.

    Attributes:
        node: The node.
        opset: The version of the standard operators.
    """

    def __init__(self, node: OnnxNode, opset: int) -> None:
        self.node, self.opset = node, opset
        self._values: Mapping[str, Attribute] = node.attributes

    def integer(self, name: str, default: int) -> int:
        """Return an integer."""
        return operator.index(cast(int, self._values.get(name, default)))

    def number(self, name: str, default: float) -> float:
        """Return a number."""
        return float(cast(float, self._values.get(name, default)))

    def integers(self, name: str) -> list[int] | None:
        """Return integers; None if they are not given."""
        value = self._values.get(name)
        return None if value is None else [operator.index(item) for item in cast(tuple[int, ...], value)]

    def text(self, name: str, default: str) -> str:
        """Return a text."""
        value = self._values.get(name)
        return default if value is None else cast(bytes, value).decode("ascii")

    def tensor(self, name: str) -> Tensor | None:
        """Return a tensor; None if it is not given."""
        value = self._values.get(name)
        return None if value is None else torch.tensor(np.asarray(value))


def _integers(values: Tensor) -> list[int]:
    """Return the integers of an argument that determines a shape."""
    if values.numel() > MAX_ITEMS:
        raise ValueError(f"an argument for a shape has {values.numel()} integers; the limit is {MAX_ITEMS}")
    return [operator.index(value) for value in values.reshape(-1).tolist()]


# ---- operators without attributes


def _divide(x: Tensor, y: Tensor) -> Tensor:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _power(x: Tensor, y: Tensor) -> Tensor:
    return torch.pow(x, y).to(x.dtype)


def _all(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    return lambda *values: reduce(function, values)


def _expand(x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, tuple(_integers(shape))))


def _tile(x: Tensor, repeats: Tensor) -> Tensor:
    return x.repeat(_integers(repeats))


def _range(start: Tensor, limit: Tensor, step: Tensor) -> Tensor:
    first, last, by = start.item(), limit.item(), step.item()
    if not by or not (last - first) / by <= MAX_RANGE:
        raise ValueError(f"an operator Range has the step {by} and more than {MAX_RANGE} numbers")
    return torch.arange(first, last, by, dtype=start.dtype) if (last - first) / by > 0 else start.new_empty(0)


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
    "Expand": _expand,
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
    "Tile": _tile,
    "Where": torch.where,
}


# ---- operators with attributes


def _arg(best: Callable[..., Tensor]) -> Callable[[_Attributes], Function]:
    def build(given: _Attributes) -> Function:
        axis, keep, last = given.integer("axis", 0), bool(given.integer("keepdims", 1)), given.integer("select_last_index", 0)
        if last:
            return lambda x: x.shape[axis] - 1 - best(x.flip(axis), axis, keepdim=keep)
        return lambda x: best(x, axis, keepdim=keep)

    return build


def _reduced(function: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[[_Attributes], Function]:
    def build(given: _Attributes) -> Function:
        fixed, keep, nothing = (
            given.integers("axes"),
            bool(given.integer("keepdims", 1)),
            given.integer("noop_with_empty_axes", 0),
        )

        def reduced(x: Tensor, axes: Tensor | None = None) -> Tensor:
            chosen = _integers(axes) if axes is not None else fixed
            if not chosen and nothing:
                return x
            return function(x, chosen or list(range(x.ndim)), keep)

        return reduced

    return build


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted({axis % x.ndim for axis in axes}, reverse=True):
        x = torch.prod(x, axis, keepdim=keep)
    return x


def _cast(given: _Attributes) -> Function:
    dtype = getattr(torch, _DTYPES[given.integer("to", 0)])
    return lambda x: x.to(dtype)


def _concat(given: _Attributes) -> Function:
    axis = given.integer("axis", 0)
    return lambda *values: torch.cat(values, axis)


def _constant(given: _Attributes) -> Function:
    ((name, value),) = given.node.attributes.items()
    tensor = torch.tensor(
        value if isinstance(value, np.ndarray) else np.asarray(value, np.int64 if "int" in name else np.float32)
    )
    return lambda: tensor


def _constant_of_shape(given: _Attributes) -> Function:
    value = given.tensor("value")
    filled = torch.zeros((), dtype=torch.float32) if value is None else value.reshape(())
    return lambda shape: filled.expand(_integers(shape))


def _flatten(given: _Attributes) -> Function:
    axis = given.integer("axis", 1)
    return lambda x: x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]) if axis else x.numel())


def _gather(given: _Attributes) -> Function:
    axis = given.integer("axis", 0)

    def gather(x: Tensor, indices: Tensor) -> Tensor:
        at, length = axis % x.ndim, x.shape[axis]
        places = indices.reshape(-1).to(torch.int64)
        taken = torch.index_select(x, at, torch.where(places < 0, places + length, places))
        return taken.reshape([*x.shape[:at], *indices.shape, *x.shape[at + 1 :]])

    return gather


def _gelu(given: _Attributes) -> Function:
    approximate = given.text("approximate", "none")
    return lambda x: functional.gelu(x, approximate=approximate)


def _gemm(given: _Attributes) -> Function:
    alpha, beta = given.number("alpha", 1.0), given.number("beta", 1.0)
    left, right = given.integer("transA", 0), given.integer("transB", 0)

    def gemm(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        a, b = (a.t() if left else a), (b.t() if right else b)
        return alpha * torch.mm(a, b) if c is None else torch.addmm(c, a, b, beta=beta, alpha=alpha)

    return gemm


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """Return one value for each channel, in a shape that fits to ``[N, C, ...]``."""
    return values.reshape(-1, *[1] * (x.ndim - 2))


def _batch_normalization(given: _Attributes) -> Function:
    epsilon = given.number("epsilon", 1e-5)

    def normalized(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        factor = scale / torch.sqrt(variance + epsilon)
        return x * _per_channel(factor, x) + _per_channel(bias - mean * factor, x)

    return normalized


def _group_normalization(given: _Attributes) -> Function:
    groups, epsilon = given.integer("num_groups", 1), given.number("epsilon", 1e-5)

    def normalized(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        if given.opset < 21:  # one scale for each group
            scale, bias = (values.repeat_interleave(x.shape[1] // groups) for values in (scale, bias))
        return torch.group_norm(x, groups, scale, bias, epsilon)

    return normalized


def _instance_normalization(given: _Attributes) -> Function:
    epsilon = given.number("epsilon", 1e-5)
    return lambda x, scale, bias: torch.group_norm(x, x.shape[1], scale, bias, epsilon)


def _layer_normalization(given: _Attributes) -> Function:
    axis, epsilon = given.integer("axis", -1), given.number("epsilon", 1e-5)

    def normalized(x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
        scaled = torch.layer_norm(x, x.shape[axis:], eps=epsilon) * scale
        return scaled if bias is None else scaled + bias

    return normalized


def _one_hot(given: _Attributes) -> Function:
    axis = given.integer("axis", -1)

    def one_hot(indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
        count, at = int(depth.item()), axis % (indices.ndim + 1)
        places = torch.where(indices < 0, indices + count, indices).unsqueeze(at)
        options = torch.arange(count, device=indices.device).reshape(-1, *[1] * (indices.ndim - at))
        return torch.where(places == options, values[1], values[0])

    return one_hot


def _pad(given: _Attributes) -> Function:
    mode = {"edge": "replicate", "wrap": "circular"}.get(name := given.text("mode", "constant"), name)

    def pad(x: Tensor, pads: Tensor, value: Tensor | None = None, axes: Tensor | None = None) -> Tensor:
        sizes, chosen = _integers(pads), _integers(axes) if axes is not None else list(range(x.ndim))
        both = [(0, 0)] * x.ndim
        for place, axis in enumerate(chosen):
            both[axis] = sizes[place], sizes[place + len(chosen)]
        flat = [size for pair in reversed(both) for size in pair]
        if mode != "constant":
            while len(flat) > 2 and flat[-2:] == [0, 0]:  # torch pads the last axes alone
                del flat[-2:]
            return functional.pad(x, flat, mode)
        padded = functional.pad(x, flat)
        if value is None:
            return padded
        inside = functional.pad(torch.ones_like(x, dtype=torch.bool), flat)
        return torch.where(inside, padded, value.reshape(()))

    return pad


def _reshape(given: _Attributes) -> Function:
    keep = not given.integer("allowzero", 0)

    def reshape(x: Tensor, shape: Tensor) -> Tensor:
        sizes = _integers(shape)
        return x.reshape([x.shape[at] if keep and size == 0 else size for at, size in enumerate(sizes)])

    return reshape


def _shape(given: _Attributes) -> Function:
    start, end = given.integer("start", 0), given.integer("end", MAX_ITEMS)
    return lambda x: torch.tensor(list(x.shape)[start:end], dtype=torch.int64)


def _slice(x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None) -> Tensor:
    begins, stops = _integers(starts), _integers(ends)
    chosen = _integers(axes) if axes is not None else list(range(len(begins)))
    strides = _integers(steps) if steps is not None else [1] * len(begins)
    for begin, stop, axis, stride in zip(begins, stops, chosen, strides, strict=True):
        begin, stop, stride = slice(begin, stop, stride).indices(x.shape[axis])
        if stride > 0:
            x = x[(slice(None),) * (axis % x.ndim) + (slice(begin, max(begin, stop), stride),)]
        else:
            x = torch.index_select(x, axis, torch.arange(begin, min(begin, stop), stride, device=x.device))
    return x


def _split(given: _Attributes) -> Function:
    axis, count = given.integer("axis", 0), given.integer("num_outputs", len(given.node.outputs))

    def split(x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
        if sizes is not None:
            return torch.split(x, _integers(sizes), axis)
        return torch.split(x, ceil(x.shape[axis] / count), axis)

    return split


def _squeeze(x: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = [axis for axis, length in enumerate(x.shape) if length == 1] if axes is None else _integers(axes)
    if any(x.shape[axis] != 1 for axis in chosen):
        raise ValueError("an operator Squeeze removes an axis whose length is not 1")
    return x.squeeze(tuple(chosen))


def _unsqueeze(x: Tensor, axes: Tensor) -> Tensor:
    chosen = _integers(axes)
    rank = x.ndim + len(chosen)
    for axis in sorted(axis % rank for axis in chosen):
        x = x.unsqueeze(axis)
    return x


def _transpose(given: _Attributes) -> Function:
    order = given.integers("perm")
    return lambda x: x.permute(order if order is not None else list(range(x.ndim))[::-1])


# ---- windows


class _Window:
    """The attributes of a convolution or of a pooling.

    Attributes:
        strides: The strides along each axis; None for 1.
        dilations: The dilations along each axis; None for 1.
        ceil_mode: True to round lengths of outputs up.
    """

    def __init__(self, given: _Attributes) -> None:
        self.strides, self.dilations = given.integers("strides"), given.integers("dilations")
        self.ceil_mode = bool(given.integer("ceil_mode", 0))
        self._pads, self._auto = given.integers("pads"), given.text("auto_pad", "NOTSET")

    def pads(self, x: Tensor, kernel: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the padding before and after each axis."""
        axes = len(kernel)
        if self._auto in ("NOTSET", "VALID"):
            pads = self._pads if self._pads is not None and self._auto == "NOTSET" else [0] * (2 * axes)
            return pads[:axes], pads[axes:]
        totals = []
        for at, length in enumerate(x.shape[2:]):
            stride, dilation = (values[at] if values is not None else 1 for values in (self.strides, self.dilations))
            totals.append(max(0, (ceil(length / stride) - 1) * stride + (kernel[at] - 1) * dilation + 1 - length))
        small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
        return (small, large) if self._auto == "SAME_UPPER" else (large, small)


def _padded(x: Tensor, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Tensor:
    return functional.pad(x, [size for pair in zip(before[::-1], after[::-1], strict=True) for size in pair], value=value)


_CONVOLUTIONS: Mapping[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_MAXIMA: Mapping[int, Callable[..., Tensor]] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_MEANS: Mapping[int, Callable[..., Tensor]] = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _conv(given: _Attributes) -> Function:
    window, groups = _Window(given), given.integer("group", 1)

    def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        before, after = window.pads(x, weight.shape[2:])
        if before != after:
            x, before = _padded(x, before, after), [0] * len(before)
        axes = x.ndim - 2
        return _CONVOLUTIONS[axes](x, weight, bias, window.strides or 1, before, window.dilations or 1, groups)

    return conv


def _max_pool(given: _Attributes) -> Function:
    window, kernel = _Window(given), given.integers("kernel_shape") or []
    strides = window.strides or [1] * len(kernel)

    def pool(x: Tensor) -> Tensor:
        dtype, (before, after) = x.dtype, window.pads(x, kernel)
        x = x if x.is_floating_point() else x.to(torch.float32)  # bytes, which this dtype represents
        if before != after or any(2 * size > length for size, length in zip(before, kernel, strict=True)):
            if window.ceil_mode:
                raise ValueError("an operator MaxPool has ceil_mode and different padding at both ends")
            x, before = _padded(x, before, after, float("-inf")), [0] * len(before)
        return _MAXIMA[len(kernel)](x, kernel, strides, before, window.dilations or 1, window.ceil_mode).to(dtype)

    return pool


def _average_pool(given: _Attributes) -> Function:
    window, kernel = _Window(given), given.integers("kernel_shape") or []
    strides, whole = window.strides or [1] * len(kernel), bool(given.integer("count_include_pad", 0))
    if window.dilations and max(window.dilations) > 1:
        raise ValueError("an operator AveragePool has dilations")

    def pool(x: Tensor) -> Tensor:
        before, after = window.pads(x, kernel)
        mean = _MEANS[len(kernel)]
        if before == after and all(2 * size <= length for size, length in zip(before, kernel, strict=True)):
            return mean(x, kernel, strides, before, window.ceil_mode, whole)
        if window.ceil_mode:
            raise ValueError("an operator AveragePool has ceil_mode and different padding at both ends")
        sums = mean(_padded(x, before, after), kernel, strides)
        return sums if whole else sums / mean(_padded(torch.ones_like(x), before, after), kernel, strides)

    return pool


def _simple(function: Callable[..., Tensor], **defaults: float) -> Callable[[_Attributes], Function]:
    """Return the builder of a function of one tensor and of numbers."""

    def build(given: _Attributes) -> Function:
        numbers = [given.number(name, default) for name, default in defaults.items()]
        return lambda x: function(x, *numbers)

    return build


def _along(function: Callable[..., Tensor]) -> Callable[[_Attributes], Function]:
    """Return the builder of a function of one tensor along an axis, the last one by default."""

    def build(given: _Attributes) -> Function:
        axis = given.integer("axis", -1)
        return lambda x: function(x, axis)

    return build


def _plain(function: Function) -> Callable[[_Attributes], Function]:
    return lambda given: function


_BUILDERS: Mapping[str, Callable[[_Attributes], Function]] = {
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "Celu": _simple(functional.celu, alpha=1.0),
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Conv": _conv,
    "Elu": _simple(functional.elu, alpha=1.0),
    "Flatten": _flatten,
    "Gather": _gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GroupNormalization": _group_normalization,
    "HardSigmoid": _simple(lambda x, alpha, beta: torch.clamp(alpha * x + beta, 0.0, 1.0), alpha=0.2, beta=0.5),
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "LeakyRelu": _simple(functional.leaky_relu, alpha=0.01),
    "LogSoftmax": _along(torch.log_softmax),
    "MaxPool": _max_pool,
    "OneHot": _one_hot,
    "Pad": _pad,
    "ReduceL2": _reduced(lambda x, axes, keep: torch.sqrt(torch.sum(x * x, axes, keep))),
    "ReduceMax": _reduced(torch.amax),
    "ReduceMean": _reduced(torch.mean),
    "ReduceMin": _reduced(torch.amin),
    "ReduceProd": _reduced(_product),
    "ReduceSum": _reduced(torch.sum),
    "ReduceSumSquare": _reduced(lambda x, axes, keep: torch.sum(x * x, axes, keep)),
    "Reshape": _reshape,
    "Selu": _simple(
        lambda x, alpha, gamma: gamma * torch.where(x > 0, x, alpha * torch.expm1(x)),
        alpha=1.67326319217681884765625,
        gamma=1.05070102214813232421875,
    ),
    "Shape": _shape,
    "Slice": _plain(_slice),
    "Softmax": _along(torch.softmax),
    "Split": _split,
    "Squeeze": _plain(_squeeze),
    "Transpose": _transpose,
    "Unsqueeze": _plain(_unsqueeze),
}
