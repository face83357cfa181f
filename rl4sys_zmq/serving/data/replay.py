"""A replay buffer of single transitions. Equal images are stored once."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.config.options import check_value, integer
from rl4sys_zmq.errors import ConfigError, DataError, StoreEmpty, StoreFileError
from rl4sys_zmq.replay.folder import StoreFolder
from rl4sys_zmq.replay.frames import FrameStore
from rl4sys_zmq.replay.layout import ArraySpec, StoreLayout, flag, is_space, space_leaves, zeros
from rl4sys_zmq.replay.ring import Ids
from rl4sys_zmq.serving.data.base import ColumnStore, as_batch, batch_count, leaf_spec, memory_error_as_data_error
from rl4sys_zmq.values.spaces import MAX_DIMENSIONS
from rl4sys_zmq.values.trees import flatten_names, unflatten_names

_OBSERVATION_KEYS = ("observations", "next_observations")
_REQUIRED = ("observations", "actions", "rewards", "next_observations")
_FIXED = {
    "rewards": ArraySpec((), np.dtype("<f4")),
    "terminated": ArraySpec((), np.dtype("?")),
    "truncated": ArraySpec((), np.dtype("?")),
}
TRANSITION_KEYS = frozenset((*_REQUIRED, "terminated", "truncated", "masks", "dones"))
"""The keys that have a meaning for `ReplayBuffer`."""
_DERIVED_FROM = {"terminated", "truncated"}
_BLOCKS = 8
"""Memory for images is allocated in blocks, each for ``capacity / _BLOCKS`` images."""


class ReplayBuffer(ColumnStore):
    """A replay buffer that keeps the newest `capacity` transitions and samples them uniformly.

    A transition is a dict with the keys ``observations``, ``actions``, ``rewards``, ``next_observations``, ``terminated`` and
    optionally ``truncated`` (default False). Observations and actions can be dicts of arrays. Further keys are stored too. Shapes
    and dtypes come from the spaces if they are given, otherwise from the first transition. Rewards are float32.

    ``masks`` (1 - terminated) can replace ``terminated``: 1 means that the value of the next observation counts. In addition to
    one of these two, ``dones`` can mark the end of the episode. It is stored, and ``truncated`` is then True where the episode
    ends but does not terminate. ``dones`` alone has the meaning of ``terminated``.

    For data that are not transitions, such as single observations, use `QueuedDataStore`.

    Args:
        capacity: Largest number of transitions.
        observation_space: Space of Gymnasium or of this library, which sets the shapes and dtypes of observations.
        action_space: Space of Gymnasium or of this library, which sets the shapes and dtypes of actions.
        image_keys: Keys of observations that are images. An image that appears in several transitions or stacks is stored once.
            ``("observations",)`` if the observation itself is the image.
        num_stack: Number of stacked images (frames) in an observation of an image key. 1: a single image without a stack axis.
        stack_axis: Axis of an observation along which frames are stacked, the newest last.
        seed: Seed of the random generator that draws samples.
        path: Folder to keep the transitions on disk. A store that is already in the folder is opened. None: keep them in memory.

    Raises:
        ConfigError: If an argument is invalid. The message names the argument.
        StoreFileError: If the folder cannot be used.
    """

    _KIND = "ReplayBuffer"
    _further: Mapping[str, ArraySpec] = MappingProxyType({})
    """Further keys that each transition must have. A subclass sets it before its constructor's call."""

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
        if is_space(capacity):
            raise ConfigError(
                f"capacity is {capacity!r:.60}; the order is ReplayBuffer(capacity, observation_space, action_space). "
                "ReplayBufferDataStore has agentlace's order, with the spaces first",
                key="capacity",
            )
        self._num_stack = check_value("num_stack", num_stack, integer(1))
        self._stack_axis = check_value("stack_axis", stack_axis, integer(-MAX_DIMENSIONS, MAX_DIMENSIONS))
        self._expected = {**_FIXED, **self._further}
        spaces = {**dict.fromkeys(_OBSERVATION_KEYS, observation_space), "actions": action_space}
        for name, space in spaces.items():
            if space is not None:
                self._expected |= space_leaves(name, space)
        self._images = {key: "" if key == "observations" else f"/{key}" for key in _keys(image_keys)}
        self._frames: dict[str, FrameStore] = {}
        options = {"image_keys": [*self._images], "num_stack": self._num_stack, "stack_axis": self._stack_axis}
        super().__init__(capacity, seed, path, options)
        self._block = -(-self.capacity // _BLOCKS)  # the number of frames in a block
        with self._opening() as layout:
            if layout is not None and self._folder is not None:
                self._reopen(self._folder, layout)

    def batch_insert(self, batch_data: Sequence[Mapping[str, Any]]) -> None:
        """Store several transitions in order. If one is invalid, store none.

        Raises:
            DataError: If a key, shape or dtype is not that of the store. The message names the key. Nothing was stored.
            StoreFileError: If files cannot be created. Earlier transitions of the batch are stored.
            ConfigError: If there is not enough memory. Earlier transitions of the batch are stored.
            Closed: After `close`.
        """
        rows = [_transition(data) for data in as_batch(batch_data)]
        if not rows:
            return
        with self._open():
            layout = self._layout or self._first_layout(rows[0])
            blocks = layout.pack(rows)
            if self._layout is None:
                self._allocate(layout)
            piece = 1 if self._images else self.capacity  # a frame store has slots for one row more than the capacity
            for start in range(0, len(rows), piece):
                self._write({path: block[start : start + piece] for path, block in blocks.items()}, min(piece, len(rows) - start))

    def sample(self, batch_size: int, keys: Iterable[str] | None = None, indx: object | None = None) -> dict[str, Any]:
        """Draw a batch of transitions uniformly, with replacement.

        Args:
            batch_size: Number of transitions.
            keys: Keys of the result. None: those of a transition, and ``masks``. ``dones`` can be requested even if it is not
                stored: it is then ``terminated`` or ``truncated``.
            indx: Numbers of the transitions to return instead: integers ``[batch]`` from `oldest_data_id` to `latest_data_id`.
                `batch_size` is then ignored.

        Returns:
            A dict of new arrays ``[batch, ...]``, or of dicts of them. ``terminated``, ``truncated`` and ``dones`` are bool.
            ``masks`` is float32, 1 - terminated.

        Raises:
            StoreEmpty: If the store is empty.
            DataError: If `keys` has an unknown key, `indx` has the number of a transition that is not stored, or the batch does
                not fit in memory.
            Closed: After `close`.
        """
        count = batch_count(batch_size) if indx is None else 0
        wanted = None if keys is None else _wanted(keys)
        with self._open(), memory_error_as_data_error(count):
            ids = self._draw_uniform(count) if indx is None else self._ring.held("indx", indx)
            leaves = self._gather(ids, None if wanted is None else wanted | _DERIVED_FROM)
        terminated = leaves["terminated"]
        leaves["masks"] = 1 - terminated.astype(np.float32)
        if wanted is not None:
            leaves.setdefault("dones", terminated | leaves["truncated"])
            leaves = {path: block for path, block in leaves.items() if path.partition("/")[0] in wanted}
        batch = unflatten_names(leaves)
        if wanted is not None and (unknown := wanted - batch.keys()):
            raise DataError(min(unknown), f"is not a key of this store, so it is not in a sample; keys was {sorted(wanted)}")
        return batch

    def get_iterator(
        self, queue_size: int = 2, sample_args: Mapping[str, Any] | None = None, device: object | None = None
    ) -> Iterator[dict[str, Any]]:
        """Return an endless iterator over batches. The first batch is drawn when it is requested.

        Args:
            queue_size: Number of batches that are drawn in advance, so that the copy of a batch to a device overlaps with the
                work on the previous batch.
            sample_args: Arguments of `sample`, such as ``{"batch_size": 256}``.
            device: Device or sharding of JAX to which each batch is copied (`jax.device_put`). None: numpy arrays.

        Raises:
            ConfigError: If `queue_size` is not a positive integer, or `device` is given and the program has not imported JAX.
        """
        check_value("queue_size", queue_size, integer(1))
        put = None
        if device is not None:
            jax = sys.modules.get("jax")
            if jax is None:
                raise ConfigError(f"device is {device!r:.60}, which needs JAX; import jax, or omit device", key="device")
            put = partial(jax.device_put, device=device)
        return self._batches(queue_size, dict(sample_args or {}), put)

    def _batches(
        self, queue_size: int, sample_args: dict[str, Any], put: Callable[[dict[str, Any]], Any] | None
    ) -> Iterator[dict[str, Any]]:
        ahead: deque[dict[str, Any]] = deque()
        while True:
            while len(ahead) < queue_size:
                batch = self.sample(**sample_args)
                ahead.append(batch if put is None else put(batch))
            yield ahead.popleft()

    def _first_layout(self, row: Mapping[str, object]) -> StoreLayout:
        """Return the shapes and dtypes of all values of a transition, from the spaces and the first transition, `row`."""
        leaves = {}
        for path, value in row.items():
            leaves[path] = self._expected[path] if path in self._expected else leaf_spec(path, value)
        for path, expected in self._expected.items():
            leaves.setdefault(path, expected)  # `pack` then reports the keys that the transition lacks
        for path in [p for p in leaves if p.partition("/")[0] == "next_observations"]:
            twin = leaves.get(path.removeprefix("next_"))
            if twin is not None and twin.shape != leaves[path].shape:
                raise DataError(path, f"{leaves[path]}, but 'observations' has {twin}")
            leaves[path] = twin or leaves[path]
        for key, suffix in self._images.items():
            self._frame_leaf(key, leaves, suffix)
        return StoreLayout(leaves)

    def _frame_leaf(self, key: str, leaves: Mapping[str, ArraySpec], suffix: str) -> ArraySpec:
        """Return the shape and dtype of one image (frame) of the image key `key`.

        `leaves` has the shapes and dtypes of all values by path. `suffix` follows ``observations`` in the path of the key.
        """
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
            problem = f"shape {leaf.shape} does not have {self._num_stack} frames along axis {self._stack_axis}"
            raise DataError(f"observations{suffix}", problem)
        return ArraySpec(tuple(shape), leaf.dtype)

    def _columns(self, layout: StoreLayout) -> dict[str, ArraySpec]:
        images = {name + suffix for suffix in self._images.values() for name in _OBSERVATION_KEYS}
        columns = {path: leaf for path, leaf in layout.leaves.items() if path not in images}
        slots = ArraySpec((2, self._num_stack), np.dtype("<i8"))
        return columns | {_slots(key): slots for key in self._images}

    def _allocate(self, layout: StoreLayout) -> None:
        frames = {}
        for index, (key, suffix) in enumerate(self._images.items()):
            leaf = self._frame_leaf(key, layout.leaves, suffix)
            whole = ArraySpec((self._block, *leaf.shape), leaf.dtype)
            frames[key] = FrameStore(leaf, self._block, partial(self._make_block, index, whole))
        super()._allocate(layout)
        self._frames = frames

    def _make_block(self, key: int, leaf: ArraySpec, number: int) -> NDArray[Any]:
        if self._folder is None:
            return zeros(leaf)
        return self._folder.make(_block_name(key, number), leaf)

    def _reopen(self, folder: StoreFolder, layout: StoreLayout) -> None:
        """Open the transitions and images that an earlier store has left in the folder."""
        for path, expected in self._expected.items():
            if layout.leaves.get(path) != expected:
                problem = f"{path} has {layout.leaves.get(path)} there, but the spaces require {expected}"
                raise StoreFileError(folder.path, problem)
        try:
            self._allocate(layout)
        except DataError as exc:
            raise StoreFileError(folder.path, f"is damaged ({exc}); delete the folder to start again") from exc
        held = np.arange(self._ring.begin, self._ring.end)
        most = 2 * self._num_stack * (self.capacity + 1) + self._block
        for index, (key, frames) in enumerate(self._frames.items()):
            slots = self._ring.gather(_slots(key), held)
            if slots.size and not 0 <= slots.min() <= slots.max() < most:
                problem = "refers to frames that cannot exist: it is damaged; delete the folder to start again"
                raise StoreFileError(folder.path, problem)
            count = int(slots.max()) // self._block + 1 if slots.size else 0
            whole = ArraySpec((self._block, *frames.leaf.shape), frames.leaf.dtype)
            frames.restore([folder.open(_block_name(index, n), whole) for n in range(count)], slots)

    def _write(self, blocks: dict[str, NDArray[Any]], count: int) -> None:
        """Write `count` transitions from arrays ``[count, ...]`` by path. With image keys, `count` must be 1."""
        held: dict[str, NDArray[np.int64]] = {}
        try:
            for key, suffix in self._images.items():
                pair = [self._unstack(blocks.pop(name + suffix)[0]) for name in _OBSERVATION_KEYS]
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
        """Return the images (frames) that an observation stacks, ``[num_stack, *frame]``."""
        return image[np.newaxis] if self._num_stack == 1 else np.moveaxis(image, self._stack_axis, 0)

    def _gather(self, ids: Ids, keys: Collection[str] | None = None, *, gap: bool = False) -> dict[str, NDArray[Any]]:
        """Return the transitions with these numbers, or only their values under `keys`: by path, an array ``[batch, ...]``."""
        if self._layout is None:  # then `ids` is empty
            raise StoreEmpty(f"the {self._KIND} is empty")
        paths = [path for path in self._layout.leaves if keys is None or path.partition("/")[0] in keys]
        leaves = {path: self._ring.gather(path, ids) for path in paths if path in self._ring}
        for key, suffix in self._images.items():
            slots = self._ring.gather(_slots(key), ids)
            for index, name in enumerate(_OBSERVATION_KEYS):
                if keys is not None and name not in keys:
                    continue
                frames = self._frames[key].gather(slots[:, index])  # [batch, num_stack, *frame]
                axis = self._stack_axis + (self._stack_axis >= 0)  # the batch is axis 0
                leaves[name + suffix] = frames[:, 0] if self._num_stack == 1 else np.moveaxis(frames, 1, axis)
        return leaves


def _slots(key: str) -> str:
    """Return the name of the column that says where the images of an image key are stored.

    A row of this column, ``[2, num_stack]``, has the indices of the images of ``observations`` and ``next_observations``.
    """
    return f"/slots/{key}"


def _block_name(key: int, number: int) -> str:
    return f"frames-{key:02d}-{number:04d}.npy"


def _keys(image_keys: object) -> list[str]:
    if isinstance(image_keys, str) or not (isinstance(image_keys, Collection) and all(type(key) is str for key in image_keys)):
        raise ConfigError(f"image_keys must be a sequence of keys, not {image_keys!r:.60}", key="image_keys")
    return sorted(set(image_keys))


def _transition(data: object) -> dict[str, object]:
    """Check a transition, and return a flat dict of its values by path. ``dones`` or ``masks`` becomes ``terminated``."""
    if not isinstance(data, Mapping):
        raise DataError(
            "",
            f"a transition must be a dict with {', '.join(_REQUIRED)} and terminated, not a {type(data).__name__}; "
            "use a QueuedDataStore for other payloads",
        )
    for key in _REQUIRED:
        if key not in data:
            raise DataError(key, f"is missing from a transition with the keys {', '.join(map(str, data))}")
    ends = [key for key in ("terminated", "masks", "dones") if key in data]
    if not ends or ends[:2] == ["terminated", "masks"]:
        these = " and ".join(ends) or "none of them"
        problem = f"a transition must have one of terminated and masks, or dones; this one has {these}"
        raise DataError(ends[1] if ends else "terminated", problem)
    leaves = flatten_names(data)
    if ends[0] != "terminated":
        leaves["terminated"] = flag(ends[0], leaves.pop(ends[0], None)) != (ends[0] == "masks")
    if "dones" in leaves:
        leaves["dones"] = done = flag("dones", leaves["dones"])
        leaves.setdefault("truncated", done and not flag("terminated", leaves["terminated"]))
    leaves.setdefault("truncated", False)
    return leaves


def _wanted(keys: object) -> set[str]:
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise DataError("keys", f"{keys!r:.60} is not a list of keys; expected some of those of a transition")
    wanted = set(keys)
    if not all(isinstance(key, str) for key in wanted):
        raise DataError("keys", f"{sorted(wanted, key=str)!r:.60} are not keys; give numbers of transitions as indx=")
    return wanted
