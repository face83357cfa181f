"""A replay buffer of transitions, whose images are kept once."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, DataError, StoreEmpty, StoreError
from rl4sys_zmq.serving.data.base import as_batch
from rl4sys_zmq.serving.data.columnar import ColumnStore, batch_count, fitting_memory
from rl4sys_zmq.serving.data.folder import Folder
from rl4sys_zmq.serving.data.frame_store import FrameStore
from rl4sys_zmq.serving.data.layout import Layout, Leaf, as_leaf, flag, space_leaves, zeros
from rl4sys_zmq.serving.data.ring import Ids
from rl4sys_zmq.values.trees import named_leaves, tree_of_names

__all__ = ["ReplayBuffer"]

_BOTH = ("observations", "next_observations")
_REQUIRED = ("observations", "actions", "rewards", "next_observations")
_FIXED = {
    "rewards": Leaf((), np.dtype("<f4")),
    "terminated": Leaf((), np.dtype("?")),
    "truncated": Leaf((), np.dtype("?")),
}
_BLOCKS = 8
"""A frame store has this many blocks when every transition brings one frame."""


class ReplayBuffer(ColumnStore):
    """The last `capacity` transitions, sampled uniformly one by one.

    A transition is a dict of ``observations``, ``actions``, ``rewards``, ``next_observations`` and ``terminated``, and if you
    have it ``truncated`` (else False); observations and actions may be dicts of arrays. In place of ``terminated`` the older
    forms are read too: ``dones``, or ``masks`` (1 - terminated). Any further keys are kept. The first transition fixes the
    shapes and dtypes, those of the spaces where they are given; rewards are float32.

    Nothing but transitions can be stored: an observation alone says nothing that could be sampled. For those, and for any other
    payload, there is `QueuedDataStore`.

    Args:
        capacity: the most transitions that are held.
        observation_space: a Gymnasium space (or ours) that fixes the observations' shapes and dtypes.
        action_space: likewise.
        image_keys: keys of the observations whose frames are kept once each, however many transitions and stacks they appear
            in; ``("observations",)`` when the observation is the image.
        num_stack: how many frames such an observation has, 1 for an image without a stack axis.
        stack_axis: the axis of an observation along which they are stacked, the newest last.
        seed: of the store's own random stream.
        path: a folder to keep everything in, instead of memory; a store that is there is taken up.

    Raises:
        ConfigError: when an argument is wrong (names it).
        StoreError: when the folder cannot be used.
    """

    _KIND = "ReplayBuffer"

    def __init__(
        self,
        capacity: int,
        observation_space: object | None = None,
        action_space: object | None = None,
        *,
        image_keys: Sequence[str] = (),
        num_stack: int = 1,
        stack_axis: int = 0,
        seed: int | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        if type(num_stack) is not int or num_stack < 1:
            raise ConfigError(f"num_stack is a positive integer, not {num_stack!r:.60}", key="num_stack")
        if type(stack_axis) is not int:
            raise ConfigError(f"stack_axis is an integer, not {stack_axis!r:.60}", key="stack_axis")
        self._expected = dict(_FIXED)
        for name, space in zip((*_BOTH, "actions"), (observation_space, observation_space, action_space), strict=True):
            if space is not None:
                self._expected |= space_leaves(name, space)
        self._images = {key: "" if key == "observations" else f"/{key}" for key in _keys(image_keys)}
        self._num_stack, self._stack_axis = num_stack, stack_axis
        self._frames: dict[str, FrameStore] = {}
        super().__init__(capacity, seed, path, {"image_keys": [*self._images], "num_stack": num_stack, "stack_axis": stack_axis})
        with self._opening() as found:
            if found is not None and self._folder is not None:
                self._take_up(self._folder, found)

    def batch_insert(self, batch_data: Sequence[Mapping[str, Any]]) -> None:
        """Stores transitions in their order: all of them or, when one does not fit, none.

        Raises:
            DataError: when one does not fit (names the key, with both shapes or dtypes).
            StoreError: when files cannot be made for them; those before it are stored.
            ConfigError: likewise when there is no memory for them.
            Closed: after `close`.
        """
        rows = [_transition(data) for data in as_batch(batch_data)]
        if not rows:
            return
        with self._open():
            layout = self._layout or self._first_layout(rows[0])
            blocks = layout.pack(rows)
            if self._layout is None:
                self._allocate(layout)
            piece = 1 if self._images else self.capacity  # frames have no room for many rows at once
            for start in range(0, len(rows), piece):
                self._write({path: block[start : start + piece] for path, block in blocks.items()}, min(piece, len(rows) - start))

    def sample(self, batch_size: int, indices: object | None = None) -> dict[str, Any]:
        """Transitions drawn uniformly, with replacement.

        Args:
            batch_size: how many.
            indices: the numbers of those to return instead, one dimension of integers from `oldest_data_id` to
                `latest_data_id`; `batch_size` then says nothing.

        Returns:
            The tree of a transition, each leaf an array ``[batch, ...]`` (copies): ``terminated`` and ``truncated`` are bool, and
            ``masks`` is float32, 1 - terminated.

        Raises:
            StoreEmpty: when there is nothing yet.
            DataError: when a transition of `indices` is not held, or so many do not fit in memory.
            Closed: after `close`.
        """
        count = batch_count(batch_size) if indices is None else 0
        with self._open(), fitting_memory(count):
            leaves = self._gather(self._draw_uniform(count) if indices is None else self._ring.held("indices", indices))
        leaves["masks"] = 1 - leaves["terminated"].astype(np.float32)
        return tree_of_names(leaves)

    def stored_frames(self) -> dict[str, int]:
        """For each image key, how many frames are kept for the transitions that are held."""
        with self._open():
            return {key: self._frames[key].used if key in self._frames else 0 for key in self._images}

    def _first_layout(self, row: Mapping[str, object]) -> Layout:
        """The layout that the first transition fixes, within what the spaces say."""
        leaves = {}
        for path, value in row.items():
            if path in self._expected:
                leaves[path] = self._expected[path]
            else:
                array = as_leaf(path, value)
                leaves[path] = Leaf(array.shape, array.dtype)
        for path, expected in self._expected.items():
            leaves.setdefault(path, expected)  # what the spaces have and the transition lacks is then found missing
        for path in [p for p in leaves if p.partition("/")[0] == "next_observations"]:
            twin = leaves.get(path.removeprefix("next_"))
            if twin is not None and twin.shape != leaves[path].shape:
                raise DataError(path, f"{leaves[path]}, where 'observations' has {twin}")
            leaves[path] = twin or leaves[path]
        for key, suffix in self._images.items():
            self._frame_leaf(key, leaves, suffix)
        return Layout(leaves)

    def _frame_leaf(self, key: str, leaves: Mapping[str, Leaf], suffix: str) -> Leaf:
        """One frame of an image key."""
        leaf = leaves.get(f"observations{suffix}")
        if leaf is None or f"next_observations{suffix}" not in leaves:
            raise DataError(f"observations{suffix}", f"is missing, and {key!r} is one of image_keys")
        if self._num_stack == 1:
            return leaf
        try:
            shape = list(leaf.shape)
            stacked = shape.pop(self._stack_axis)
        except IndexError:
            stacked = 0
        if stacked != self._num_stack:
            raise DataError(
                f"observations{suffix}", f"shape {leaf.shape} has no {self._num_stack} frames along axis {self._stack_axis}"
            )
        return Leaf(tuple(shape), leaf.dtype)

    def _columns(self, layout: Layout) -> dict[str, Leaf]:
        images = {name + suffix for suffix in self._images.values() for name in _BOTH}
        columns = {path: leaf for path, leaf in layout.leaves.items() if path not in images}
        slots = Leaf((2, self._num_stack), np.dtype("<i8"))
        return columns | {_slots(key): slots for key in self._images}

    def _allocate(self, layout: Layout) -> None:
        frames = {}
        for index, (key, suffix) in enumerate(self._images.items()):
            block = -(-self.capacity // _BLOCKS)
            leaf = self._frame_leaf(key, layout.leaves, suffix)
            frames[key] = FrameStore(leaf, block, partial(self._make_block, index, Leaf((block, *leaf.shape), leaf.dtype)))
        super()._allocate(layout)
        self._frames = frames

    def _make_block(self, key: int, leaf: Leaf, number: int) -> NDArray[Any]:
        if self._folder is None:
            return zeros(leaf)
        return self._folder.make(_block_name(key, number), leaf)

    def _take_up(self, folder: Folder, layout: Layout) -> None:
        """Goes on with the transitions that the folder has."""
        for path, expected in self._expected.items():
            if layout.leaves.get(path) != expected:
                raise StoreError(folder.path, f"{path} has {layout.leaves.get(path)} there, and the spaces say {expected}")
        try:
            self._allocate(layout)
        except DataError as exc:
            raise StoreError(folder.path, f"is damaged ({exc}); delete the folder to start anew") from exc
        held = np.arange(self._ring.begin, self._ring.end)
        block = -(-self.capacity // _BLOCKS)
        for index, (key, suffix) in enumerate(self._images.items()):
            leaf = self._frame_leaf(key, layout.leaves, suffix)
            slots = self._ring.gather(_slots(key), held)
            if slots.size and not 0 <= slots.min() <= slots.max() < 2 * self._num_stack * (self.capacity + 1) + block:
                raise StoreError(folder.path, "points at impossible frames: it is damaged; delete the folder to start anew")
            count = int(slots.max()) // block + 1 if slots.size else 0
            whole = Leaf((block, *leaf.shape), leaf.dtype)
            self._frames[key].restore([folder.open(_block_name(index, n), whole) for n in range(count)], slots)

    def _write(self, blocks: dict[str, NDArray[Any]], count: int) -> None:
        """Writes transitions into the ring; one at a time when there are images."""
        held: dict[str, NDArray[np.int64]] = {}
        try:
            for key, suffix in self._images.items():
                pair = [self._unstack(blocks.pop(name + suffix)[0]) for name in _BOTH]
                held[key] = self._frames[key].hold(np.concatenate(pair))
        except BaseException:
            for key, slots in held.items():
                self._frames[key].release(slots)
            raise
        gone = self._ring.make_room(count)
        for key, slots in held.items():
            self._frames[key].release(self._ring.gather(_slots(key), gone))
            blocks[_slots(key)] = slots.reshape(1, 2, self._num_stack)
        self._ring.append(blocks, count)

    def _unstack(self, image: NDArray[Any]) -> NDArray[Any]:
        """An observation's frames ``[num_stack, *frame]``."""
        return image[np.newaxis] if self._num_stack == 1 else np.moveaxis(image, self._stack_axis, 0)

    def _gather(self, ids: Ids) -> dict[str, NDArray[Any]]:
        """The leaves of some transitions: ``[batch, ...]``, copies."""
        if self._layout is None:  # and so `ids` is empty
            raise StoreEmpty(f"the {self._KIND} holds nothing yet")
        leaves = {path: self._ring.gather(path, ids) for path in self._layout.leaves if path in self._ring}
        for key, suffix in self._images.items():
            slots = self._ring.gather(_slots(key), ids)
            for index, name in enumerate(_BOTH):
                frames = self._frames[key].gather(slots[:, index])  # [batch, num_stack, *frame]
                axis = self._stack_axis + (self._stack_axis >= 0)  # of the batch
                leaves[name + suffix] = frames[:, 0] if self._num_stack == 1 else np.moveaxis(frames, 1, axis)
        return leaves

    def _items(self, ids: Ids, gap: bool) -> list[dict[str, Any]]:
        leaves = self._gather(ids)
        return [tree_of_names({path: block[row] for path, block in leaves.items()}) for row in range(len(ids))]


