"""A reader for all segments in a `Submit` at once.

The numbers of the segments (their heads) become one array, and the columns views into the received frames, so nothing is
copied. If the bytes are malformed, the whole message is refused. If one segment has invalid values, only that segment is
refused. Images are decoded when columns or segments are requested, which the gateway never does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq import native
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.images import NEEDS_PILLOW, BadImage, has_pillow, image_size
from rl4sys_zmq.values import NO_EXTRAS, Segment
from rl4sys_zmq.values.observations import SpaceLeaves
from rl4sys_zmq.values.segment import segment_of
from rl4sys_zmq.values.trees import Structure, Tree, unflatten_each
from rl4sys_zmq.wire.codec import decode
from rl4sys_zmq.wire.coding import BodyFrame, EncodedImages, plain_body
from rl4sys_zmq.wire.layout import ColumnLayout, SegmentLayout, SegmentSchema, parse_layout
from rl4sys_zmq.wire.messages import AnyBytes, Frame, Submit
from rl4sys_zmq.wire.segments import ALIGN, HEAD, HEAD_BYTES, LARGE_BYTES, LAYOUT_AT, MAX_LAYOUTS, SegmentFlag, head_struct

_ENDED = SegmentFlag.TERMINATED | SegmentFlag.TRUNCATED
_ODD_FLAGS = [
    flags >= 64
    or flags & 7 not in (0, 1, 2, 4)
    or bool(flags & SegmentFlag.RETURN and not flags & _ENDED)
    or bool(flags & SegmentFlag.EVALUATION and not flags & SegmentFlag.RETURN)
    for flags in range(256)
]
"""For each value of ``flags`` in a head: True if its bits contradict each other or are unknown."""


@dataclass(slots=True)
class ColumnRows:
    """The rows of one column, for all segments of a message that have the same layout.

    Attributes:
        together: The rows in the message's first frame, one segment after the other, ``[rows, *row]``.
        starts: Index in `together` of the first row of each segment, and at the end the number of rows in `together`.
        large: The rows that have a frame of their own, by the segment's index in its `SameLayoutSegments`.
        coded: The images that were sent as files, by the same index. `decode` adds their pixels to `large`.
    """

    column: ColumnLayout
    together: NDArray[Any]
    starts: list[int]
    large: dict[int, NDArray[Any]]
    coded: dict[int, EncodedImages]

    def decode(self) -> dict[int, str]:
        """Decode the files in `coded` into `large`. Return an error text for each segment with a damaged file, by its index."""
        undecodable = {}
        for place, images in self.coded.items():
            try:
                pixels = images.decode(self.column.row, self.column.row_bytes)
            except BadImage as exc:
                undecodable[place] = str(exc)
                pixels = np.zeros((len(images) // self.column.row_bytes, *self.column.row), np.uint8)
            pixels.flags.writeable = False
            self.large[place] = pixels
        return undecodable

    def each(self) -> list[NDArray[Any]]:
        """Return the rows of each segment, as one array for each."""
        data = self.together
        views = [data[a:b] for a, b in itertools.pairwise(self.starts)]
        for place, own in self.large.items():
            views[place] = own
        return views


class RowCounts:
    """The number of rows of one column, for each segment with the same layout.

    Attributes:
        each: For each segment, its number of rows.
        starts: For each segment, the number of rows of all segments before it; at the end, the number of rows of all segments.
        most: Largest number of rows of one segment.
    """

    __slots__ = ("each", "most", "starts")

    def __init__(self, each: list[int]) -> None:
        self.each = each
        self.starts = [0, *itertools.accumulate(each)]
        self.most = max(each, default=0)


class SameLayoutSegments:
    """The segments of a message that have the same layout, with their columns. `members` are their indices in the message."""

    __slots__ = ("_rows", "columns", "layout", "members")

    def __init__(self, layout: SegmentLayout, members: list[int], steps: list[int], flags: list[int]) -> None:
        self.layout, self.members = layout, members
        self.columns: list[ColumnRows] = []
        terminated, versions = SegmentFlag.TERMINATED, SegmentFlag.VERSIONS
        per_step = RowCounts(steps)
        per_observation = RowCounts([count if flag & terminated else count + 1 for count, flag in zip(steps, flags, strict=True)])
        by_letter = {
            "o": per_observation,
            "m": per_observation,
            "v": RowCounts([count if flag & versions else 0 for count, flag in zip(steps, flags, strict=True)]),
        }
        if layout.columns[-1].letter == "i":
            by_letter["i"] = RowCounts([1] * len(steps))
        self._rows = [by_letter.get(column.letter, per_step) for column in layout.columns]

    def large(self, limit: int) -> Iterator[tuple[int, int]]:
        """Yield the index of the segment and the index of the column for each column of a segment that has a frame of its own.

        Raise ProtocolError if a column needs more than `limit` bytes, the size of the message's body.
        """
        for position, (column, rows) in enumerate(zip(self.layout.columns, self._rows, strict=True)):
            most = rows.most * column.row_bytes
            if most > limit:
                raise ProtocolError(RefusalReason.SHAPE, f"column {column.letter} needs {most} bytes; the body has {limit}")
            if most >= LARGE_BYTES:
                counted = zip(self.members, rows.each, strict=True)
                yield from ((place, position) for place, count in counted if count * column.row_bytes >= LARGE_BYTES)

    def read(self, blob: Frame, at: int, frames: Mapping[tuple[int, int], BodyFrame]) -> int:
        """Read the columns: the small ones in `blob`, the first frame, from the offset `at` on; the large ones in `frames`.

        The keys of `frames` are those that `large` yields. Return the offset in `blob` after the last column.
        """
        for position, (column, rows) in enumerate(zip(self.layout.columns, self._rows, strict=True)):
            own: dict[int, NDArray[Any]] = {}
            coded: dict[int, EncodedImages] = {}
            starts = rows.starts
            if rows.most * column.row_bytes >= LARGE_BYTES:
                small = rows.each.copy()
                for index, count in enumerate(rows.each):
                    if count * column.row_bytes < LARGE_BYTES:
                        continue
                    small[index] = 0
                    frame = frames.get((self.members[index], position), b"")
                    self._check_frame(frame, count * column.row_bytes, column)
                    if isinstance(frame, EncodedImages):
                        coded[index] = frame
                    else:
                        own[index] = np.frombuffer(frame, column.dtype).reshape(-1, *column.row)
                starts = RowCounts(small).starts
            size = starts[-1] * column.row_bytes
            if at + size > len(blob):
                raise ProtocolError(RefusalReason.SHAPE, f"column {column.letter} ends beyond its frame")
            dtype, values = column.dtype, size // column.dtype.itemsize
            together = np.frombuffer(blob, dtype, values, at) if values else np.empty(0, dtype)
            at += size + (-size % ALIGN)
            self.columns.append(
                ColumnRows(column, together.reshape(-1, *column.row) if column.row else together, starts, own, coded)
            )
        return at

    def _check_frame(self, frame: BodyFrame, size: int, column: ColumnLayout) -> None:
        if len(frame) != size:
            raise ProtocolError(RefusalReason.SHAPE, f"column {column.letter} needs {size} bytes; its frame has {len(frame)}")
        single = self.layout.leaves == 1 and column.letter == "o"
        if isinstance(frame, EncodedImages) and not (single and column.dtype == np.uint8 and image_size(column.row) is not None):
            raise ProtocolError(
                RefusalReason.SHAPE, f"images as column {column.letter} of {column.dtype.str} with rows of {column.row}"
            )


def _read_body(
    heads: NDArray[Any], steps: list[int], layouts: list[SegmentLayout], body: Sequence[BodyFrame]
) -> list[SameLayoutSegments]:
    """Return the segments of a body, in one object for each layout.

    The frames of large columns are in the order of the segments, and for one segment in the order of its columns.
    """
    places: list[int] = heads["layout"].tolist()
    if max(places) >= len(layouts):
        raise ProtocolError(RefusalReason.MALFORMED, f"a segment of layout {max(places)}; the message has {len(layouts)}")
    flags: list[int] = heads["flags"].tolist()
    if len(layouts) == 1:
        groups = [SameLayoutSegments(layouts[0], list(range(len(places))), steps, flags)]
    else:
        members: list[list[int]] = [[] for _ in layouts]
        for place, index in enumerate(places):
            members[index].append(place)
        groups = [
            SameLayoutSegments(layout, own, [steps[place] for place in own], [flags[place] for place in own])
            for layout, own in zip(layouts, members, strict=True)
        ]
    blob, *large = body
    assert not isinstance(blob, EncodedImages)
    limit, at = sum(map(len, body)), 0
    keys = sorted(key for group in groups for key in group.large(limit))
    frames = dict(zip(keys, large, strict=False))
    for group in groups:
        at = group.read(blob, at, frames)
    if at != len(blob) or len(keys) != len(large):
        raise ProtocolError(RefusalReason.SHAPE, "the body has bytes that belong to no segment")
    return groups


class SegmentBatchReader:
    """The segments in one `Submit`. Methods identify a segment by its index in the message.

    Attributes:
        schema: The columns that the segments should have; None if unknown. It can be replaced.
        first_seq: Sequence number of the first segment.
        steps: Number of steps of each segment.
        checks: The checksum (xxh3-64) of each segment. It shows if two segments with the same sequence number are
            equal.
    """

    def __init__(self, message: Submit, schema: SegmentSchema | None = None) -> None:
        """Read the heads, and find the columns in the body.

        Args:
            message: The message with the segments.
            schema: The columns that the segments should have. None: nested observations and actions become flat tuples of
                arrays, and columns get the default names of `SegmentLayout.names`.

        Raises:
            ProtocolError: If the message is malformed, so that none of its segments can be trusted.
        """
        self.first_seq = message.first_seq
        self.schema = schema
        self._message = message
        self._undecodable: dict[int, str] | None = None
        self._known_heads: NDArray[Any] | None = None
        self._known_groups: list[SameLayoutSegments] | None = None
        self.steps: list[int]
        self.checks: list[int]
        if message.checked is not None:
            self.steps, self.checks = message.checked
        else:
            self.steps, self.checks = self.heads["steps"].tolist(), self.heads["check"].tolist()
            self._known_groups = self._read_groups()

    def _read_groups(self) -> list[SameLayoutSegments]:
        message, count = self._message, len(self.steps)
        if not message.body:
            raise ProtocolError(RefusalReason.FRAMES, "segments without a body")
        texts = message.layouts
        if not 0 < len(texts) <= min(count, MAX_LAYOUTS) or not all(type(text) is str for text in texts):
            raise ProtocolError(RefusalReason.MALFORMED, f"{count} segments with the layouts {texts!r:.80}")
        return _read_body(self.heads, self.steps, [parse_layout(text) for text in texts], plain_body(message))

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def heads(self) -> NDArray[Any]:
        """The heads of all segments, one row of the dtype `HEAD` for each. A head has the numbers of a segment."""
        if self._known_heads is None:
            self._known_heads = read_heads(self._message)
        return self._known_heads

    @property
    def _groups(self) -> list[SameLayoutSegments]:
        if self._known_groups is None:
            self._known_groups = self._read_groups()
        return self._known_groups

    @property
    def _raw(self) -> bytes:
        return self._message.heads

    @property
    def layout(self) -> str:
        """The layout of the first segments, as text."""
        return str(self._message.layouts[0])

    @property
    def is_simple(self) -> bool:
        """True if all segments have one layout, and all columns are in the first frame of the body."""
        if self._message.checked is not None:
            return True
        return len(self._groups) == 1 and not any(views.large or views.coded for views in self._groups[0].columns)

    @classmethod
    def join(cls, batches: Sequence[SegmentBatchReader]) -> SegmentBatchReader:
        """Return a reader for the segments of several readers. These are simple, have one layout, and follow each other."""
        first, each_heads = batches[0], [batch._raw for batch in batches]
        compiled = native.load()
        if compiled is not None:
            blob = compiled.join_bodies(first.layout, each_heads, [batch._message.body[0] for batch in batches])
        else:
            small: list[bytes] = []
            for views in zip(*(batch._groups[0].columns for batch in batches), strict=True):
                data = b"".join([one.together for one in views])
                small += (data, bytes(-len(data) % ALIGN))
            blob = b"".join(small)
        heads = AnyBytes(b"".join(each_heads))
        return cls(Submit(first.first_seq, len(heads) // HEAD_BYTES, 0, [first.layout], heads, (blob,)))

    def errors(self, schema: SegmentSchema | None = None) -> dict[int, ProtocolError]:
        """Return the error of each segment that must be refused, by index. Without a schema, columns are not checked."""
        if self._message.checked is not None and schema is not None and max(self.steps) <= schema.max_steps:
            return self.layout_errors(schema)  # the heads are sound
        longest = schema.max_steps if schema is not None else math.inf
        least = 1 if schema is not None else 0
        heads = self.heads
        fields = (heads[name].tolist() for name in ("flags", "reserved", "episode_length"))
        out = {
            place: _head_error(flags, reserved, length, steps, longest)
            for place, (flags, reserved, length, steps) in enumerate(zip(*fields, self.steps, strict=True))
            if _ODD_FLAGS[flags] or reserved or (length < steps if flags & _ENDED else length) or not least <= steps <= longest
        }
        if schema is not None:
            out = {**self.layout_errors(schema), **out}
        return dict(sorted(out.items())) if len(out) > 1 else out

    def layout_errors(self, schema: SegmentSchema) -> dict[int, ProtocolError]:
        """Return an error for each segment whose columns do not fit the schema, by index."""
        if self._message.checked is not None and self.layout in schema.layouts:
            return {}
        checked = ((group.members, schema.check(group.layout)) for group in self._groups)
        return {place: error for members, error in checked if error is not None for place in members}

    @property
    def has_images(self) -> bool:
        """True if the message contains observations as image files."""
        return self._message.checked is None and any(group.columns[0].coded for group in self._groups)

    def decode_images(self) -> dict[int, str]:
        """Decode all image files, at the first call. `columns` and `segments` call this method first.

        Returns:
            The reason for each segment with damaged images, by index. The observations of these segments are all 0.

        Raises:
            ProtocolError: ``feature`` if there are images and Pillow is not installed.
        """
        if self._undecodable is None:
            if self.has_images and not has_pillow():
                raise ProtocolError(RefusalReason.FEATURE, NEEDS_PILLOW)
            decoded = ((group, group.columns[0].decode()) for group in self._groups)
            self._undecodable = {group.members[place]: why for group, bad in decoded for place, why in bad.items()}
        return self._undecodable

    def release_images(self) -> None:
        """Free the memory of the decoded images, which `decode_images` can decode again."""
        self._undecodable = None
        for group in self._groups:
            for place in group.columns[0].coded:
                group.columns[0].large.pop(place, None)

    def alone(self, place: int) -> Submit:
        """Return a new message with only the segment at index `place`. Its images stay files. Its other columns are not
        compressed.
        """
        group = next(group for group in self._groups if place in group.members)
        at = group.members.index(place)
        head = bytearray(self._raw[place * HEAD_BYTES : (place + 1) * HEAD_BYTES])
        head[LAYOUT_AT] = 0
        small: list[bytes] = []
        parts: list[tuple[Frame, list[int]]] = []
        for views in group.columns:
            if (images := views.coded.get(at)) is not None:
                parts.append((images.frame, images.numbers))
                continue
            data = views.each()[at].tobytes()
            if at in views.large:
                parts.append((data, [len(data), len(data), 0]))
            else:
                small += (data, bytes(-len(data) % ALIGN))
        blob = b"".join(small)
        body = (blob, *(frame for frame, _ in parts))
        codings = [[len(blob), len(blob), 0], *(numbers for _, numbers in parts)] if group.columns[0].coded.get(at) else []
        return Submit(self.first_seq + place, 1, 0, [group.layout.text], AnyBytes(bytes(head)), body, codings)

    def columns(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield a column's name and an array of its rows, for the rows of many segments at once. Names can occur repeatedly."""
        self.decode_images()
        for group in self._groups:
            for name, views in zip(group.layout.names(self.schema), group.columns, strict=True):
                for array in (views.together, *views.large.values()):
                    yield name, array

    def oldest(self, generation: int, first_version: int) -> list[int]:
        """Return the lowest policy version among the steps of each segment, as a version of `generation`.

        For a segment of another generation, it is at most `first_version`, the first version of `generation`.
        """
        lowest: list[int] = self.heads["version"].tolist()
        for group in self._groups:
            for place, sent in _sent_versions(group):
                lowest[group.members[place]] = int(sent.min())
        made = self.heads["generation"].tolist()
        return [low if by == generation else min(low, first_version) for low, by in zip(lowest, made, strict=True)]

    def segments(self) -> list[Segment]:
        """Return all segments, also those that `errors` reports. Their columns are read-only views of the received frames."""
        self.decode_images()
        heads: Iterator[tuple[Any, ...]] = head_struct.iter_unpack(self._raw)
        if len(self._groups) == 1:
            return self._segments(self._groups[0], heads)
        every = list(heads)
        out: dict[int, Segment] = {}
        for group in self._groups:
            out.update(zip(group.members, self._segments(group, (every[place] for place in group.members)), strict=True))
        return [out[place] for place in range(len(self))]

    def _segments(self, group: SameLayoutSegments, heads: Iterator[tuple[Any, ...]]) -> list[Segment]:
        count, layout = len(group.members), group.layout
        leaves, end = layout.leaves, layout.leaves + layout.actions
        known = self.schema
        observations = _trees(group.columns[:leaves], count, known.leaves if known is not None else None)
        actions = _trees(group.columns[leaves:end], count, known.actions.leaves if known is not None else None)
        rewards, log_probs, _, *masks = (views.each() for views in group.columns[end : layout.standard])
        forbidding: Sequence[NDArray[Any] | None] = masks[0] if masks else [None] * count
        extras = self._extras(group, "x", count)
        initial = self._extras(group, "i", count)
        versions = self._versions(group)
        rows = zip(observations, actions, rewards, log_probs, versions, forbidding, extras, initial, heads, strict=True)
        out = []
        for o, a, r, p, v, m, x, i, (generation, episode, index, _, total, length, _, _, flags, _, _) in rows:
            ended = flags & _ENDED
            out.append(
                segment_of(
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
                    x,
                    i,
                    flags & 32 != 0,
                    layout.source,
                )
            )
        return out

    def _extras(self, group: SameLayoutSegments, letter: str, count: int) -> list[Mapping[str, NDArray[Any]]]:
        """Return a dict for each of `count` segments, from the name of an extra column to its array.

        `letter` chooses the columns: ``x`` those with a row for each step, ``i`` those with one value for the segment.
        """
        if group.layout.columns[-1].letter not in "xi":
            return [NO_EXTRAS] * count
        pairs = zip(group.layout.names(self.schema), group.columns, strict=True)
        named = {name: views for name, views in pairs if views.column.letter == letter}
        if not named:
            return [NO_EXTRAS] * count
        columns = [views.each() for views in named.values()]
        if letter == "i":
            columns = [[one[0, ...] for one in each] for each in columns]
        return [dict(zip(named, row, strict=True)) for row in zip(*columns, strict=True)]

    def _versions(self, group: SameLayoutSegments) -> list[NDArray[np.uint64]]:
        """Return the policy version of each step, one array for each segment.

        A segment without a column of versions has one version for all steps, in its head.
        """
        heads = self.heads[group.members] if len(self._groups) > 1 else self.heads
        every = heads["version"].repeat(heads["steps"])
        every.flags.writeable = False
        starts = [0, *itertools.accumulate(heads["steps"].tolist())]
        views = [every[a:b] for a, b in itertools.pairwise(starts)]
        for place, sent in _sent_versions(group):
            views[place] = sent
        return views


