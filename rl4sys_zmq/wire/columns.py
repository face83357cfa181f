"""The columns of all segments in the body of a `Submit`. Heads and layouts determine the position of every row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.images import BadImage, image_size
from rl4sys_zmq.wire.coding import BodyFrame, EncodedImages
from rl4sys_zmq.wire.layout import ColumnLayout, SegmentLayout
from rl4sys_zmq.wire.segments import ALIGN, LARGE_BYTES, SegmentFlag


@dataclass(slots=True)
class ColumnView:
    """The rows of one column of all segments that have the same layout.

    Attributes:
        together: The rows of the segments without a frame of their own, one segment after the other, ``[rows, *row]``.
        starts: Index in `together` of the first row of each segment, and at the end the number of rows.
        large: The rows of each segment with a frame of its own, by the segment's index in its `LayoutGroup`.
        coded: The rows of each segment that came as image files, by the same index. `decode` adds the pixels to `large`.
    """

    column: ColumnLayout
    together: NDArray[Any]
    starts: list[int]
    large: dict[int, NDArray[Any]]
    coded: dict[int, EncodedImages]

    def decode(self) -> dict[int, str]:
        """Decode the image files into `large`. Return the reason for each segment whose images are damaged."""
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
        """Return the rows of each segment."""
        data = self.together
        views = [data[a:b] for a, b in itertools.pairwise(self.starts)]
        for place, own in self.large.items():
            views[place] = own
        return views

    def arrays(self) -> list[NDArray[Any]]:
        """Return the rows of all segments in as few arrays as possible."""
        return [self.together, *self.large.values()] if self.large else [self.together]


@dataclass(slots=True)
class LayoutGroup:
    """The segments of a message that have the same layout. `members` are their indices in the message, ascending."""

    layout: SegmentLayout
    members: list[int]
    columns: list[ColumnView]


class SegmentRowCounts:
    """The number of rows of one column, for each segment of a message.

    Attributes:
        most: Largest number of rows of one segment.
        starts: For each segment, the number of rows of all segments before it; at the end, the number of rows of all segments.
    """

    __slots__ = ("each", "most", "starts")

    def __init__(self, each: list[int]) -> None:
        self.each = each
        self.starts = [0, *itertools.accumulate(each)]
        self.most = max(each, default=0)


_COUNTED = {"o": 1, "a": 0, "r": 0, "l": 0, "v": 2, "m": 1, "x": 0, "i": 3}
"""For each letter of a column, the index into the list ``counts`` of `ColumnReader`.