def _slots(key: str) -> str:
    """The column of an image key: ``[2, num_stack]`` slots, of the observation and of the next one."""
    return f"/slots/{key}"


def _block_name(key: int, number: int) -> str:
    return f"frames-{key:02d}-{number:04d}.npy"


def _keys(image_keys: object) -> list[str]:
    if isinstance(image_keys, str) or not (isinstance(image_keys, Collection) and all(type(key) is str for key in image_keys)):
        raise ConfigError(f"image_keys is a sequence of keys, not {image_keys!r:.60}", key="image_keys")
    return sorted(set(image_keys))


def _transition(data: object) -> dict[str, object]:
    """The leaves of a transition, with its end said in one way."""
    if not isinstance(data, Mapping):
        raise DataError(
            "",
            f"a transition is a dict with {', '.join(_REQUIRED)} and terminated, not a {type(data).__name__}; "
            "a QueuedDataStore takes other payloads",
        )
    for key in _REQUIRED:
        if key not in data:
            raise DataError(key, f"is missing from a transition with the keys {', '.join(map(str, data))}")
    ends = [key for key in ("terminated", "dones", "masks") if key in data]
    if len(ends) != 1:
        raise DataError(
            ends[1] if ends else "terminated", f"a transition has one of terminated, dones and masks, not {len(ends)}"
        )
    leaves = named_leaves(data)
    leaves.setdefault("truncated", False)
    if ends[0] != "terminated":
        leaves["terminated"] = flag(ends[0], leaves.pop(ends[0], None)) != (ends[0] == "masks")
    return leaves
