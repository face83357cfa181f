"""The segments in training, kept with their messages, so that a segment that proves unfit can still be saved to a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.delivery import Key
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import SubmitReader, encode
from rl4sys_zmq.wire.messages import QuarantinedSegment

__all__ = ["SegmentInTraining", "SegmentMessage", "to_ranges", "streams_of"]


@dataclass(slots=True, eq=False)
class SegmentMessage:
    """A decoded message with segments (consecutive steps of an episode) of one actor.

    A learner thread keeps the message while one of its segments can still turn out to be unfit for training (quarantined).

    Attributes:
        key: The key of the stream (the actor's numbered segments): the actor's id, and the number of the start of the actor
            that began the numbering.
        batch: The decoded message: the header of each segment and the columns of data.
        segments: The segments of the batch.
        refused: The error of each segment that the gateway (the learner's network thread) has refused, by the index of the
            segment.
        bad: The problem of each segment with invalid content, by the index of the segment.
        oldest: The lowest policy version among the steps of each segment, int64 ``[segments]``.
        segment_bytes: The mean size of a segment on the wire, in bytes.
    """

    key: Key
    batch: SubmitReader
    segments: list[Segment]
    refused: dict[int, ProtocolError]
    bad: dict[int, str]
    oldest: NDArray[np.int64]
    segment_bytes: int

    def dead_letter(self, place: int, reason: str) -> QuarantinedSegment:
        """Return a segment of this message as a `QuarantinedSegment`: unfit for training, and to be saved for inspection.

        Args:
            place: The index of the segment in the message.
            reason: The reason for the quarantine.
        """
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

    message: SegmentMessage | None
    place: int
    key: Key
    seq: int
    correct: bool

    @property
    def segment(self) -> Segment:
        """The decoded segment. Use this only while `message` is not None."""
        assert self.message is not None
        return self.message.segments[self.place]


def to_ranges(places: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending integers as ranges ``(first, end)`` of consecutive integers. A range does not include `end`."""
    if not places:
        return []
    if places[-1] - places[0] == len(places) - 1:
        return [(places[0], places[-1] + 1)]
    breaks = [n for n in range(1, len(places)) if places[n] != places[n - 1] + 1]
    return [(places[a], places[b - 1] + 1) for a, b in itertools.pairwise([0, *breaks, len(places)])]


def streams_of(held: Iterable[SegmentInTraining]) -> list[tuple[Key, int, int]]:
    """Group segments by stream (the numbered segments of one actor), and return their sequence numbers as ranges.

    Returns:
        Tuples ``(key of the stream, first, end)``. A range does not include `end`.
    """
    found: dict[Key, list[int]] = {}
    for one in held:
        found.setdefault(one.key, []).append(one.seq)
    return [(key, *run) for key, numbers in found.items() for run in to_ranges(numbers)]
