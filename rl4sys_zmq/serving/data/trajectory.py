"""A replay buffer of the steps of trajectories. A sample can have windows, later goals and priorities."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.config.options import Check, check_value, instance_of, integer, mapping
from rl4sys_zmq.errors import ConfigError, DataError, StoreEmpty, StoreFileError, config_error
from rl4sys_zmq.replay.layout import ArraySpec, DataShape, StoreLayout, as_leaf, flag
from rl4sys_zmq.replay.priorities import RowPriorities
from rl4sys_zmq.replay.ring import Ids
from rl4sys_zmq.replay.spans import TrajectorySpans
from rl4sys_zmq.serving.data.base import ColumnStore, as_batch, batch_count, leaf_spec, memory_error_as_data_error
from rl4sys_zmq.serving.data.npz import SavedTrajectories, read_npz, write_npz
from rl4sys_zmq.serving.data.samplers import ROWS, PrioritySampler, Sampler, require_numpy
from rl4sys_zmq.values.trees import flatten_names, unflatten_names

Transform = Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]
SAMPLER: Check[Sampler] = instance_of(Sampler)  # type: ignore[type-abstract]
_START, _END = "start_of_trajectory", "end_of_trajectory"
_START_COLUMN = "/start"


@dataclass(frozen=True, slots=True)
class _SampleConfig:
    """A configuration for `TrajectoryBuffer.sample`; `TrajectoryBuffer.register_sample_config` describes the fields."""

    samplers: dict[str, Sampler]
    sample_range: tuple[int, int]
    transform: Transform | None
    priority: PrioritySampler | None


class TrajectoryBuffer(ColumnStore):
    """A replay buffer that keeps the newest `capacity` steps in order. A sample never crosses the end of a trajectory.

    A step is a dict of arrays, which can be nested. `data_shapes` or the first step defines its keys. A trajectory ends in one
    of three ways: with a step whose key ``end_of_trajectory`` is True (`insert` also has this argument), by a call of
    `end_trajectory`, or before a step whose key ``start_of_trajectory`` is True. These two keys are not stored as values.
    `get_latest_data` adds them to the steps, so that a copy of the buffer has the same trajectories, even if steps were lost. A
    sampler of the key ``end_of_trajectory`` returns True for the last step of a trajectory that has ended.

    Only one thread should insert at a time, because the steps of two writers would be mixed in one trajectory. A trajectory that
    is too short is never sampled, but its steps stay in the buffer until they are overwritten.

    Args:
        capacity: Largest number of steps.
        data_shapes: Keys, shapes and dtypes of a step; ``end_of_trajectory`` can be among them. None: those of the first step.
        seed: Seed of the random generator that draws samples.
        min_trajectory_length: Smallest number of stored steps of a trajectory that is sampled. Overwritten steps do not count.
        device: Must be None, because the steps are numpy arrays. The argument exists in agentlace.
        use_jax: Must be False, for the same reason.
        path: Folder to keep the steps on disk. A buffer that is already in the folder is opened, and its last trajectory is
            ended. None: keep the steps in memory.

    Raises:
        ConfigError: If an argument is invalid. The message names the argument.
        StoreFileError: If the folder cannot be used.
    """

    _KIND = "TrajectoryBuffer"

    def __init__(
        self,
        capacity: int,
        data_shapes: Sequence[DataShape] | None = None,
        seed: int | None = None,
        min_trajectory_length: int = 2,
        device: None = None,
        use_jax: bool = False,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        require_numpy(use_jax, device)
        self._min_length = check_value("min_trajectory_length", min_trajectory_length, integer(1))
        declared = None if data_shapes is None else _declared(data_shapes)
        super().__init__(capacity, seed, path)
        self._spans = TrajectorySpans()
        self._ended = True
        self._configs: dict[str, _SampleConfig] = {}
        self._priorities: RowPriorities | None = None
        with self._opening() as stored:
            if stored is not None and declared is not None and declared.leaves != stored.leaves:
                raise StoreFileError(path, "has other columns than data_shapes; use those, or another folder")
            layout = stored or declared
            if layout is not None:
                self._allocate(layout)
                self._find_spans()

    @property
    def size(self) -> int:
        """The number of stored steps."""
        return len(self)

    @property
    def dataset(self) -> dict[str, NDArray[Any]]:
        """The stored values by path, as read-only arrays ``[capacity, ...]`` that later steps overwrite.

        The step with number ``n`` is at index ``n % capacity``. Empty before the first step if there are no `data_shapes`.
        """
        with self._open():
            return {path: self._ring.column(path) for path in (self._layout.leaves if self._layout is not None else ())}

    @property
    def metadata(self) -> dict[str, NDArray[Any]]:
        """The trajectory of each step, under agentlace's names, as new arrays ``[capacity]`` with the indices of `dataset`.

        ``seq_id`` is the number of the step, ``ep_begin`` the first number of its trajectory, ``ep_end`` the last plus one,
        ``trajectory_id`` counts the trajectories from 0, and ``trajectory_begin_flag`` is True for the first step of a
        trajectory. The first three and ``trajectory_id`` are int64. They are -1 for an empty place, and ``ep_end`` is -1 for a
        trajectory that has not ended.
        """
        with self._open():
            held = np.arange(self._ring.begin, self._ring.end)
            starts, ends = self._spans.bounds(self._ring.begin, self._ring.end)
            which = np.searchsorted(starts, held, side="right") - 1
            if len(ends) and not self._ended:
                ends[-1] = -1
            rows = {"seq_id": held, "ep_begin": starts[which], "ep_end": ends[which]}
            rows["trajectory_id"] = self._spans.dropped + which
            columns = {name: np.full(self.capacity, -1, np.int64) for name in rows}
            for name, values in rows.items():
                columns[name][held % self.capacity] = values
            return columns | {"trajectory_begin_flag": (columns["ep_begin"] == columns["seq_id"]) & (columns["seq_id"] >= 0)}

    def register_sample_config(
        self,
        name: str,
        samplers: Mapping[str, Sampler],
        sample_range: tuple[int, int] = (0, 1),
        transform: Transform | None = None,
    ) -> None:
        """Register a configuration for `sample`: the keys of a sample, and the rows for each key.

        An earlier configuration of the same name is replaced.

        Args:
            name: Name of the configuration.
            samplers: For each key of the sample, the sampler that chooses its rows and the key of the steps that is read.
            sample_range: Range of rows around a step: the first offset, and the last offset plus one. A step is only drawn if
                its trajectory has all rows of this range.
            transform: Function that gets the data and the mask of each sample and returns both, changed or not. It runs in the
                thread that calls `sample`.

        Raises:
            ConfigError: If the range is invalid or does not include offset 0, a sampler is invalid, or the key that a sampler
                reads does not exist. Also if there are two `PrioritySampler` objects, or if alpha or epsilon differ from those of
                another configuration of this buffer.
        """
        low, high = _range(sample_range)
        each = check_value(name, samplers, mapping)
        chosen = {key: check_value(key, sampler, SAMPLER) for key, sampler in each.items()}
        prioritised = [sampler for sampler in chosen.values() if isinstance(sampler, PrioritySampler)]
        if len(prioritised) > 1:
            raise ConfigError(f"{name!r} has {len(prioritised)} PrioritySamplers; expected at most one", key=name)
        with self._open():
            if self._layout is not None:
                for key, sampler in chosen.items():
                    self._paths(key, sampler)
            if prioritised:
                mine = prioritised[0].options
                if self._priorities is None:
                    self._priorities = RowPriorities(self._ring, mine)
                elif (theirs := self._priorities.options) != mine:
                    others = f"in the other configs of this buffer {(theirs.alpha, theirs.epsilon)}"
                    raise config_error(name, f"alpha and epsilon are {(mine.alpha, mine.epsilon)}, and {others}")
            self._configs[name] = _SampleConfig(chosen, (low, high), transform, prioritised[0] if prioritised else None)

    def insert(self, data: Mapping[str, Any], end_of_trajectory: bool = False) -> None:
        """Store one step under the next number. The arrays of the step are copied; `data` is not changed.

        Args:
            data: The step.
            end_of_trajectory: True for the last step of its trajectory. The key of the same name in `data` has the same effect.

        Raises:
            DataError: If a key, shape or dtype is not that of the buffer; the message names the key. Nothing was stored.
            StoreFileError: If files cannot be created.
            ConfigError: If there is not enough memory.
            Closed: After `close`.
        """
        self._insert([data], end_of_trajectory)

    def batch_insert(self, batch_data: Sequence[Mapping[str, Any]]) -> None:
        """Store several steps in order. If one is invalid, store none.

        Raises:
            DataError: If a key, shape or dtype is not that of the buffer. The message names the key. Nothing was stored.
            StoreFileError: If files cannot be created.
            ConfigError: If there is not enough memory.
            Closed: After `close`.
        """
        self._insert(batch_data, False)

    def end_trajectory(self) -> None:
        """End the current trajectory: the next step begins a new trajectory. A second call without a new step does nothing."""
        with self._open():
            self._ended = True

    def gap(self) -> None:
        """End the current trajectory, because items were lost and the next step does not follow the last one."""
        self.end_trajectory()

    def sample(
        self, sampler_name: str, batch_size: int, force_indices: object | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draw steps, and return the values that the configuration's samplers select for each step.

        Steps are drawn with replacement, uniformly, or by priority if the configuration has a `PrioritySampler`. Only steps that
        ``sample_range`` and ``min_trajectory_length`` allow are drawn.

        Args:
            sampler_name: Name of a registered configuration.
            batch_size: Number of steps to draw.
            force_indices: Numbers of the steps to use instead of drawn steps, as integers ``[batch]``. `batch_size` is then
                ignored.

        Returns:
            Two dicts, which `transform` can change. The data: for each key of the configuration a new array ``[batch, ...]`` or
            ``[batch, time, ...]``, or a dict of such arrays. The mask: for each key a bool array ``[batch]`` or ``[batch,
            time]``, False where a row outside of the trajectory was replaced; see `SampledRows`.

        Raises:
            StoreEmpty: If no step can be drawn.
            DataError: If a step of `force_indices` is not stored or not allowed, or the batch does not fit in memory.
            ConfigError: If the configuration or a key that a sampler reads does not exist.
            Closed: After `close`.
        """
        config = self._configs.get(sampler_name)
        if config is None:
            raise ConfigError(f"no sample config {sampler_name!r}; registered: {sorted(self._configs)}", key=sampler_name)
        count = batch_count(batch_size) if force_indices is None else 0
        data: dict[str, Any] = {}
        mask: dict[str, Any] = {}
        with self._open(), memory_error_as_data_error(count):
            if self._layout is None:
                raise StoreEmpty("the TrajectoryBuffer is empty")
            anchors, begins, ends = self._anchors(config, count, force_indices)
            for key, sampler in config.samplers.items():
                data[key], mask[key] = self._draw(key, sampler, anchors, begins, ends)
        return (data, mask) if config.transform is None else config.transform(data, mask)

    def update_priorities(self, indices: object, priorities: object) -> int:
        """Set the priorities of steps, for example to the absolute values of their TD errors.

        Args:
            indices: Numbers of the steps, as in ``indices`` of a sample. Steps that were overwritten are skipped.
            priorities: A finite number of at least 0 for each step.

        Returns:
            The number of steps whose priority was set.

        Raises:
            DataError: If the arguments differ in length, or a number or a priority is invalid. No priority was set.
            ConfigError: If no configuration has a `PrioritySampler`.
            Closed: After `close`.
        """
        with self._open():
            if self._priorities is None:
                raise ConfigError("priorities need a sample config with a PrioritySampler; register one", key="priorities")
            return self._priorities.update(as_leaf("indices", indices), as_leaf("priorities", priorities))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all steps to one ``.npz`` file. An existing file is replaced when the new file is complete.

        Priorities and sample configurations are not saved. The steps are copied first, so `insert` does not wait for the disk.

        Raises:
            StoreFileError: If the file cannot be written.
            Closed: After `close`.
        """
        with self._open():
            held = np.arange(self._ring.begin, self._ring.end)
            leaves = self._layout.leaves if self._layout is not None else {}
            saved = SavedTrajectories(
                capacity=self.capacity,
                begin=self._ring.begin,
                min_trajectory_length=self._min_length,
                starts=self._spans.bounds(self._ring.begin, self._ring.end)[0],
                ended=self._ended,
                data={leaf: self._ring.gather(leaf, held) for leaf in leaves},
            )
        write_npz(path, saved)

    @classmethod
    def load(cls, path: str | os.PathLike[str], seed: int | None = None, *, device: None = None, use_jax: bool = False) -> Self:
        """Read a file that `save` wrote, and return a buffer in memory with the same steps and numbers.

        Sample configurations are not in the file; register them for the new buffer.

        Raises:
            StoreFileError: If the file cannot be read, or is not a saved buffer.
            ConfigError: If `seed` is invalid, or `device` or `use_jax` is given.
        """
        require_numpy(use_jax, device)
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
            layout = self._layout or StoreLayout({path: leaf_spec(path, value) for path, value in rows[0].items()})
            blocks = layout.pack(rows)
            if self._layout is None:
                self._allocate(layout)
            blocks[_START_COLUMN] = np.asarray(starts) | np.concatenate([[self._ended], last[:-1]])
            for first in range(0, len(rows), self.capacity):
                piece = {path: block[first : first + self.capacity] for path, block in blocks.items()}
                end, count = self._ring.end, len(piece[_START_COLUMN])
                self._ring.make_room(count)
                self._ring.append(piece, count)
                self._spans.extend(end + np.flatnonzero(piece[_START_COLUMN]))
                self._spans.drop_before(self._ring.begin)
            self._ended = bool(last[-1])

    def _find_spans(self) -> None:
        """Find where the trajectories begin, in the columns that were read from a folder."""
        held = np.arange(self._ring.begin, self._ring.end)
        self._spans.extend(held[self._ring.gather(_START_COLUMN, held) | (held == self._ring.begin)])

    def _columns(self, layout: StoreLayout) -> dict[str, ArraySpec]:
        return {**layout.leaves, _START_COLUMN: ArraySpec((), np.dtype("?"))}

    def _gather(self, ids: Ids, *, gap: bool = False) -> dict[str, NDArray[Any]]:
        leaves = {path: self._ring.gather(path, ids) for path in self._layout.leaves} if self._layout is not None else {}
        start = self._ring.gather(_START_COLUMN, ids)
        start[0] |= gap
        return {**leaves, _START: start, _END: self._ends(ids)}

    def _ends(self, ids: Ids) -> NDArray[np.bool_]:
        """Return a bool for each row: True if it is the last row of a trajectory that has ended."""
        after = np.minimum(ids + 1, self._ring.end - 1)
        return np.where(ids + 1 < self._ring.end, self._ring.gather(_START_COLUMN, after), self._ended)

    def _anchors(self, config: _SampleConfig, count: int, forced: object | None) -> tuple[Ids, Ids, Ids]:
        """Choose the steps of a sample. Return the number of each, the first row of its trajectory, and the last plus one."""
        spans = self._spans.allowed(self._ring.begin, self._ring.end, config.sample_range, self._min_length)
        if forced is not None:
            anchors = self._ring.held("force_indices", forced)
            refused = anchors[~spans.allow(anchors)]
            if refused.size:
                rule = f"sample_range {config.sample_range} and min_trajectory_length {self._min_length}"
                raise DataError("force_indices", f"{refused.size} steps that {rule} do not allow, such as {refused[0]}")
        elif not spans.total:
            raise StoreEmpty("no trajectory in the TrajectoryBuffer is long enough")
        elif config.priority is not None and self._priorities is not None:
            anchors = self._priorities.draw(count, self._rng, spans)
        else:
            anchors = spans.draw(count, self._rng)
        return anchors, *spans.bounds_of(anchors)

    def _draw(self, key: str, sampler: Sampler, anchors: Ids, begins: Ids, ends: Ids) -> tuple[Any, Any]:
        if isinstance(sampler, PrioritySampler):
            assert self._priorities is not None
            masses = self._priorities.masses(anchors)
            return {"indices": anchors, "weights": sampler.weights(masses)}, np.ones(anchors.shape, np.bool_)
        draw = sampler.draw(anchors, begins, ends, self._rng)
        wide = (-1,) + (1,) * (draw.ids.ndim - 1)
        if not np.all((draw.ids >= begins.reshape(wide)) & (draw.ids < ends.reshape(wide))):
            raise ConfigError(f"{type(sampler).__name__} chose rows outside the trajectory", key=key)
        paths = self._paths(key, sampler)
        if paths == {"": _END}:
            return self._ends(draw.ids), draw.mask
        data = unflatten_names({inner: self._ring.gather(path, draw.ids) for inner, path in paths.items()})
        values = data.get("", data)
        if draw.offset is None:
            return values, draw.mask
        return {"data": values, "offset": draw.offset}, {"data": draw.mask, "offset": draw.mask}

    def _paths(self, key: str, sampler: Sampler) -> dict[str, str]:
        """Return the columns that a sampler reads, by path below the sampler's source key. The key itself has the path ""."""
        if isinstance(sampler, PrioritySampler):
            return {}
        assert self._layout is not None
        source = sampler.source or key
        if source == _END:
            return {"": _END}
        paths = {path[len(source) + 1 :]: path for path in self._layout.leaves if path == source or path.startswith(f"{source}/")}
        if not paths:
            raise ConfigError(f"no column {source!r}; the columns are: {', '.join(self._layout.leaves)}", key=key)
        return paths


