"""Segments in training, with the messages that contained them. A segment that proves unfit can still be stored as a dead
letter.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import SegmentBatchReader, encode
from rl4sys_zmq.wire.thread_messages import QuarantinedSegment


@dataclass(slots=True, eq=False)
class DecodedSegmentMessage:
    """A decoded message with segments of one actor, kept while one of them can still turn out to be unfit for training."""

    key: Key
    batch: SegmentBatchReader
    segments: list[Segment]  # empty after `release`
    refused: dict[int, ProtocolError]  # the error of each segment that the gateway has refused, by the segment's index
    bad: dict[int, str]  # the problem of each segment with invalid content, by the segment's index
    oldest: list[int]  # the lowest policy version among the steps of each segment
    nbytes: int

    def release(self) -> None:
        """Free the memory of the decoded segments and images. `dead_letter` needs only the message."""
        self.segments.clear()
        self.batch.release_images()

    def dead_letter(self, index: int, reason: str) -> QuarantinedSegment:
        return QuarantinedSegment(*self.key, self.batch.first_seq + index, reason, tuple(encode(self.batch.alone(index))))


@dataclass(slots=True, eq=False)
class SegmentInTraining:
    """A segment that an algorithm received and may receive again, for example after an update was undone."""

    message: DecodedSegmentMessage | None  # None if it was discarded to save memory
    index: int  # of the segment in the message
    key: Key
    seq: int
    correct: bool  # for `Algorithm.observe`: the segment is so old that it needs importance weights

    @property
    def segment(self) -> Segment:
        assert self.message is not None
        return self.message.segments[self.index]


@dataclass(slots=True, eq=False)
class _ObservedMessage:
    first: int  # the number of the first of them in the order of observation
    key: Key
    first_seq: int  # of the message
    message: DecodedSegmentMessage | None  # None if it was discarded to save memory
    indices: list[int] = field(default_factory=list)  # of each segment in the message; `POPPED` after `pop`


POPPED = -1


class RecentSegments:
    """The latest segments that an off-policy algorithm has observed, by their number in the order of observation, from 0."""

    def __init__(self, max_segments: int, max_bytes: int) -> None:
        self.nbytes = 0
        self._max_segments, self._max_bytes = max_segments, max_bytes
        self._next = 0
        self._messages: deque[_ObservedMessage] = deque()
        self._kept: deque[_ObservedMessage] = deque()  # those of `_messages` that still have their message

    def add(self, message: DecodedSegmentMessage, index: int) -> None:
        if not self._messages or self._messages[-1].message is not message:
            self._add_message(message)
        self._messages[-1].indices.append(index)
        self._next += 1

    def pop(self, number: int) -> SegmentInTraining | None:
        """Return the segment with this number, and forget it. Return None if it is not kept, or was observed before a restart."""
        at = bisect.bisect_right(self._messages, number, key=lambda one: one.first) - 1
        if at < 0 or number >= self._next:
            return None
        observed = self._messages[at]
        index, observed.indices[number - observed.first] = observed.indices[number - observed.first], POPPED
        if index == POPPED:
            return None
        return SegmentInTraining(observed.message, index, observed.key, observed.first_seq + index, False)

    def _add_message(self, message: DecodedSegmentMessage) -> None:
        observed = _ObservedMessage(self._next, message.key, message.batch.first_seq, message)
        self._messages.append(observed)
        self._kept.append(observed)
        self.nbytes += message.nbytes
        while self.nbytes > self._max_bytes and len(self._kept) > 1:
            self._drop_oldest_message()
        while self._next - self._messages[0].first > self._max_segments:
            if self._messages[0] is self._kept[0]:
                self._drop_oldest_message()
            self._messages.popleft()

    def _drop_oldest_message(self) -> None:
        oldest = self._kept.popleft()
        assert oldest.message is not None
        self.nbytes -= oldest.message.nbytes
        oldest.message = None


def to_ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending integers as ranges ``(first, end)`` of consecutive integers. A range does not include `end`."""
    if not numbers:
        return []
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return [(numbers[0], numbers[-1] + 1)]
    breaks = [n for n in range(1, len(numbers)) if numbers[n] != numbers[n - 1] + 1]
    return [(numbers[a], numbers[b - 1] + 1) for a, b in itertools.pairwise([0, *breaks, len(numbers)])]


def streams_of(held: Iterable[SegmentInTraining]) -> list[tuple[Key, int, int]]:
    """Return segments as ranges ``(stream, first, end)`` of sequence numbers."""
    by_stream: dict[Key, list[int]] = {}
    for one in held:
        by_stream.setdefault(one.key, []).append(one.seq)
    return [(key, *run) for key, numbers in by_stream.items() for run in to_ranges(numbers)]
