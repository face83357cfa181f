"""Taking a `Submit`: which of its segments are new, which are in order, which are well formed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl4sys_zmq.delivery.ledger import Entry
from rl4sys_zmq.delivery.stream import Stream
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.wire import SegmentSchema, decode, read_submit, submit_checksums
from rl4sys_zmq.wire.messages import Frame, Submit

__all__ = ["Intake", "replay_entry", "take_submit"]


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
        ProtocolError: when the message as a whole is refused (``GAP``, ``EQUIVOCATION``, or it does not hold together); the
            mark has not moved.
    """
    segments = read_submit(message)
    checksums = submit_checksums(message)
    skip = stream.admit(message.first_seq, checksums)
    first = stream.received
    refused: list[ProtocolError] = []
    steps = 0
    for segment, checksum in zip(segments[skip:], checksums[skip:], strict=True):
        error = segment if isinstance(segment, ProtocolError) else schema.check(segment)
        length = 0 if isinstance(segment, ProtocolError) else segment.steps
        stream.accept(length, checksum)
        if error is None:
            steps += length
        else:
            stream.refuse()
            refused.append(error)
    if stream.received == first:
        return Intake(None, skip, (), 0)
    entry = Entry(
        stream.client_id, stream.actor_id, stream.origin, first, stream.received, steps, skip, len(refused), tuple(frames)
    )
    return Intake(entry, skip, tuple(refused), stream.received - first - len(refused))


def replay_entry(stream: Stream, schema: SegmentSchema, entry: Entry) -> int | None:
    """Takes an entry that the ledger gives back to a learner thread that has gone back to a checkpoint.

    Returns:
        How many of the message's segments the learner thread must skip; None when it needs none of them.
    """
    known = stream.replay(entry.first_seq, entry.end_seq)
    if known is None:
        return None
    skip = entry.skip + known
    if entry.refused:
        message = decode(entry.frames)
        assert isinstance(message, Submit)  # as it was when it was accepted; the ledger checks its bytes
        for index, segment in enumerate(read_submit(message)[skip:], skip):
            if isinstance(segment, ProtocolError) or schema.check(segment) is not None:
                stream.refuse_again(message.first_seq + index)
    return skip
