"""The convolutions and the pooling of ONNX graphs, computed by torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil

import torch
from torch import Tensor
from torch.nn import functional

from rl4sys_zmq.policies.torch_attributes import Attributes, Function

__all__ = ["build_average_pool", "build_conv", "build_max_pool"]


class _Window:
    """The attributes of a convolution or of a pooling.

    Attributes:
        strides: The strides along each axis; None for 1.
        dilations: The dilations along each axis; None for 1.
        ceil_mode: True to round lengths of outputs up.
    """

    def __init__(self, given: Attributes) -> None:
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


def build_conv(given: Attributes) -> Function:
    """Return the function of Conv."""
    window, groups = _Window(given), given.integer("group", 1)

    def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        before, after = window.pads(x, weight.shape[2:])
        if before != after:
            x, before = _padded(x, before, after), [0] * len(before)
        axes = x.ndim - 2
        return _CONVOLUTIONS[axes](x, weight, bias, window.strides or 1, before, window.dilations or 1, groups)

    return conv


def build_max_pool(given: Attributes) -> Function:
    """Return the function of MaxPool."""
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


def build_average_pool(given: Attributes) -> Function:
    """Return the function of AveragePool."""
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