0: one row per step. 1: one row per observation. 2: one row per step, but only in segments whose steps have different versions.
3: one row per segment.
"""


class ColumnReader:
    """The columns of all segments in the body of a `Submit`, grouped by layout.

    Raises:
        ProtocolError: If the body does not have exactly the bytes that the numbers of steps and the layouts require.
    """

    def __init__(self, heads: NDArray[Any], steps: list[int], layouts: list[SegmentLayout], body: Sequence[BodyFrame]) -> None:
        blob = body[0]
        assert not isinstance(blob, EncodedImages)
        self._blob, self._large = blob, list(body[1:])
        self._at, self._limit = 0, sum(map(len, body))
        places: list[int] = heads["layout"].tolist()
        if max(places) >= len(layouts):
            raise ProtocolError(RefusalReason.MALFORMED, f"a segment of layout {max(places)}; the message has {len(layouts)}")
        alone = len(layouts) == 1
        members: list[list[int]] = [list(range(len(places)))] if alone else [[] for _ in layouts]
        for place, index in enumerate(places if not alone else ()):
            members[index].append(place)
        flags: list[int] = heads["flags"].tolist()
        terminated, versions = SegmentFlag.TERMINATED, SegmentFlag.VERSIONS
        counts = [
            steps,
            [count if flag & terminated else count + 1 for count, flag in zip(steps, flags, strict=True)],
            [count if flag & versions else 0 for count, flag in zip(steps, flags, strict=True)],
        ]
        if any(layout.columns[-1].letter == "i" for layout in layouts):
            counts.append([1] * len(steps))
        sized = [tuple(SegmentRowCounts(c if alone else [c[place] for place in m]) for c in counts) for m in members]
        self._frames = self._find_large(layouts, members, sized)
        self.groups = [
            LayoutGroup(layout, m, [self._column(n, layout, rows[_COUNTED[c.letter]], m) for n, c in enumerate(layout.columns)])
            for layout, m, rows in zip(layouts, members, sized, strict=True)
        ]
        if self._at != len(self._blob) or len(self._frames) != len(self._large):
            raise ProtocolError(RefusalReason.SHAPE, "the body has bytes that belong to no segment")

    def _find_large(
        self, layouts: list[SegmentLayout], members: list[list[int]], sized: list[tuple[SegmentRowCounts, ...]]
    ) -> dict[tuple[int, int], int]:
        """Return the frame of each large column, by the segment's index in the message and the column's index in its layout.

        The frames are in the order of segments, and within a segment of columns.
        """
        keys = []
        for layout, places, rows in zip(layouts, members, sized, strict=True):
            for position, column in enumerate(layout.columns):
                counted = rows[_COUNTED[column.letter]]
                most = counted.most * column.row_bytes
                if most > self._limit:
                    raise ProtocolError(
                        RefusalReason.SHAPE, f"column {column.letter} needs {most} bytes; the body has {self._limit}"
                    )
                if most >= LARGE_BYTES:
                    rows_of = zip(places, counted.each, strict=True)
                    keys += [(place, position) for place, count in rows_of if count * column.row_bytes >= LARGE_BYTES]
        return {key: n for n, key in enumerate(sorted(keys))}

    def _column(self, position: int, layout: SegmentLayout, rows: SegmentRowCounts, members: list[int]) -> ColumnView:
        column = layout.columns[position]
        own: dict[int, NDArray[Any]] = {}
        coded: dict[int, EncodedImages] = {}
        starts = rows.starts
        if rows.most * column.row_bytes >= LARGE_BYTES:
            small = rows.each.copy()
            for place, count in enumerate(rows.each):
                if count * column.row_bytes < LARGE_BYTES:
                    continue
                index = self._frames[members[place], position]
                frame = self._large_frame(index, count * column.row_bytes, column, layout.leaves == 1)
                if isinstance(frame, EncodedImages):
                    coded[place] = frame
                else:
                    own[place] = np.frombuffer(frame, column.dtype).reshape(-1, *column.row)
                small[place] = 0
            starts = SegmentRowCounts(small).starts
        size = starts[-1] * column.row_bytes
        if self._at + size > len(self._blob):
            raise ProtocolError(RefusalReason.SHAPE, f"column {column.letter} ends beyond its frame")
        dtype, values = column.dtype, size // column.dtype.itemsize
        together = np.frombuffer(self._blob, dtype, values, self._at) if values else np.empty(0, dtype)
        self._at += size + (-size % ALIGN)
        return ColumnView(column, together.reshape(-1, *column.row) if column.row else together, starts, own, coded)

    def _large_frame(self, index: int, size: int, column: ColumnLayout, single: bool) -> BodyFrame:
        frame = self._large[index] if index < len(self._large) else b""
        if len(frame) != size:
            raise ProtocolError(RefusalReason.SHAPE, f"column {column.letter} needs {size} bytes; its frame has {len(frame)}")
        if isinstance(frame, EncodedImages):
            fits = single and column.letter == "o" and column.dtype == np.uint8 and image_size(column.row) is not None
            if not fits:
                raise ProtocolError(
                    RefusalReason.SHAPE, f"images as column {column.letter} of {column.dtype.str} with rows of {column.row}"
                )
        return frame
