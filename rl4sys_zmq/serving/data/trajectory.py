"""A buffer of trajectories, whose samples are windows, goals and priorities within one trajectory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, DataError, StoreEmpty, StoreError
from rl4sys_zmq.serving.data.base import as_batch
from rl4sys_zmq.serving.data.columnar import ColumnStore, batch_count, fitting_memory
from rl4sys_zmq.serving.data.layout import DataShape, Layout, Leaf, as_leaf, flag
from rl4sys_zmq.serving.data.npz import SavedBuffer, read_npz, write_npz
from rl4sys_zmq.serving.data.priorities import Priorities
from rl4sys_zmq.serving.data.ring import Ids
from rl4sys_zmq.serving.data.samplers import PrioritySampler, Sampler, check_rows
from rl4sys_zmq.serving.data.spans import TrajectorySpans
from rl4sys_zmq.values.trees import named_leaves, tree_of_names

__all__ = ["TrajectoryBuffer"]

Transform = Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]
_START, _END = "start_of_trajectory", "end_of_trajectory"
_START_COLUMN = "/start"


@dataclass(frozen=True, slots=True)
class _Config:
    samplers: dict[str, Sampler]
    sample_range: tuple[int, int]
    transform: Transform | None
    priority: PrioritySampler | None


class TrajectoryBuffer(ColumnStore):
    """The last `capacity` steps in their order, sampled by rules that never leave a trajectory.

    A step is a dict of arrays, nested if you like; which keys it has is yours to say, by `data_shapes` or by the first step.
    Steps follow each other until ``end_of_trajectory`` (an argument of `insert`, or a key of the step) or `end_trajectory`; a
    step with a true ``start_of_trajectory`` begins another one too. These two keys are no columns; `get_latest_data` adds them,
    so that a buffer that is fed from it has the same trajectories, also where steps in between were lost. One writer at a time:
    steps of two that take turns would become one trajectory.

    Nothing is taken back: a trajectory that ends too short stays, is counted, and is never sampled.

    Args:
        capacity: the most steps that are held.
        data_shapes: the columns; None for those of the first step.
        seed: of the buffer's own random stream.
        min_trajectory_length: trajectories with fewer steps (held, for one whose beginning was overwritten) are not sampled.
        path: a folder to keep everything in, instead of memory; a buffer that is there is taken up, its last trajectory over.

    Raises:
        ConfigError: when an argument is wrong (names it).
        StoreError: when the folder cannot be used.
    """

    _KIND = "TrajectoryBuffer"

    def __init__(
        self,
        capacity: int,
        data_shapes: Sequence[DataShape] | None = None,
        seed: int | None = None,
        min_trajectory_length: int = 2,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        if type(min_trajectory_length) is not int or min_trajectory_length < 1:
            raise ConfigError(f"a positive integer, not {min_trajectory_length!r:.60}", key="min_trajectory_length")
        declared = None if data_shapes is None else _declared(data_shapes)
        super().__init__(capacity, seed, path)
        self._min_length = min_trajectory_length
        self._spans = TrajectorySpans()
        self._ended = True
        self._configs: dict[str, _Config] = {}
        self._priorities: Priorities | None = None
        with self._opening() as found:
            if found is not None and declared is not None and declared.leaves != found.leaves:
                raise StoreError(path, "has other columns than data_shapes; use those, or another folder")
            layout = found or declared
            if layout is not None:
                self._allocate(layout)
                self._find_spans()

    def register_sample_config(
        self,
        name: str,
        samplers: Mapping[str, Sampler],
        sample_range: tuple[int, int] = (0, 1),
        transform: Transform | None = None,
    ) -> None:
        """Declares a kind of sample; one of that name is replaced.

        Args:
            name: to ask for it by.
            samplers: for each key of the sample, which rows and of which column.
            sample_range: a step is sampled only where its trajectory has all rows from the first number to before the second,
                counted from the step.
            transform: called with the data and the mask of each sample, in the thread that samples; returns both.

        Raises:
            ConfigError: when the range is none or does not include the step itself, a sampler is none, its column does not
                exist, or priorities are asked for twice or with another alpha or epsilon than elsewhere in this buffer.
        """
        low, high = _range(sample_range)
        chosen = _samplers(name, samplers)
        prioritised = [sampler for sampler in chosen.values() if isinstance(sampler, PrioritySampler)]
        if len(prioritised) > 1:
            raise ConfigError(f"{name!r} has {len(prioritised)} PrioritySamplers; one says it", key=name)
        with self._open():
            if self._layout is not None:
                for key, sampler in chosen.items():
                    self._paths(key, sampler)
            if prioritised:
                mine = (prioritised[0].alpha, prioritised[0].epsilon)
                if self._priorities is None:
                    self._priorities = Priorities(self.capacity, *mine)
                elif self._priorities.exponents != mine:
                    raise ConfigError(f"alpha and epsilon {mine}; this buffer has {self._priorities.exponents}", key=name)
            self._configs[name] = _Config(chosen, (low, high), transform, prioritised[0] if prioritised else None)

    def insert(self, data: Mapping[str, Any], end_of_trajectory: bool = False) -> None:
        """Stores one step under the next number; its arrays are copied, and `data` stays as it is.

        Args:
            data: the step.
            end_of_trajectory: this is its trajectory's last step; or say so in the key of that name.

        Raises:
            DataError: when it does not fit (names the key, with both shapes or dtypes); then nothing was stored.
            StoreError: when files cannot be made for it.
            ConfigError: when there is no memory for it.
            Closed: after `close`.
        """
        self._insert([data], end_of_trajectory)

    def batch_insert(self, batch_data: Sequence[Mapping[str, Any]]) -> None:
        """Stores steps in their order: all of them or, when one does not fit, none.

        Raises:
            DataError: when one does not fit (names the key, with both shapes or dtypes).
            StoreError: when files cannot be made for them.
            ConfigError: when there is no memory for them.
            Closed: after `close`.
        """
        self._insert(batch_data, False)

    def end_trajectory(self) -> None:
        """The last step was its trajectory's last; without a step since the last end it does nothing."""
        with self._open():
            self._ended = True

    def gap(self) -> None:
        """`end_trajectory`: what comes next is apart from what is there."""
        self.end_trajectory()

    def sample(self, name: str, batch_size: int, force_indices: object | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Samples steps, and for each what the config's samplers say.

        Steps are drawn with replacement, uniformly or by priority, from all that the ``sample_range`` and
        ``min_trajectory_length`` allow.

        Args:
            name: of a registered config.
            batch_size: how many.
            force_indices: the numbers of the steps to take instead, one dimension of integers; `batch_size` then says nothing.

        Returns:
            The data, for each key an array ``[batch, ...]`` or ``[batch, time, ...]`` or a dict of these (copies), and the mask,
            for each key bool ``[batch]`` or ``[batch, time]``; both as `transform` leaves them.

        Raises:
            StoreEmpty: when there is nothing that is allowed yet.
            DataError: when a step of `force_indices` is not held, or is not allowed, or so many do not fit in memory.
            ConfigError: when there is no such config, or a sampler's column does not exist.
            Closed: after `close`.
        """
        config = self._configs.get(name)
        if config is None:
            raise ConfigError(f"no sample config {name!r}; there are {sorted(self._configs)}", key=name)
        count = batch_count(batch_size) if force_indices is None else 0
        data: dict[str, Any] = {}
        mask: dict[str, Any] = {}
        with self._open(), fitting_memory(count):
            if self._layout is None:
                raise StoreEmpty("the TrajectoryBuffer holds nothing yet")
            anchors, begins, ends = self._anchors(config, count, force_indices)
            for key, sampler in config.samplers.items():
                data[key], mask[key] = self._draw(key, sampler, anchors, begins, ends)
        return (data, mask) if config.transform is None else config.transform(data, mask)

    def update_priorities(self, indices: object, priorities: object) -> int:
        """Sets the priorities of steps, such as the sizes of their errors.

        Args:
            indices: numbers of steps, as a sample's ``indices`` say; those that are no longer held are left out.
            priorities: for each a finite number that is not negative.

        Returns:
            How many were still held.

        Raises:
            DataError: when the two do not fit each other, or a priority is not such a number; then none was set.
            ConfigError: when no config has a `PrioritySampler`.
            Closed: after `close`.
        """
        with self._open():
            if self._priorities is None:
                raise ConfigError("priorities need a sample config with a PrioritySampler", key="priorities")
            return self._priorities.update(self._ring, as_leaf("indices", indices), as_leaf("priorities", priorities))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all steps to one ``.npz`` file, which replaces one that is there when it is complete.

        Priorities and sample configs are not saved. The steps are copied first, so that inserts need not wait for the disk.

        Raises:
            StoreError: when it cannot be written.
            Closed: after `close`.
        """
        with self._open():
            held = np.arange(self._ring.begin, self._ring.end)
            leaves = self._layout.leaves if self._layout is not None else {}
            saved = SavedBuffer(
                capacity=self.capacity,
                begin=self._ring.begin,
                min_trajectory_length=self._min_length,
                starts=self._spans.bounds(self._ring.begin, self._ring.end)[0],
                ended=self._ended,
                data={leaf: self._ring.gather(leaf, held) for leaf in leaves},
            )
        write_npz(path, saved)

    @classmethod
    def load(cls, path: str | os.PathLike[str], seed: int | None = None) -> Self:
        """The buffer that `save` wrote, in memory, with the same numbers; register its sample configs anew.

        Raises:
            StoreError: when it cannot be read, or is not such a file.
        """
        saved = read_npz(path)
        shapes = [DataShape(leaf, block.shape[1:], block.dtype.str) for leaf, block in saved.data.items()]
        buffer = cls(saved.capacity, shapes or None, seed, saved.min_trajectory_length)
        if shapes:
            count = len(next(iter(saved.data.values())))
            start = np.isin(np.arange(saved.begin, saved.begin + count), saved.starts)
            buffer._ring.skip_to(saved.begin)
            buffer._ring.append({**saved.data, _START_COLUMN: start}, count)
            buffer._find_spans()
            buffer._ended = saved.ended
        return buffer

    def _insert(self, batch: Sequence[Mapping[str, Any]], ended: bool) -> None:
        steps = [_step(data) for data in as_batch(batch)]
        if not steps:
            return
        rows, starts, ends = zip(*steps, strict=True)
        last = np.asarray(ends)
        last[-1] |= bool(ended)
        with self._open():
            layout = self._layout or Layout({path: _leaf_of(path, value) for path, value in rows[0].items()})
            blocks = layout.pack(rows)
            if self._layout is None:
                self._allocate(layout)
            blocks[_START_COLUMN] = np.asarray(starts) | np.concatenate([[self._ended], last[:-1]])
            for first in range(0, len(rows), self.capacity):
                piece = {path: block[first : first + self.capacity] for path, block in blocks.items()}
                self._append(piece, len(piece[_START_COLUMN]))
            self._ended = bool(last[-1])

    def _append(self, blocks: dict[str, NDArray[Any]], count: int) -> None:
        end = self._ring.end
        self._ring.make_room(count)
        self._ring.append(blocks, count)
        self._spans.extend(end + np.flatnonzero(blocks[_START_COLUMN]))
        self._spans.forget_before(self._ring.begin)

    def _find_spans(self) -> None:
        """The trajectories of the rows that are there from the beginning."""
        held = np.arange(self._ring.begin, self._ring.end)
        self._spans.extend(held[self._ring.gather(_START_COLUMN, held) | (held == self._ring.begin)])

    def _columns(self, layout: Layout) -> dict[str, Leaf]:
        return {**layout.leaves, _START_COLUMN: Leaf((), np.dtype("?"))}

    def _items(self, ids: Ids, gap: bool) -> list[dict[str, Any]]:
        leaves = {path: self._ring.gather(path, ids) for path in self._layout.leaves} if self._layout is not None else {}
        start = self._ring.gather(_START_COLUMN, ids)
        start[0] |= gap
        after = np.minimum(ids + 1, self._ring.end - 1)
        end = np.where(ids + 1 < self._ring.end, self._ring.gather(_START_COLUMN, after), self._ended)
        leaves[_START], leaves[_END] = start, end
        return [tree_of_names({path: block[row] for path, block in leaves.items()}) for row in range(len(ids))]

    def _anchors(self, config: _Config, count: int, forced: object | None) -> tuple[Ids, Ids, Ids]:
        """The steps of a sample, and of each one's trajectory the first number that is held and one more than the last."""
        spans = self._spans.allowed(self._ring.begin, self._ring.end, config.sample_range, self._min_length)
        if forced is not None:
            anchors = self._ring.held("force_indices", forced)
            refused = anchors[~spans.allow(anchors)]
            if refused.size:
                rule = f"sample_range {config.sample_range} and min_trajectory_length {self._min_length}"
                raise DataError("force_indices", f"{refused.size} that {rule} do not allow, such as {refused[0]}")
        elif not spans.total:
            raise StoreEmpty("no trajectory in the TrajectoryBuffer is long enough yet")
        elif config.priority is not None and self._priorities is not None:
            anchors = self._priorities.draw(self._ring, count, spans, self._rng)
        else:
            anchors = spans.draw(count, self._rng)
        return anchors, *spans.around(anchors)

    def _draw(self, key: str, sampler: Sampler, anchors: Ids, begins: Ids, ends: Ids) -> tuple[Any, Any]:
        if isinstance(sampler, PrioritySampler):
            assert self._priorities is not None
            masses = self._priorities.masses(self._ring, anchors)
            return {"indices": anchors, "weights": sampler.weights(masses)}, np.ones(anchors.shape, np.bool_)
        draw = sampler.draw(anchors, begins, ends, self._rng)
        wide = (-1,) + (1,) * (draw.ids.ndim - 1)
        if not np.all((draw.ids >= begins.reshape(wide)) & (draw.ids < ends.reshape(wide))):
            raise ConfigError(f"{type(sampler).__name__} chose rows outside of the trajectory", key=key)
        paths = self._paths(key, sampler)
        data = tree_of_names({inner: self._ring.gather(path, draw.ids) for inner, path in paths.items()})
        values = data.get("", data)
        if draw.offset is None:
            return values, draw.mask
        return {"data": values, "offset": draw.offset}, {"data": draw.mask, "offset": draw.mask}

    def _paths(self, key: str, sampler: Sampler) -> dict[str, str]:
        """The columns that a sampler takes: by what is left of their paths below its source, ``""`` for the source itself."""
        if isinstance(sampler, PrioritySampler):
            return {}
        assert self._layout is not None
        source = sampler.source or key
        paths = {path[len(source) + 1 :]: path for path in self._layout.leaves if path == source or path.startswith(f"{source}/")}
        if not paths:
            raise ConfigError(f"no column {source!r}; there are {', '.join(self._layout.leaves)}", key=key)
        return paths


def _range(sample_range: object) -> tuple[int, int]:
    if not isinstance(sample_range, (tuple, list)) or len(sample_range) != 2:
        raise ConfigError(f"sample_range is two numbers of rows, not {sample_range!r:.60}", key="sample_range")
    low, high = (check_rows(rows, "sample_range") for rows in sample_range)
    if not low <= 0 < high:
        raise ConfigError(f"sample_range {sample_range} does not include the step itself: low <= 0 < high", key="sample_range")
    return low, high


def _samplers(name: str, samplers: object) -> dict[str, Sampler]:
    if not isinstance(samplers, Mapping):
        raise ConfigError(f"samplers are a dict of Samplers, not {samplers!r:.60}", key=name)
    for key, sampler in samplers.items():
        if not isinstance(sampler, Sampler):
            raise ConfigError(f"{key!r:.60} is a Sampler, not {sampler!r:.60}", key=str(key))
    return dict(samplers)


def _declared(shapes: object) -> Layout:
    if not isinstance(shapes, Sequence) or not all(isinstance(s, DataShape) and isinstance(s.name, str) for s in shapes):
        raise ConfigError(f"data_shapes is a list of DataShapes with names, not {shapes!r:.60}", key="data_shapes")
    leaves = {shape.name: shape.leaf() for shape in shapes}
    names = [f"{name}/" for name in leaves]
    for name in leaves:
        bad = name in (_START, _END) or not all(name.split("/"))
        if bad or sum(other.startswith(f"{name}/") for other in names) > 1 or len(names) != len(shapes):
            raise ConfigError(
                f"{name!r} cannot be a column: it is reserved, no path, there twice, or also a dict", key="data_shapes"
            )
    if not leaves:
        raise ConfigError("no columns; leave data_shapes out to have those of the first step", key="data_shapes")
    return Layout(leaves)


def _step(data: object) -> tuple[dict[str, object], bool, bool]:
    """The leaves of a step, whether it begins a trajectory, and whether it ends one."""
    if not isinstance(data, Mapping):
        raise DataError("", f"a step is a dict of arrays, not a {type(data).__name__}; a QueuedDataStore takes other payloads")
    leaves = named_leaves(data)
    start, end = (flag(name, leaves.pop(name, False)) for name in (_START, _END))
    if not leaves:
        raise DataError("", "a step without a key has nothing to store")
    return leaves, start, end


def _leaf_of(path: str, value: object) -> Leaf:
    array = as_leaf(path, value)
    return Leaf(array.shape, array.dtype)