def _sent_versions(group: SameLayoutSegments) -> list[tuple[int, NDArray[np.uint64]]]:
    """Return the column of policy versions of each segment that was sent with one, and the segment's index in the group."""
    views = group.columns[group.layout.leaves + group.layout.actions + 2]
    if not views.together.size and not views.large:
        return []
    return [(place, sent) for place, sent in enumerate(views.each()) if sent.size]


def _trees(columns: Sequence[ColumnRows], count: int, leaves: SpaceLeaves | None) -> Sequence[Tree]:
    each = [views.each() for views in columns]
    structure: Structure = (tuple, (), (None,) * len(each)) if len(each) > 1 else None
    if leaves is not None and len(leaves.spaces) == len(each):
        structure = leaves.structure
    return each[0] if structure is None else unflatten_each(structure, each, count)


def read_heads(message: Submit) -> NDArray[Any]:
    """Return the heads (the numbers of each segment) in a message, dtype `HEAD`. Their values are not checked.

    Raises:
        ProtocolError: If the number of heads differs from the message's `count`.
    """
    size = len(message.heads)
    if not size or size != message.count * HEAD_BYTES:
        raise ProtocolError(RefusalReason.MALFORMED, f"{size} bytes of heads for {message.count} segments of {HEAD_BYTES}")
    return np.frombuffer(message.heads, HEAD)


