"""Storage for frames (images), in which equal frames are stored once, and the columns of a ring buffer that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from rl4sys_zmq.replay.layout import ArraySpec

_RECENT = 1024
"""Number of recent frames that a new frame is compared with: enough for several hundred environments."""


class FrameStore:
    """A store of frames of one shape and dtype. Equal frames share a *slot*, an index in the store.

    A slot to which no row refers is used again. Blocks of several slots are allocated on demand.

    Args:
        leaf: Shape and dtype of a frame.
        block: Number of slots in a block.
        make: Function that creates the array ``[block, *leaf.shape]`` of block number 0, 1, ...
    """

    def __init__(self, leaf: ArraySpec, block: int, make: Callable[[int], NDArray[Any]]) -> None:
        self.leaf = leaf
        self._block, self._make = block, make
        self._blocks: list[NDArray[Any]] = []
        self._uses = np.zeros(0, np.int64)  # for each slot, the number of references
        self._free: list[int] = []
        self._recent: dict[int, int] = {}

    @property
    def used(self) -> int:
        """The number of different frames that are stored."""
        return int(np.count_nonzero(self._uses))

    def reserve(self) -> None:
        """Create now all blocks that a full `FramePool` needs. The store must be empty."""
        while len(self._blocks) <= _BLOCKS:
            self._add_block()

    def restore(self, blocks: Iterable[NDArray[Any]], slots: NDArray[np.int64]) -> None:
        """Continue with blocks that were saved on disk. `slots` has the slots to which rows refer, one per reference."""
        self._blocks = list(blocks)
        self._uses = np.bincount(slots.ravel(), minlength=len(self._blocks) * self._block).astype(np.int64)
        self._free = [int(slot) for slot in np.flatnonzero(self._uses == 0)[::-1]]
        self._recent = {_digest(self._at(slot)): slot for slot in slots[-1:].ravel().tolist()}

    def hold(self, frames: NDArray[Any]) -> NDArray[np.int64]:
        """Store frames ``[n, *shape]``, and return their slots ``[n]``, each with one more reference."""
        slots: list[int] = []
        try:
            for frame in frames:
                slots.append(self._hold(np.asarray(frame, order="C")))
        except BaseException:
            self.release(np.asarray(slots, np.int64))
            raise
        return np.asarray(slots, np.int64)

    def share(self, slots: NDArray[np.int64]) -> None:
        """Count one more reference to a slot for each time that it is in `slots`."""
        np.add.at(self._uses, slots.ravel(), 1)

    def release(self, slots: NDArray[np.int64]) -> None:
        """Count one reference less to a slot for each time that it is in `slots`."""
        flat = slots.ravel()
        np.subtract.at(self._uses, flat, 1)
        self._free.extend(int(slot) for slot in np.unique(flat) if not self._uses[slot])

    def gather(self, slots: NDArray[np.int64]) -> NDArray[Any]:
        """Return a copy of the frames in these slots, ``[*slots.shape, *shape]``."""
        out = np.empty((*slots.shape, *self.leaf.shape), self.leaf.dtype)
        blocks, rows = slots // self._block, slots % self._block
        for number in np.unique(blocks):
            here = blocks == number
            out[here] = self._blocks[number][rows[here]]
        return out

    def _hold(self, frame: NDArray[Any]) -> int:
        digest = _digest(frame)
        slot = self._recent.get(digest, -1)
        if slot < 0 or not self._uses[slot] or not np.array_equal(self._at(slot), frame):
            if not self._free:
                self._add_block()
            slot = self._free.pop()
            self._at(slot)[...] = frame
        self._recent.pop(digest, None)
        self._recent[digest] = slot  # the newest is the last
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        self._uses[slot] += 1
        return slot

    def _at(self, slot: int) -> NDArray[Any]:
        frame: NDArray[Any] = self._blocks[slot // self._block][slot % self._block, ...]
        return frame

    def _add_block(self) -> None:
        first = len(self._blocks) * self._block
        self._blocks.append(self._make(len(self._blocks)))
        self._uses = np.concatenate([self._uses, np.zeros(self._block, np.int64)])
        self._free += range(first + self._block - 1, first - 1, -1)


def _digest(frame: NDArray[Any]) -> int:
    return xxhash.xxh3_64_intdigest(frame.data)


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


def stack_axis(leaf: ArraySpec) -> int | None:
    """Return the axis along which an image is split into frames, each of which is stored once; None for no split.

    The result is the first axis, if its length is at most 16. Otherwise it is the last axis of an image ``[H, W, frames]``,
    unless that axis has one or three channels.
    """
    shape = leaf.shape
    if len(shape) in (3, 4) and 2 <= shape[0] <= _MOST_FRAMES:
        return 0
    if len(shape) == 3 and 2 <= shape[2] <= _MOST_FRAMES and shape[2] != 3:
        return 2
    return None


class FramePool(FrameStore):
    """A `FrameStore` for values of one shape and dtype, each of which consists of one or more frames.

    Args:
        capacity: Number of values for which `reserve` creates enough blocks.
        leaf: Shape and dtype of a value.
        make: Function that creates the blocks.

    Attributes:
        frames_per_value: Number of frames in a value.
        nbytes: Size in bytes of the blocks that `reserve` creates.
    """

    def __init__(self, capacity: int, leaf: ArraySpec, make: Make) -> None:
        self._axis, shape = stack_axis(leaf), list(leaf.shape)
        self.frames_per_value = 1 if self._axis is None else shape.pop(self._axis)
        block = -(-capacity // _BLOCKS)
        frame = ArraySpec(tuple(shape), leaf.dtype)
        self.nbytes = (_BLOCKS + 1) * block * frame.nbytes
        super().__init__(frame, block, lambda _: make(ArraySpec((block, *frame.shape), frame.dtype)))

    def put(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Store values ``[n, *leaf.shape]``. Return the slots of their frames, ``[n, frames]``."""
        frames = values[:, None] if self._axis is None else np.moveaxis(values, 1 + self._axis, 1)
        slots = self.hold(frames.astype(self.leaf.dtype, copy=False).reshape(-1, *self.leaf.shape))
        return slots.reshape(frames.shape[:2])

    def join(self, frames: NDArray[Any]) -> NDArray[Any]:
        """Join the frames of values, ``[..., frames, *frame]``. Return the values in the form that `put` takes."""
        axis = frames.ndim - 1 - len(self.leaf.shape)
        return frames.squeeze(axis) if self._axis is None else np.ascontiguousarray(np.moveaxis(frames, axis, axis + self._axis))