def _range(sample_range: object) -> tuple[int, int]:
    if not isinstance(sample_range, (tuple, list)) or len(sample_range) != 2:
        raise ConfigError(f"sample_range must be two numbers of rows, not {sample_range!r:.60}", key="sample_range")
    low, high = (check_value("sample_range", rows, ROWS) for rows in sample_range)
    if not low <= 0 < high:
        raise config_error("sample_range", f"{sample_range} does not include the step itself; expected begin <= 0 < end")
    return low, high


def _declared(shapes: object) -> StoreLayout:
    if not isinstance(shapes, Sequence) or not all(isinstance(s, DataShape) and isinstance(s.name, str) for s in shapes):
        raise ConfigError(f"data_shapes must be a list of DataShapes with names, not {shapes!r:.60}", key="data_shapes")
    shapes = [shape for shape in shapes if shape.name != _END]
    leaves = {shape.name: shape.leaf() for shape in shapes}
    names = [f"{name}/" for name in leaves]
    for name in leaves:
        bad = name == _START or not all(name.split("/"))
        if bad or sum(other.startswith(f"{name}/") for other in names) > 1 or len(names) != len(shapes):
            problem = f"{name!r} cannot be a column: it is reserved, not a path, given twice, or also a dict"
            raise config_error("data_shapes", problem)
    if not leaves:
        raise ConfigError("data_shapes is empty; omit it to use the columns of the first step", key="data_shapes")
    return StoreLayout(leaves)


def _step(data: object) -> tuple[dict[str, object], bool, bool]:
    """Check a step. Return its values by path, and two bools: True if the step begins, and if it ends, a trajectory."""
    if not isinstance(data, Mapping):
        problem = f"a step must be a dict of arrays, not a {type(data).__name__}; use a QueuedDataStore for other payloads"
        raise DataError("", problem)
    leaves = flatten_names(data)
    start, end = (flag(name, leaves.pop(name, False)) for name in (_START, _END))
    if not leaves:
        raise DataError("", "the step has no keys, so there is nothing to store")
    return leaves, start, end
