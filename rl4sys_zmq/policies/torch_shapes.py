"""The operators of ONNX graphs that change shapes or choose elements, computed by torch."""

from __future__ import annotations

from math import ceil, prod

import torch
from torch import Tensor
from torch.nn import functional

from rl4sys_zmq.policies.torch_attributes import MAX_ITEMS, Attributes, Function, integers_of

__all__ = [
    "build_concat",
    "build_constant_of_shape",
    "build_flatten",
    "build_gather",
    "build_one_hot",
    "build_pad",
    "build_reshape",
    "build_shape",
    "build_split",
    "build_transpose",
    "expand",
    "sliced",
    "squeeze",
    "tile",
    "unsqueeze",
]


def expand(x: Tensor, shape: Tensor) -> Tensor:
    """Compute Expand."""
    return x.expand(torch.broadcast_shapes(x.shape, tuple(integers_of(shape))))


def tile(x: Tensor, repeats: Tensor) -> Tensor:
    """Compute Tile."""
    return x.repeat(integers_of(repeats))


def build_concat(given: Attributes) -> Function:
    """Return the function of Concat."""
    axis = given.integer("axis", 0)
    return lambda *values: torch.cat(values, axis)


def build_constant_of_shape(given: Attributes) -> Function:
    """Return the function of ConstantOfShape."""
    value = given.tensor("value")
    filled = torch.zeros((), dtype=torch.float32, device="cpu") if value is None else value.reshape(())
    return lambda shape: filled.expand(integers_of(shape))


def build_flatten(given: Attributes) -> Function:
    """Return the function of Flatten."""
    axis = given.integer("axis", 1)
    return lambda x: x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]) if axis else x.numel())


def build_gather(given: Attributes) -> Function:
    """Return the function of Gather."""
    axis = given.integer("axis", 0)

    def gather(x: Tensor, indices: Tensor) -> Tensor:
        at, length = axis % x.ndim, x.shape[axis]
        places = indices.reshape(-1).to(torch.int64)
        taken = torch.index_select(x, at, torch.where(places < 0, places + length, places))
        return taken.reshape([*x.shape[:at], *indices.shape, *x.shape[at + 1 :]])

    return gather


def build_one_hot(given: Attributes) -> Function:
    """Return the function of OneHot."""
    axis = given.integer("axis", -1)

    def one_hot(indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
        count, at = int(depth.item()), axis % (indices.ndim + 1)
        places = torch.where(indices < 0, indices + count, indices).unsqueeze(at)
        options = torch.arange(count, dtype=torch.int64, device=indices.device).reshape(-1, *[1] * (indices.ndim - at))
        return torch.where(places == options, values[1], values[0])

    return one_hot


def build_pad(given: Attributes) -> Function:
    """Return the function of Pad."""
    mode = {"edge": "replicate", "wrap": "circular"}.get(name := given.text("mode", "constant"), name)

    def pad(x: Tensor, pads: Tensor, value: Tensor | None = None, axes: Tensor | None = None) -> Tensor:
        sizes, chosen = integers_of(pads), integers_of(axes) if axes is not None else list(range(x.ndim))
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


def build_reshape(given: Attributes) -> Function:
    """Return the function of Reshape."""
    keep = not given.integer("allowzero", 0)

    def reshape(x: Tensor, shape: Tensor) -> Tensor:
        sizes = integers_of(shape)
        return x.reshape([x.shape[at] if keep and size == 0 else size for at, size in enumerate(sizes)])

    return reshape


def build_shape(given: Attributes) -> Function:
    """Return the function of Shape."""
    start, end = given.integer("start", 0), given.integer("end", MAX_ITEMS)
    return lambda x: torch.tensor(list(x.shape)[start:end], dtype=torch.int64, device="cpu")


def sliced(x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None) -> Tensor:
    """Compute Slice."""
    begins, stops = integers_of(starts), integers_of(ends)
    chosen = integers_of(axes) if axes is not None else list(range(len(begins)))
    strides = integers_of(steps) if steps is not None else [1] * len(begins)
    for begin, stop, axis, stride in zip(begins, stops, chosen, strides, strict=True):
        begin, stop, stride = slice(begin, stop, stride).indices(x.shape[axis])
        if stride > 0:
            x = x[(slice(None),) * (axis % x.ndim) + (slice(begin, max(begin, stop), stride),)]
        else:
            x = torch.index_select(x, axis, torch.arange(begin, min(begin, stop), stride, dtype=torch.int64, device=x.device))
    return x


def build_split(given: Attributes) -> Function:
    """Return the function of Split."""
    axis, count = given.integer("axis", 0), given.integer("num_outputs", len(given.node.outputs))

    def split(x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
        if sizes is not None:
            return torch.split(x, integers_of(sizes), axis)
        return torch.split(x, ceil(x.shape[axis] / count), axis)

    return split


def squeeze(x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Compute Squeeze."""
    chosen = [axis for axis, length in enumerate(x.shape) if length == 1] if axes is None else integers_of(axes)
    if any(x.shape[axis] != 1 for axis in chosen):
        raise ValueError("an operator Squeeze removes an axis whose length is not 1")
    return x.squeeze(tuple(chosen))


def unsqueeze(x: Tensor, axes: Tensor) -> Tensor:
    """Compute Unsqueeze."""
    chosen = integers_of(axes)
    rank = x.ndim + len(chosen)
    for axis in sorted(axis % rank for axis in chosen):
        x = x.unsqueeze(axis)
    return x


def build_transpose(given: Attributes) -> Function:
    """Return the function of Transpose."""
    order = given.integers("perm")
    return lambda x: x.permute(order if order is not None else list(range(x.ndim))[::-1])
