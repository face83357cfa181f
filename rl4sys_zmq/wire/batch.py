"""The segments of a `Submit`, read all at once: heads as one array, columns as views into the frames. Nothing is copied.

What is wrong with the bytes costs the message; what is wrong with one segment's numbers or layout costs that segment.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.values import DiscreteSpace, Segment, Space
from rl4sys_zmq.wire.layout import LETTERS, NAMES, Column, Layout, action_dtype, parse_layout, wanted_layouts
from rl4sys_zmq.wire.messages import Frame, Submit
from rl4sys_zmq.wire.segments import ALIGN, HEAD, HEAD_BYTES, LARGE_BYTES, MAX_LAYOUTS, Flag, head_struct

__all__ = ["Batch", "SegmentSchema", "read_heads", "read_submit"]

_ENDED = Flag.TERMINATED | Flag.TRUNCATED
_ODD_FLAGS = [
    flags >= 32 or flags & 7 not in (0, 1, 2, 4) or bool(flags & Flag.RETURN and not flags & _ENDED) for flags in range(256)
]
_ODD = np.array(_ODD_FLAGS)
"""By the flags: they contradict each other, or are none of ours."""
FEW = 8
"""So many heads are looked at faster one by one."""

_NEVER = (1 << 64) - 1

Head = tuple[int, int, int, int, float, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class SegmentSchema:
    """What a client's segments must look like: its spaces and the longest segment allowed, in steps."""

    observation_space: Space
    action_space: Space
    max_steps: int
    layouts: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layouts", wanted_layouts(self.observation_space, self.action_space))

    def check(self, segment: Segment) -> ProtocolError | None:
        """The rule that a segment's columns break, or None. Content (finiteness) is not looked at here.

        `Batch.errors` says the same of what has come in a message.
        """
        steps = segment.steps
        rows = steps + (0 if segment.terminated else 1)
        if not 1 <= steps <= self.max_steps:
            return self._too_long(steps)
        act = self.action_space
        wanted: list[tuple[str, NDArray[Any], tuple[int, ...], str]] = [
            ("observations", segment.observations, (rows, *self.observation_space.shape), self.observation_space.dtype),
            ("actions", segment.actions, (steps, *act.shape), action_dtype(act)),
            ("rewards", segment.rewards, (steps,), "<f4"),
            ("log_probs", segment.log_probs, (steps,), "<f4"),
            ("versions", segment.versions, (steps,), "<u8"),
        ]
        if segment.masks is not None:
            if not isinstance(act, DiscreteSpace):
                return ProtocolError(Refusal.SPEC, "masks for a continuous action space")
            wanted.append(("masks", segment.masks, (rows, act.n), "|b1"))
        for name, column, shape, dtype in wanted:
            if column.shape != shape or column.dtype.str != dtype:
                return ProtocolError(Refusal.SPEC, f"{name} are {column.dtype.str} {column.shape}, not {dtype} {shape}")
        return None

    def _too_long(self, steps: int) -> ProtocolError:
        return ProtocolError(Refusal.RANGE, f"a segment of {steps} steps; 1 to {self.max_steps} are allowed")

    def check_layout(self, layout: Layout) -> ProtocolError | None:
        """Why segments of this layout do not fit, or None."""
        if layout.text in self.layouts:
            return None
        if len(layout.columns) > 5 and not isinstance(self.action_space, DiscreteSpace):
            return ProtocolError(Refusal.SPEC, "masks for a continuous action space")
        wanted = parse_layout(self.layouts[-1])
        for column, own in zip(layout.columns, wanted.columns, strict=False):
            if column != own:
                said, ours = (f"{c.dtype.str} with rows of {c.row}" for c in (column, own))
                return ProtocolError(Refusal.SPEC, f"{NAMES[column.letter]} are {said}, not {ours}")
        return ProtocolError(Refusal.SPEC, f"columns {layout.text:.80}, not {wanted.text:.80}")


