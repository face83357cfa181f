"""The acceptance of segments by the learner: the check of duplicates, of the order, and of the structure of new segments.

A `Submit` is the message in which an actor sends segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl4sys_zmq.delivery.credit import DataAmount
from rl4sys_zmq.delivery.journal import JournalEntry
from rl4sys_zmq.delivery.stream import SegmentStream
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.images import NEEDS_PILLOW, has_pillow
from rl4sys_zmq.wire import SegmentBatchReader, SegmentSchema, read_segments
from rl4sys_zmq.wire.messages import Frame, Submit


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """The result of `take_submit`."""

    entry: JournalEntry | None  # entry to append to the journal, or None if the message contains only duplicates
    duplicates: int  # number of segments that were received before
    refused: tuple[ProtocolError, ...]  # errors of the malformed new segments. These segments keep their sequence numbers.
    accepted: int  # number of new segments that were accepted


def take_submit(stream: SegmentStream, schema: SegmentSchema, message: Submit, frames: Sequence[Frame]) -> SubmitResult:
    """Validate a message from an actor, and accept its new segments.

    Segments below `SegmentStream.received` are duplicates; new segments advance this mark. A malformed new segment is refused
    alone, and keeps its sequence number. The returned entry contains the `frames` for the journal.

    Raises:
        ProtocolError: If the whole message is refused, with the code ``GAP`` (segments before it are missing), ``EQUIVOCATION``
            (a duplicate has other content), ``FEATURE`` (the message has images, and Pillow is not installed), or the code for
            a malformed message. `SegmentStream.received` is then unchanged.
    """
    batch = SegmentBatchReader(message)
    if batch.has_images and not has_pillow():
        raise ProtocolError(RefusalReason.FEATURE, f"this learner cannot decode image_codec: {NEEDS_PILLOW}")
    checks = batch.checks
    skip = stream.admit(message.first_seq, checks)
    first = stream.received
    if skip == len(batch):
        return SubmitResult(None, skip, (), 0)
    errors = batch.errors(schema)
    refused = {place: error for place, error in errors.items() if place >= skip} if skip else errors
    fresh = sum(batch.steps[skip:])
    stream.accept_all(fresh, checks[skip:])
    steps = fresh - sum(batch.steps[place] for place in refused)
    for place in refused:
        stream.refuse(message.first_seq + place)
    entry = JournalEntry(
        stream.client_id,
        stream.actor_id,
        stream.origin,
        first,
        stream.received,
        steps,
        skip,
        len(refused),
        tuple(frames),
        None if message.codings else batch,  # no limit counts the bytes of a decompressed body that waits
    )
    return SubmitResult(entry, skip, tuple(refused.values()), stream.received - first - len(refused))


@dataclass(frozen=True, slots=True)
class JournalReplayPart:
    """The part of a journal entry that the learner thread gets again, because the checkpoint that it loaded lacks it."""

    skip: int  # number of segments at the start of the stored message that the learner thread must ignore
    load: DataAmount  # amount of data in the part, without refused segments


def replay_entry(stream: SegmentStream, schema: SegmentSchema, entry: JournalEntry) -> JournalReplayPart | None:
    """Return which part of a journal entry a learner thread needs after it has loaded a checkpoint; None if it needs none."""
    known = stream.replay(entry.first_seq, entry.end_seq)
    if known is None:
        return None
    skip = entry.skip + known
    if not entry.refused and not known:
        return JournalReplayPart(skip, DataAmount(entry.steps, entry.accepted, entry.nbytes))
    batch = read_segments(entry.frames)
    refused = [place for place in (batch.errors(schema) if entry.refused else ()) if place >= skip]
    for place in refused:
        stream.refuse_again(batch.first_seq + place)
    steps = batch.steps
    fresh = sum(steps[skip:]) - sum(steps[place] for place in refused)
    load = DataAmount(fresh, len(batch) - skip - len(refused), entry.nbytes)
    return JournalReplayPart(skip, load)
