"""The tensors of a policy: their descriptions, and the buffer of those that are not float32.

The float32 tensors are in one flat array, which can be rounded before it is sent. All others are in one buffer of bytes, the
largest elements first, so that each tensor is aligned. Tensors with equal element sizes are in the order of the policy spec.
The buffer ends with zeros up to a multiple of 4 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.values.spaces import DTYPES

FLOAT32 = "float32"
TENSOR_DTYPES = {np.dtype(dtype).name: np.dtype(dtype) for dtype in DTYPES}
"""The supported dtypes of tensors, by NumPy's names such as ``float32``. All are little-endian."""
_WORD = 4


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The description of one tensor of a policy: name, shape and dtype.

    Attributes:
        name: The name, unique in the policy.
        shape: The length of each dimension.
        dtype: A key of `TENSOR_DTYPES`.
        exact: True for float32 numbers that are not weights, such as the statistics of observations or the probability of a
            random action. No wire dtype rounds them. Tensors of other dtypes are never rounded.

    Raises:
        ConfigError: If the dtype is not a key of `TENSOR_DTYPES`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = FLOAT32
    exact: bool = False

    def __post_init__(self) -> None:
        if type(self.dtype) is not str or self.dtype not in TENSOR_DTYPES:
            raise ConfigError(
                f"tensor {self.name!r:.80} has the dtype {self.dtype!r:.40}; expected one of {', '.join(TENSOR_DTYPES)}",
                key="tensors",
            )

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self.size * TENSOR_DTYPES[self.dtype].itemsize


def other_tensors(tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the tensors that are not float32, in the order of their buffer."""
    others = [tensor for tensor in tensors if tensor.dtype != FLOAT32]
    return tuple(sorted(others, key=lambda tensor: -TENSOR_DTYPES[tensor.dtype].itemsize)) if others else ()


def other_bytes(others: Sequence[TensorSpec]) -> int:
    """Return the size in bytes of the buffer of these tensors, which come from `other_tensors`, with its padding."""
    return -(-sum(tensor.nbytes for tensor in others) // _WORD) * _WORD if others else 0


def other_views(others: Sequence[TensorSpec], buffer: bytes | memoryview) -> dict[str, NDArray[Any]]:
    """Return tensors that are not float32 by name, as views into their buffer.

    Args:
        others: The tensors, as `other_tensors` returns them.
        buffer: The buffer, of `other_bytes` bytes.
    """
    views: dict[str, NDArray[Any]] = {}
    start = 0
    for tensor in others:
        dtype = TENSOR_DTYPES[tensor.dtype]
        array = np.frombuffer(buffer, dtype, tensor.size, start) if tensor.size else np.empty(0, dtype)
        views[tensor.name] = array.reshape(tensor.shape)
        start += tensor.nbytes
    return views