@dataclass(slots=True)
class _Views:
    """One column of all segments of a layout.

    Attributes:
        column: which.
        together: the rows of all segments but the large ones, ``[rows, *row]``.
        starts: where each segment's rows begin in it, and where the last ones end.
        large: the columns that are frames of their own, by the segment's place in the group.
    """

    column: Column
    together: NDArray[Any]
    starts: list[int]
    large: dict[int, NDArray[Any]]

    def each(self) -> list[NDArray[Any]]:
        """The column of each segment."""
        data = self.together
        views = [data[a:b] for a, b in itertools.pairwise(self.starts)]
        for place, own in self.large.items():
            views[place] = own
        return views

    def arrays(self) -> list[NDArray[Any]]:
        """Everything, in as few arrays as possible."""
        return [self.together, *self.large.values()] if self.large else [self.together]


@dataclass(slots=True)
class _Group:
    """The segments of one layout.

    Attributes:
        layout: of all of them.
        members: their places in the message, ascending.
        columns: in the order of the layout.
    """

    layout: Layout
    members: NDArray[np.int64]
    columns: list[_Views]


class Batch:
    """The segments of one message that holds together.

    Attributes:
        first_seq: the number of the first.
        heads: of all of them.
        steps: int64, how many decisions each claims to hold: as many as there are rows.
    """

    def __init__(self, message: Submit) -> None:
        """Reads a message.

        Raises:
            ProtocolError: when it does not hold together, so that no segment in it can be trusted.
        """
        self.first_seq = message.first_seq
        self.heads = heads = read_heads(message)
        if not message.body:
            raise ProtocolError(Refusal.FRAMES, "segments without a body")
        texts = message.layouts
        if not 0 < len(texts) <= min(len(heads), MAX_LAYOUTS) or not all(type(text) is str for text in texts):
            raise ProtocolError(Refusal.MALFORMED, f"{len(heads)} segments with the layouts {texts!r:.80}")
        layouts = [parse_layout(text) for text in texts]
        self.steps: NDArray[np.int64] = heads["steps"].astype(np.int64)
        self._raw = message.heads
        self._groups = _Reader(heads, self.steps, layouts, message.body).groups

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def checks(self) -> NDArray[np.uint64]:
        """What tells each segment from any other."""
        checks: NDArray[np.uint64] = self.heads["check"]
        return checks

    def errors(self, schema: SegmentSchema | None = None) -> dict[int, ProtocolError]:
        """Which segments can't be taken, by their places in the message, and why; without a schema, for their numbers alone."""
        longest = schema.max_steps if schema is not None else None
        places = range(len(self)) if len(self) <= FEW else self._suspicious(longest)
        heads: dict[int, Head] = {place: head_struct.unpack_from(self._raw, place * HEAD_BYTES) for place in places}
        out = {place: error for place, head in heads.items() if (error := _head_error(head, longest)) is not None}
        for group in self._groups if schema is not None else ():
            error = schema.check_layout(group.layout) if schema is not None else None
            if error is not None:
                out = {**dict.fromkeys(group.members.tolist(), error), **out}
        return dict(sorted(out.items())) if len(out) > 1 else out

    def _suspicious(self, max_steps: int | None) -> list[int]:
        """The places of all heads that break a rule of `_head_error`; it has the last word."""
        heads, steps = self.heads, self.steps
        flags, lengths = heads["flags"], heads["episode_length"]
        least = np.where(flags & _ENDED, steps, 0)
        bad = _ODD[flags] | (heads["reserved"] != 0) | (lengths < least) | ((lengths != 0) & (least == 0))
        if max_steps is not None:
            bad |= (steps < 1) | (steps > max_steps)
        return np.flatnonzero(bad).tolist() if bad.any() else []

    def columns(self, letter: str) -> Iterator[NDArray[Any]]:
        """The rows of one column of all segments, in as few arrays as possible."""
        for group in self._groups:
            for views in group.columns:
                if views.column.letter == letter:
                    yield from views.arrays()

    def oldest(self, generation: int, first_version: int) -> NDArray[np.int64]:
        """The least version among each segment's steps; of earlier generations it counts as `first_version` at most.

        For segments none of whose versions is from the future.
        """
        found = self.heads["version"].copy()
        for group in self._groups:
            mixed = np.flatnonzero(self.heads["flags"][group.members] & Flag.VERSIONS)
            if len(mixed):
                sent = group.columns[4].each()
                for place in mixed.tolist():
                    found[group.members[place]] = sent[place].min(initial=_NEVER)
        first = np.uint64(first_version)
        return np.where(self.heads["generation"] == generation, found, np.minimum(found, first)).astype(np.int64)

    def returns(self, places: Sequence[int]) -> list[tuple[int, float, int]]:
        """Of the segments at these places, those with an episode's return: which of them, the return, the episode's length."""
        heads = self.heads[places]
        which = np.flatnonzero(heads["flags"] & Flag.RETURN)
        if not len(which):
            return []
        return list(
            zip(which.tolist(), heads["episode_return"][which].tolist(), heads["episode_length"][which].tolist(), strict=True)
        )

    def segments(self) -> list[Segment]:
        """All segments, as read-only views, those among them whose numbers are out of range."""
        heads: Iterator[Head] = head_struct.iter_unpack(self._raw)
        if len(self._groups) == 1:
            return self._segments(self._groups[0], heads)
        every = list(heads)
        out: dict[int, Segment] = {}
        for group in self._groups:
            members = group.members.tolist()
            out.update(zip(members, self._segments(group, (every[place] for place in members)), strict=True))
        return [out[place] for place in range(len(self))]

    def _segments(self, group: _Group, heads: Iterator[Head]) -> list[Segment]:
        observations, actions, rewards, log_probs, _, *masks = (views.each() for views in group.columns)
        forbidding: Sequence[NDArray[Any] | None] = masks[0] if masks else [None] * len(group.members)
        rows = zip(observations, actions, rewards, log_probs, self._versions(group), forbidding, heads, strict=True)
        out = []
        for o, a, r, p, v, m, (generation, episode, index, _, total, length, _, _, flags, _, _) in rows:
            ended = flags & _ENDED
            out.append(
                Segment(
                    o,
                    a,
                    r,
                    p,
                    v,
                    m,
                    generation,
                    episode,
                    index,
                    flags & 1 != 0,
                    flags & 2 != 0,
                    flags & 4 != 0,
                    total if flags & 8 else None,
                    length if ended else None,
                )
            )
        return out

    def _versions(self, group: _Group) -> list[NDArray[np.uint64]]:
        """The column of versions of each segment, written out where one stands for all steps."""
        heads, steps = self.heads[group.members], self.steps[group.members]
        every = np.repeat(heads["version"], steps)
        every.flags.writeable = False
        ends = np.cumsum(steps).tolist()
        views = [every[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        mixed = heads["flags"] & Flag.VERSIONS != 0
        if mixed.any():
            sent = group.columns[4].each()
            for place in np.flatnonzero(mixed).tolist():
                views[place] = sent[place]
        return views


def read_heads(message: Submit) -> NDArray[Any]:
    """The heads of a message, which may say anything: ``[count]`` of `HEAD`.

    Raises:
        ProtocolError: when they are not as many as the message says.
    """
    size = len(message.heads)
    if not size or size != message.count * HEAD_BYTES:
        raise ProtocolError(Refusal.MALFORMED, f"{size} bytes of heads for {message.count} segments of {HEAD_BYTES}")
    return np.frombuffer(message.heads, HEAD)


def read_submit(message: Submit) -> list[Segment | ProtocolError]:
    """The segments of a message, as read-only views into its frames; in the place of one that is out of range, its error.

    Raises:
        ProtocolError: when the message does not hold together, so that no segment in it can be trusted.
    """
    batch = Batch(message)
    errors = batch.errors()
    return [errors.get(place, segment) for place, segment in enumerate(batch.segments())]


def _head_error(head: Head, max_steps: int | None) -> ProtocolError | None:
    """The rule that a head breaks, or None."""
    _, _, _, _, _, length, _, steps, flags, _, reserved = head
    if _ODD_FLAGS[flags] or reserved:
        words = f"a segment with the flags {flags:#04x} and {reserved} where 0 must be"
    elif flags & _ENDED and length < steps:
        words = f"an episode of {length} steps that ends with a segment of {steps}"
    elif length and not flags & _ENDED:
        words = f"a segment that does not end its episode, of {length} steps"
    elif max_steps is not None and not 1 <= steps <= max_steps:
        words = f"a segment of {steps} steps; 1 to {max_steps} are allowed"
    else:
        return None
    return ProtocolError(Refusal.RANGE, words)


class _Rows:
    """How many rows a column has.

    Attributes:
        each: in each segment.
        most: in any.
        starts: where each segment's begin when they lie side by side, and where the last end.
    """

    __slots__ = ("each", "most", "starts")

    def __init__(self, each: NDArray[np.int64]) -> None:
        self.each = each
        self.starts: list[int] = [0, *each.cumsum().tolist()]
        self.most = int(each.max(initial=0))


_COUNTED = {"o": 1, "a": 0, "r": 0, "l": 0, "v": 2, "m": 1}
"""Which of the counts of rows a column goes by: the steps, the observations, or the steps of those that say all versions."""


class _Reader:
    """Finds the columns in the body."""

    def __init__(self, heads: NDArray[Any], steps: NDArray[np.int64], layouts: list[Layout], body: Sequence[Frame]) -> None:
        self._blob, self._large = body[0], list(body[1:])
        self._at, self._limit = 0, sum(map(len, body))
        places = heads["layout"]
        if len(layouts) > 1 or places.any():
            if int(places.max()) >= len(layouts):
                raise ProtocolError(Refusal.MALFORMED, f"a segment of layout {int(places.max())}, {len(layouts)} were described")
            members = [np.flatnonzero(places == k) for k in range(len(layouts))]
        else:
            members = [np.arange(len(heads))]
        flags = heads["flags"]
        counts = steps, steps + (flags & Flag.TERMINATED == 0), np.where(flags & Flag.VERSIONS, steps, 0)
        sized = [tuple(_Rows(count if len(layouts) == 1 else count[m]) for count in counts) for m in members]
        self._frames = self._find_large(layouts, members, sized)
        self.groups = [
            _Group(layout, m, [self._column(c, rows[_COUNTED[c.letter]], m) for c in layout.columns])
            for layout, m, rows in zip(layouts, members, sized, strict=True)
        ]
        if self._at != len(self._blob) or len(self._frames) != len(self._large):
            raise ProtocolError(Refusal.SHAPE, "bytes that belong to no segment")

    def _find_large(
        self, layouts: list[Layout], members: list[NDArray[np.int64]], sized: list[tuple[_Rows, ...]]
    ) -> dict[tuple[int, int], int]:
        """Gives the frames behind the first to the large columns: segment by segment, in the order of the columns."""
        found = []
        for layout, places, rows in zip(layouts, members, sized, strict=True):
            for position, column in enumerate(layout.columns):
                counted = rows[_COUNTED[column.letter]]
                most = counted.most * column.row_bytes
                if most > self._limit:
                    raise ProtocolError(Refusal.SHAPE, f"column {column.letter} needs {most} bytes, the body has {self._limit}")
                if most >= LARGE_BYTES:
                    large = places[counted.each * column.row_bytes >= LARGE_BYTES]
                    found += [(place, position) for place in large.tolist()]
        return {key: n for n, key in enumerate(sorted(found))}

    def _column(self, column: Column, rows: _Rows, members: NDArray[np.int64]) -> _Views:
        own: dict[int, NDArray[Any]] = {}
        starts = rows.starts
        if rows.most * column.row_bytes >= LARGE_BYTES:
            small = rows.each.copy()
            for place in np.flatnonzero(small * column.row_bytes >= LARGE_BYTES).tolist():
                index = self._frames[int(members[place]), LETTERS.index(column.letter)]
                frame = self._take(index, int(small[place]) * column.row_bytes, column)
                own[place] = np.frombuffer(frame, column.dtype).reshape(-1, *column.row)
                small[place] = 0
            starts = _Rows(small).starts
        size = starts[-1] * column.row_bytes
        if self._at + size > len(self._blob):
            raise ProtocolError(Refusal.SHAPE, f"column {column.letter} ends beyond its frame")
        blob, dtype, count = self._blob, column.dtype, size // column.dtype.itemsize
        together = np.frombuffer(blob, dtype, count, self._at) if count else np.empty(0, dtype)
        self._at += size + (-size % ALIGN)
        return _Views(column, together.reshape(-1, *column.row) if column.row else together, starts, own)

    def _take(self, index: int, size: int, column: Column) -> Frame:
        frame = self._large[index] if index < len(self._large) else b""
        if len(frame) != size:
            raise ProtocolError(Refusal.SHAPE, f"column {column.letter} needs {size} bytes, its frame has {len(frame)}")
        return frame
