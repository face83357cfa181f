"""A column of a ring buffer for large values, such as images. Equal values are stored once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.replay.frame_store import FrameStore
from rl4sys_zmq.replay.layout import ArraySpec

SHARED_BYTES = 1024
"""Smallest size of a value that is stored once. Below it, the references cost more than they save."""
_MOST_FRAMES = 16
"""Largest size of an axis along which frames are stacked."""
_BLOCKS = 8
"""A block of the pool has room for ``capacity / _BLOCKS`` frames. One more than `_BLOCKS` is enough if segments have at least
`_BLOCKS` steps, because each adds one frame.
"""

Make = Callable[[ArraySpec], NDArray[Any]]
"""Creates an array of zeros."""


def is_shared(leaf: ArraySpec) -> bool:
    return leaf.nbytes >= SHARED_BYTES


def stack_axis(leaf: ArraySpec) -> int | None:
    """Return the axis along which an image consists of frames, each of which is stored once; None for a whole image.

    This is the first axis, if it has at most 16 frames. Otherwise it is the last axis of an image ``[H, W, frames]``, unless
    that has one or three channels.
    """
    shape = leaf.shape
    if len(shape) in (3, 4) and 2 <= shape[0] <= _MOST_FRAMES:
        return 0
    if len(shape) == 3 and 2 <= shape[2] <= _MOST_FRAMES and shape[2] != 3:
        return 2
    return None


def frames_per_value(leaf: ArraySpec) -> int:
    axis = stack_axis(leaf)
    return 1 if axis is None else leaf.shape[axis]


def pool_bytes(capacity: int, leaf: ArraySpec) -> int:
    """Return the size of the pool that `FrameColumn.reserve` reserves for `capacity` values."""
    frame = leaf.nbytes // frames_per_value(leaf)
    return (_BLOCKS + 1) * -(-capacity // _BLOCKS) * frame


def frame_pool(capacity: int, leaf: ArraySpec, make: Make) -> FrameStore:
    """Create the storage for the frames of values of one shape and dtype. Several columns can share it."""
    axis, shape = stack_axis(leaf), list(leaf.shape)
    if axis is not None:
        shape.pop(axis)
    block = -(-capacity // _BLOCKS)
    frame = ArraySpec(tuple(shape), leaf.dtype)
    return FrameStore(frame, block, lambda _: make(ArraySpec((block, *frame.shape), frame.dtype)))


class FrameColumn:
    """A column of values that consist of frames. Equal frames of the same pool are stored once.

    A row has the slots of its frames, or -1 before it is written for the first time.
    """

    def __init__(self, capacity: int, leaf: ArraySpec, pool: FrameStore) -> None:
        self.leaf = leaf
        self._axis = stack_axis(leaf)
        self.pool = pool
        self.frames_per_value = frames_per_value(leaf)
        self._slots = np.full((capacity, self.frames_per_value), -1, np.int64)

    def reserve(self) -> None:
        """Create the arrays for `pool_bytes` now. The pool must be empty."""
        self.pool.reserve(_BLOCKS + 1)

    def write(self, first: int, block: NDArray[Any]) -> None:
        """Write the values ``[count, *leaf.shape]`` to the rows from `first` on."""
        rows = slice(first, first + len(block))
        frames = block if self._axis is None else np.moveaxis(block, 1 + self._axis, 1)
        slots = self.pool.hold(frames.astype(self.leaf.dtype, copy=False).reshape(-1, *self.pool.leaf.shape))
        self._replace(rows, slots.reshape(len(block), -1))

    def overwrite(self, places: NDArray[np.int64], sources: NDArray[np.int64]) -> None:
        """Copy the values of the rows `sources` to the rows `places`."""
        slots = self._slots[sources]
        self.pool.share(slots)
        self._replace(places, slots)

    def take(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """Return a copy of the values of these rows, ``[*places.shape, *leaf.shape]``."""
        return self.join(self.pool.gather(self._slots[places]))

    def slots(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of the frames of these rows, ``[*places.shape, frames]``."""
        slots: NDArray[np.int64] = self._slots[places]
        return slots

    def join(self, frames: NDArray[Any]) -> NDArray[Any]:
        """Return the values that consist of these frames, ``[..., *leaf.shape]`` for frames ``[..., frames, *frame]``."""
        rows = frames.ndim - 1 - len(self.pool.leaf.shape)
        if self._axis is None:
            return frames.reshape(*frames.shape[:rows], *self.leaf.shape)
        return np.ascontiguousarray(np.moveaxis(frames, rows, rows + self._axis))

    def _replace(self, rows: Any, slots: NDArray[np.int64]) -> None:
        old = self._slots[rows].copy()
        self._slots[rows] = slots
        self.pool.release(old[old >= 0])
