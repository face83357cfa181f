"""Taking a `Submit`: which of its segments are new, which are in order, which are well formed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl4sys_zmq.delivery.ledger import Entry
from rl4sys_zmq.delivery.stream import Stream
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.wire import SegmentSchema, read_submit
from rl4sys_zmq.wire.messages import Frame, Submit, Verdict

__all__ = ["Intake", "take_submit"]


@dataclass(frozen=True, slots=True)
class Intake:
    """What became of one `Submit`.

    Attributes:
        entry: what to put into the ledger, or None when nothing in the message was new.
        duplicates: segments that had been seen before.
        refused: the errors of the new segments that were refused as items; their numbers are used up.
        accepted: the new segments that were not.
    """

    entry: Entry | None
    duplicates: int
    refused: tuple[ProtocolError, ...]
    accepted: int


def take_submit(stream: Stream, schema: SegmentSchema, message: Submit, frames: Sequence[Frame]) -> Intake:
    """Moves the stream's mark over the new segments of a message.

    Args:
        stream: whose message it is.
        schema: what segments of this client look like.
        message: the message; and
        frames: its frames, which the ledger keeps.

    Raises:
        ProtocolError: when the message as a whole is refused (`Refusal.GAP`, or it does not hold together); the mark has not
            moved.
    """
    segments = read_submit(message)
    skip = stream.admit(message.first_seq, message.count)
    first = stream.received
    refused: list[ProtocolError] = []
    steps = 0
    for segment in segments[skip:]:
        error = segment if isinstance(segment, ProtocolError) else schema.check(segment)
        length = 0 if isinstance(segment, ProtocolError) else segment.steps
        stream.accept(1, length)
        if error is None:
            steps += length
        else:
            stream.dispose([[stream.received - 1, stream.received]], Verdict.REFUSED)
            refused.append(error)
    if stream.received == first:
        return Intake(None, skip, (), 0)
    entry = Entry(stream.client_id, stream.actor_id, stream.incarnation, first, stream.received, steps, skip, tuple(frames))
    return Intake(entry, skip, tuple(refused), stream.received - first - len(refused))
