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
    """A message whose segments are being processed.

    Attributes:
        key: The stream.
        batch: The heads and columns of the message.
        segments: The segments of the batch.
        refused: The places that the gateway has refused, with the error.
        bad: The places with invalid content, with the reason.
        oldest: The lowest version of each segment.
    """

    key: Key
    batch: Batch
    segments: list[Segment]
    refused: dict[int, ProtocolError]
    bad: dict[int, str]
    oldest: NDArray[np.int64]

    def dead_letter(self, place: int, reason: str) -> DeadLetter:
        """Return the segment at a place as a dead letter."""
        return DeadLetter(*self.key, self.batch.first_seq + place, reason, tuple(encode(self.batch.alone(place))))


@dataclass(slots=True, eq=False)
class HeldSegment:
    """A segment that an algorithm received and may need to receive again.

    Attributes:
        taken: The message that contained it; None if that is no longer kept.
        place: Its place in the message.
        key: Its stream.
        seq: Its sequence number.
        correct: The argument of `Algorithm.observe`.
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
