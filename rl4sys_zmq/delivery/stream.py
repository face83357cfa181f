"""The learner's side of one actor's stream: received segments, their verdicts, and credit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from rl4sys_zmq.dedup import count_received
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.wire.messages import Ack, Verdict

__all__ = ["Key", "Stream"]

CHECKSUMS_KEPT = 64

Key = tuple[str, int]
"""The key of a stream within its client: the actor's id, and the origin (the incarnation that began the numbering)."""


class Stream:
    """The marks, verdicts and credit of one stream: the segments of one actor for one client, from one origin on.

    A mark is a sequence number: all segments below it are received, durable, trained or checkpointed. A segment *refused as an
    item* is a malformed segment in a message that was accepted. It keeps its sequence number and counts in `refused`.

    Attributes:
        origin: The incarnation that started the sequence numbers.
        incarnation: The present incarnation of the actor; the same as `origin` unless the actor has a spool or raised it.
        spooled: True if numbers and segments survive the actor's process. The mark must then never be discarded.
        owner: The authenticated user that the stream belongs to; empty without keys.
        received: The mark of accepted segments, those refused as items included.
        durable: The mark of segments in the journal.
        trained: The mark of segments that have a verdict.
        checkpointed: The mark of segments covered by a checkpoint of the learner.
        accepted_steps: The steps of all segments below `received`.
        refused: How many segments were refused as items.
        credit_steps: The actor may send a segment while fewer steps than this are accepted or in flight.
        want_steps: The credit that the actor requests, in the same units.
        verdicts: The number of segments per verdict.
        last_seen: The time of the actor's last message, by the clock of the caller.
        progress_at: The time of its last delivery, or of the first credit after it had none.
    """

    def __init__(
        self,
        client_id: str,
        actor_id: str,
        incarnation: int,
        first_seq: int,
        now: float,
        *,
        origin: int = 0,
        submits: bool = True,
        spooled: bool = False,
    ) -> None:
        self.owner = ""
        self.client_id = client_id
        self.actor_id = actor_id
        self.incarnation = incarnation
        self.origin = origin or incarnation
        self.submits = submits
        self.spooled = spooled
        self.received = self.durable = self.trained = first_seq
        self.checkpointed = 0
        self.accepted_steps = 0
        self.refused = 0
        self.credit_steps = 0
        self.want_steps = 0
        self.verdicts = dict.fromkeys(Verdict.ALL, 0)
        self.last_seen = self.progress_at = now
        self._disposed: set[int] = set()
        self._holes: dict[int, int] = {}
        self._refused_late: list[int] = []
        self._uncounted: set[int] = set()
        self._checksums: OrderedDict[int, int] = OrderedDict()
        self._replayed = self._replay_end = first_seq

    @property
    def key(self) -> Key:
        """The key of the stream within the client."""
        return self.actor_id, self.origin

    # ---- receiving

    def admit(self, first_seq: int, checksums: Sequence[int]) -> int:
        """Return how many of the given segments are duplicates. Pass the rest to `accept_all`.

        Args:
            first_seq: The sequence number of the first segment.
            checksums: The checksums of the segments. Those of duplicates are compared with the last `CHECKSUMS_KEPT`.

        Raises:
            ProtocolError: ``GAP`` if a segment before them is missing; ``EQUIVOCATION`` if a duplicate has another checksum.
        """
        if first_seq > self.received:
            raise ProtocolError(Refusal.GAP, f"received segment {first_seq}; expected segment {self.received}")
        skip = count_received(self.received, first_seq, len(checksums))
        for seq, checksum in enumerate(checksums[:skip], first_seq):
            if self._checksums.get(seq, checksum) != checksum:
                raise ProtocolError(Refusal.EQUIVOCATION, f"segment {seq} of this actor was received before with other data")
        self.verdicts[Verdict.DUPLICATE] += skip
        return skip

    def accept(self, steps: int, checksum: int) -> None:
        """Accept the next segment, of `steps` steps."""
        self.accept_all(steps, [checksum])

    def accept_all(self, steps: int, checksums: Sequence[int]) -> None:
        """Accept the next segments, of `steps` steps in all."""
        kept = checksums[-CHECKSUMS_KEPT:]
        self.received += len(checksums)
        self.accepted_steps += steps
        self._checksums.update(zip(range(self.received - len(kept), self.received), kept, strict=True))
        while len(self._checksums) > CHECKSUMS_KEPT:
            self._checksums.popitem(last=False)

    def refuse(self, seq: int | None = None) -> None:
        """Refuse a segment that was just accepted, by default the last one, as an item. It keeps its sequence number."""
        seq = self.received - 1 if seq is None else seq
        self.refused += 1
        self._refused_late.append(seq)
        self.dispose([[seq, seq + 1]], Verdict.REFUSED)

    def advance_to(self, first_seq: int) -> int:
        """Advance to `first_seq`, below which the actor holds no segments. Return how many segments are missing for good.

        An earlier life of the learner acknowledged them, or this one has discarded them. To wait for them would block the stream.
        """
        lost = max(0, first_seq - self.received)
        if lost:
            self._skip(self.received, first_seq)
            self.received = self.durable = first_seq
        return lost

    def request_credit(self, want_steps: int) -> None:
        """Record how much credit the actor requests. Credit beyond that is free for other actors."""
        self.want_steps = want_steps
        self.credit_steps = min(self.credit_steps, max(want_steps, self.accepted_steps))

    def commit(self, end_seq: int) -> None:
        """Record that all segments below `end_seq` are in the journal."""
        self.durable = max(self.durable, end_seq)
        if self._refused_late:
            self._refused_late = [seq for seq in self._refused_late if seq >= self.durable]

    # ---- verdicts

    def dispose(self, ranges: Sequence[Sequence[int]], verdict: str) -> int:
        """Record a verdict on segments. Return how many of them were pending. A second verdict on a segment is ignored."""
        fresh = 0
        for first, end in ranges:
            if first <= self.trained and not self._disposed and not self._holes:  # in order: the usual case
                end = min(end, self.received)
                fresh += max(0, end - self.trained)
                self.trained = max(self.trained, end)
                continue
            for seq in range(max(first, self.trained), min(end, self.received)):
                if seq not in self._disposed and not any(start <= seq < stop for start, stop in self._holes.items()):
                    self._disposed.add(seq)
                    fresh += 1
        self.verdicts[verdict] += fresh
        self._advance()
        return fresh

    def correct(self, count: int, verdict: str, replaces: str) -> int:
        """Move up to `count` segments from the verdict `replaces` to `verdict`. Return how many were moved."""
        count = min(count, self.verdicts[replaces])
        self.verdicts[replaces] -= count
        self.verdicts[verdict] += count
        return count

    def roll_back(self) -> int:
        """Give up all pending segments, which cannot be recovered. Return how many."""
        pending = self.pending
        self._disposed.clear()
        self._holes.clear()
        self.trained = self.received
        return pending

    # ---- rollback to a checkpoint, and replay from the journal

    def rewind(self, mark: int, verdicts: Mapping[str, int]) -> None:
        """Roll back to a state of the learner thread in which the segments below `mark` have these verdicts."""
        self._disposed.clear()
        self._holes.clear()
        self.trained = self._replayed = min(mark, self.received)
        self._replay_end = self.received
        self.verdicts.update({verdict: verdicts.get(verdict, 0) for verdict in Verdict.ALL if verdict != Verdict.DUPLICATE})
        # Items refused before the journal committed them are not refused again. `refuse_again` counts them at replay.
        self._uncounted = set(self._refused_late)
        self._disposed |= self._uncounted
        self._advance()

    def replay(self, first_seq: int, end_seq: int) -> int | None:
        """Record segments that the journal replays, in order. Return how many of them the state already covers.

        Return None if the state covers all of them. Segments that are missing in the journal are no longer pending.
        """
        if end_seq <= self._replayed:
            return None
        self._skip(self._replayed, first_seq)
        known = count_received(self._replayed, first_seq, end_seq - first_seq)
        self._replayed = end_seq
        return known

    def refuse_again(self, seq: int) -> None:
        """Record that the journal replayed a segment that was refused as an item."""
        if seq in self._uncounted:
            self._uncounted.discard(seq)
            self.verdicts[Verdict.REFUSED] += 1
        else:
            self.dispose([[seq, seq + 1]], Verdict.REFUSED)

    def replay_ends(self) -> None:
        """Record that the journal has replayed all that it holds."""
        self._skip(self._replayed, self.durable)
        self._replayed = max(self._replayed, self.durable)

    def counted(self, end_seq: int) -> bool:
        """Return True if segments up to `end_seq` arrived in this generation of the learner thread, not before it."""
        return end_seq > self._replay_end

    def _skip(self, first: int, end: int) -> None:
        """Mark the segments from `first` to `end` that have no verdict as holes: they will never get one."""
        first = max(first, self.trained)
        if first >= end:
            return
        self._disposed = {seq for seq in self._disposed if not first <= seq < end}
        for start, stop in [*sorted(self._holes.items()), (end, end)]:
            if first < min(start, end):
                self._holes[first] = min(start, end)
            first = max(first, stop)
        self._advance()

    def _advance(self) -> None:
        while self.trained in self._disposed or self.trained in self._holes:
            self._disposed.discard(self.trained)
            self.trained = self._holes.pop(self.trained, self.trained + 1)

    # ---- reporting

    @property
    def pending(self) -> int:
        """The number of segments that are accepted and have no verdict."""
        holes = sum(end - first for first, end in self._holes.items())
        return self.received - self.trained - len(self._disposed) - holes

    def ack(self, *, generation: int, free_items: int, free_bytes: int, min_version: int) -> Ack:
        """Return the `Ack` for the actor. There is room for `free_items` more segments, of `free_bytes` bytes in all."""
        return Ack(
            generation,
            self.received,
            self.durable,
            self.trained,
            min(self.checkpointed, self.trained),
            self.accepted_steps,
            self.credit_steps,
            self.received + free_items,
            free_bytes,
            min_version,
            dict(self.verdicts),
        )