def read_segments(frames: Sequence[Frame]) -> SegmentBatchReader:
    """Return a reader for the segments in the frames of a `Submit`. The caller has verified the message's checksum.

    Raises:
        ProtocolError: If the message is malformed, so that none of its segments can be trusted.
    """
    message = decode(frames, verify=False)
    if not isinstance(message, Submit):
        raise ProtocolError(RefusalReason.KIND, f"a {type(message).__name__} in place of a Submit")
    return SegmentBatchReader(message)


def read_submit(message: Submit) -> list[Segment | ProtocolError]:
    """Return the segments of a message, with read-only views as columns, and an error in place of each invalid segment.

    Raises:
        ProtocolError: If the message is malformed, so that none of its segments can be trusted.
    """
    batch = SegmentBatchReader(message)
    undecodable = {place: ProtocolError(RefusalReason.MALFORMED, reason) for place, reason in batch.decode_images().items()}
    errors = {**undecodable, **batch.errors()}
    return [errors.get(place, segment) for place, segment in enumerate(batch.segments())]


def _head_error(flags: int, reserved: int, length: int, steps: int, longest: float) -> ProtocolError:
    if _ODD_FLAGS[flags] or reserved:
        problem = f"a segment has the invalid flags {flags:#04x} or the reserved field {reserved} instead of 0"
    elif flags & _ENDED and length < steps:
        problem = f"an episode of {length} steps ends with a segment of {steps} steps"
    elif length and not flags & _ENDED:
        problem = f"a segment has an episode length of {length} steps but does not end its episode"
    else:
        problem = f"a segment of {steps} steps; 1 to {longest} are allowed"
    return ProtocolError(RefusalReason.RANGE, problem)
