"""Frames (images) in blocks of memory. Equal frames are stored once."""

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
    """Frames of one shape and dtype. Equal frames share a *slot*, an index in the store.

    A slot without references is used again. Blocks of several slots are allocated on demand.

    Args:
        leaf: Shape and dtype of a frame.
        block: Number of slots in a block.
        make: Creates the array ``[block, *leaf.shape]`` of the block with this number (0, 1, ...).
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
        """The number of frames that are stored."""
        return int(np.count_nonzero(self._uses))

    def reserve(self, blocks: int) -> None:
        """Create the first `blocks` blocks now. The store must be empty."""
        while len(self._blocks) < blocks:
            self._add_block()

    def restore(self, blocks: Iterable[NDArray[Any]], slots: NDArray[np.int64]) -> None:
        """Use the blocks of a store that was saved on disk, and the slots to which rows refer."""
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
        """Add a reference for each occurrence of a slot."""
        np.add.at(self._uses, slots.ravel(), 1)

    def release(self, slots: NDArray[np.int64]) -> None:
        """Remove a reference for each occurrence of a slot."""
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
            slot = self._new_slot()
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

    def _new_slot(self) -> int:
        if not self._free:
            self._add_block()
        return self._free.pop()

    def _add_block(self) -> None:
        first = len(self._blocks) * self._block
        self._blocks.append(self._make(len(self._blocks)))
        self._uses = np.concatenate([self._uses, np.zeros(self._block, np.int64)])
        self._free += range(first + self._block - 1, first - 1, -1)


def _digest(frame: NDArray[Any]) -> int:
    return xxhash.xxh3_64_intdigest(frame.data)
