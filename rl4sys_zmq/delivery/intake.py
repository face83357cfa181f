"""Taking a `Submit`: which of its segments are new, which are in order, which are well formed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl4sys_zmq.delivery.journal import JournalEntry
from rl4sys_zmq.delivery.stream import Stream
from rl4sys_zmq.delivery.transit import Load
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.images import NEEDS_PILLOW, has_pillow
from rl4sys_zmq.wire import Batch, SegmentSchema, decode
from rl4sys_zmq.wire.messages import Frame, Submit

__all__ = ["Intake", "Replay", "replay_entry", "take_submit"]


@dataclass(frozen=True, slots=True)
class Intake:
    """What became of one `Submit`.

    Attributes:
        entry: what to put into the journal, or None when nothing in the message was new.
        duplicates: segments that had been seen before.
        refused: the errors of the new segments that were refused as items; their numbers are used up.
        accepted: the new segments that were not.
    """

    entry: JournalEntry | None
    duplicates: int
    refused: tuple[ProtocolError, ...]
    accepted: int


def take_submit(stream: Stream, schema: SegmentSchema, message: Submit, frames: Sequence[Frame]) -> Intake:
    """Moves the stream's mark over the new segments of a message.

    Args:
        stream: whose message it is.
        schema: what segments of this client look like.
        message: the message; and
        frames: its frames, which the journal keeps.

    Raises:
        ProtocolError: when the message as a whole is refused (``GAP``, ``EQUIVOCATION``, ``FEATURE`` for images where
            there is no Pillow, or it does not hold together); the mark has not moved.
    """
    batch = Batch(message)
    if batch.has_images and not has_pillow():
        raise ProtocolError(Refusal.FEATURE, f"this learner cannot take image_codec: {NEEDS_PILLOW}")
    checks = batch.checks.tolist()
    skip = stream.admit(message.first_seq, checks)
    first = stream.received
    if skip == len(batch):
        return Intake(None, skip, (), 0)
    errors = batch.errors(schema)
    refused = {place: error for place, error in errors.items() if place >= skip} if skip else errors
    fresh = sum(batch.steps.tolist()[skip:])
    stream.accept_all(fresh, checks[skip:])
    steps = fresh - sum(int(batch.steps[place]) for place in refused)
    for place in refused:
        stream.refuse(message.first_seq + place)
    entry = JournalEntry(
        stream.client_id, stream.actor_id, stream.origin, first, stream.received, steps, skip, len(refused), tuple(frames)
    )
    return Intake(entry, skip, tuple(refused.values()), stream.received - first - len(refused))


@dataclass(frozen=True, slots=True)
class Replay:
    """The part of an entry that a learner thread is to be given again.

    Attributes:
        skip: how many of the message's segments come before that part.
        load: how much the part is, as the learner thread will take it.
    """

    skip: int
    load: Load


def replay_entry(stream: Stream, schema: SegmentSchema, entry: JournalEntry) -> Replay | None:
    """Take an entry that the journal gives back to a learner thread that has gone back to a checkpoint.

    The checkpoint's mark may lie inside the entry. Then the segments below the mark are skipped and not counted.

    Returns:
        What to give the learner thread; None when its state has all of the entry.
    """
    known = stream.replay(entry.first_seq, entry.end_seq)
    if known is None:
        return None
    skip = entry.skip + known
    if not entry.refused and not known:
        return Replay(skip, Load(entry.steps, entry.accepted, entry.nbytes))
    message = decode(entry.frames, verify=False)
    assert isinstance(message, Submit)  # as it was when it was accepted; the journal checks its bytes
    batch = Batch(message)
    refused = [place for place in (batch.errors(schema) if entry.refused else ()) if place >= skip]
    for place in refused:
        stream.refuse_again(message.first_seq + place)
    steps = batch.steps
    load = Load(int(steps[skip:].sum()) - int(steps[refused].sum()), len(batch) - skip - len(refused), entry.nbytes)
    return Replay(skip, load)
