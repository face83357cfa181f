"""The segments in training, kept with their messages, so that a segment that proves unfit can still be saved to a file."""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.delivery import Key
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import SegmentBatchReader, encode
from rl4sys_zmq.wire.thread_messages import QuarantinedSegment


@dataclass(slots=True, eq=False)
class DecodedSegmentMessage:
    """A decoded message with segments of one actor.

    A learner thread keeps the message while one of its segments can still turn out to be unfit for training (quarantined).

    Attributes:
        key: The key of the stream (the actor's numbered segments): the actor's id, and the number of the start of the actor
            that began the numbering.
        batch: The decoded message: the header of each segment and the columns of data.
        segments: The segments of the batch; empty after `release`.
        refused: The error of each segment that the gateway (the learner's network thread) has refused, by the index of the
            segment.
        bad: The problem of each segment with invalid content, by the index of the segment.
        oldest: The lowest policy version among the steps of each segment, int64 ``[segments]``.
        nbytes: The size of the message, in bytes.
    """

    key: Key
    batch: SegmentBatchReader
    segments: list[Segment]
    refused: dict[int, ProtocolError]
    bad: dict[int, str]
    oldest: NDArray[np.int64]
    nbytes: int

    def release(self) -> None:
        """Free the memory of the decoded segments and images. `dead_letter` needs only the message."""
        self.segments.clear()
        self.batch.release_images()

    def dead_letter(self, place: int, reason: str) -> QuarantinedSegment:
        """Return a segment of this message as a `QuarantinedSegment`: unfit for training, and to be saved for inspection."""
        return QuarantinedSegment(*self.key, self.batch.first_seq + place, reason, tuple(encode(self.batch.alone(place))))


@dataclass(slots=True, eq=False)
class SegmentInTraining:
    """A segment that an algorithm received and may need to receive again, for example after an update was undone.

    Attributes:
        message: The message that contained the segment; None if the message was discarded to save memory.
        place: The index of the segment in the message.
        key: The key of the stream (the actor's numbered segments): the actor's id, and the number of the start of the actor
            that began the numbering.
        seq: The sequence number of the segment in its stream.
        correct: The argument `correct` for `Algorithm.observe`: True if the segment is so old that it needs importance weights.
    """

    message: DecodedSegmentMessage | None
    place: int
    key: Key
    seq: int
    correct: bool

    @property
    def segment(self) -> Segment:
        """The decoded segment. Use this only while `message` is not None."""
        assert self.message is not None
        return self.message.segments[self.place]


@dataclass(slots=True, eq=False)
class _ObservedMessage:
    """The segments of one message that an algorithm has observed.

    Attributes:
        first: The number of the first of these segments in the order of observation.
        key: The key of the stream.
        first_seq: The sequence number of the message's first segment.
        message: The message; None if it was discarded to save memory.
        places: The index of each segment in the message, in the order of observation; `TAKEN` if `RecentSegments.take` has
            returned it.
    """

    first: int
    key: Key
    first_seq: int
    message: DecodedSegmentMessage | None
    places: list[int] = field(default_factory=list)


TAKEN = -1


class RecentSegments:
    """The latest segments that an off-policy algorithm has observed, so that bad ones can be quarantined later.

    An off-policy algorithm names a segment by its number in the order of observation, from 0.

    Attributes:
        nbytes: The total size of the messages that are kept, in bytes.
    """

    def __init__(self, max_segments: int, max_bytes: int) -> None:
        self.nbytes = 0
        self._max_segments, self._max_bytes = max_segments, max_bytes
        self._next = 0
        self._messages: deque[_ObservedMessage] = deque()
        self._kept: deque[_ObservedMessage] = deque()  # those of `_messages` that still have their message

    def add(self, message: DecodedSegmentMessage, place: int) -> None:
        """Record that the segment with the index `place` in a message was observed."""
        if not self._messages or self._messages[-1].message is not message:
            self._begin(message)
        self._messages[-1].places.append(place)
        self._next += 1

    def take(self, number: int) -> SegmentInTraining | None:
        """Return the segment with this number, and forget it.

        Return None if it is not remembered, for example because it was observed before a restart.
        """
        at = bisect.bisect_right(self._messages, number, key=lambda one: one.first) - 1
        if at < 0 or number >= self._next:
            return None
        observed = self._messages[at]
        place, observed.places[number - observed.first] = observed.places[number - observed.first], TAKEN
        if place == TAKEN:
            return None
        return SegmentInTraining(observed.message, place, observed.key, observed.first_seq + place, False)

    def _begin(self, message: DecodedSegmentMessage) -> None:
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


def to_ranges(places: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending integers as ranges ``(first, end)`` of consecutive integers. A range does not include `end`."""
    if not places:
        return []
    if places[-1] - places[0] == len(places) - 1:
        return [(places[0], places[-1] + 1)]
    breaks = [n for n in range(1, len(places)) if places[n] != places[n - 1] + 1]
    return [(places[a], places[b - 1] + 1) for a, b in itertools.pairwise([0, *breaks, len(places)])]


def streams_of(held: Iterable[SegmentInTraining]) -> list[tuple[Key, int, int]]:
    """Group segments by stream, and return their sequence numbers as ranges."""
    found: dict[Key, list[int]] = {}
    for one in held:
        found.setdefault(one.key, []).append(one.seq)
    return [(key, *run) for key, numbers in found.items() for run in to_ranges(numbers)]
