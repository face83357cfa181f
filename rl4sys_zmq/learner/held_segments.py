"""Segments on their way into an algorithm, with their messages, so that each can be quarantined later."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.delivery import Key
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import Batch, encode
from rl4sys_zmq.wire.messages import DeadLetter

__all__ = ["HeldSegment", "ReceivedMessage", "to_ranges", "streams_of"]


@dataclass(slots=True, eq=False)
class ReceivedMessage:
    """A message of segments from the gateway, in a decoded form. A learner thread keeps it until all segments have a verdict.

    Attributes:
        key: The key of the stream: the actor's id and the origin (the incarnation that began to number the stream's segments).
        batch: The heads and columns of the message.
        segments: The segments of the batch.
        refused: The indices of the segments that the gateway has refused, with the error.
        bad: The indices of the segments with invalid content, with the reason.
        oldest: The lowest policy version of each segment.
        segment_bytes: The mean size of a segment on the wire, in bytes.
    """

    key: Key
    batch: Batch
    segments: list[Segment]
    refused: dict[int, ProtocolError]
    bad: dict[int, str]
    oldest: NDArray[np.int64]
    segment_bytes: int

    def dead_letter(self, place: int, reason: str) -> DeadLetter:
        """Return the segment at an index as a dead letter, the record of a quarantined segment."""
        return DeadLetter(*self.key, self.batch.first_seq + place, reason, tuple(encode(self.batch.alone(place))))


@dataclass(slots=True, eq=False)
class HeldSegment:
    """A segment that an algorithm received and may need to receive again.

    Attributes:
        message: The message that contained it; None if it is no longer kept.
        place: Its index in the message.
        key: The key of its stream.
        seq: Its sequence number.
        correct: The argument `correct` with which `Algorithm.observe` received it.
    """

    message: ReceivedMessage | None
    place: int
    key: Key
    seq: int
    correct: bool

    @property
    def segment(self) -> Segment:
        """The segment itself."""
        assert self.message is not None
        return self.message.segments[self.place]


def to_ranges(places: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as ranges ``[first, end)``."""
    if not places:
        return []
    if places[-1] - places[0] == len(places) - 1:
        return [(places[0], places[-1] + 1)]
    breaks = [n for n in range(1, len(places)) if places[n] != places[n - 1] + 1]
    return [(places[a], places[b - 1] + 1) for a, b in itertools.pairwise([0, *breaks, len(places)])]


def streams_of(held: Iterable[HeldSegment]) -> list[tuple[Key, int, int]]:
    """Return segments as ranges ``[first, end)`` of their streams."""
    found: dict[Key, list[int]] = {}
    for one in held:
        found.setdefault(one.key, []).append(one.seq)
    return [(key, *run) for key, numbers in found.items() for run in to_ranges(numbers)]
