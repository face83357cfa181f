"""The learner's side of one actor's stream: what came, what became of it, how much more may come."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.wire.messages import Ack, Verdict

__all__ = ["Key", "Stream"]

CHECKSUMS_KEPT = 64

Key = tuple[str, int]
"""A stream within its client: the actor's id and the origin of its numbers."""


class Stream:
    """Marks, verdicts and credit of one (client, actor, origin).

    All marks are "the next sequence number": everything below has the property.

    Attributes:
        origin: the incarnation that began to number the segments.
        incarnation: the one that speaks now; the same unless the actor has a spool.
        spooled: numbers and segments outlive the actor's process, so the mark must never be forgotten.
        owner: the authenticated user that it belongs to; empty without keys.
        received: accepted (or refused as an item).
        durable: in the journal.
        trained: disposed of.
        checkpointed: in a checkpoint of the learner.
        accepted_steps: the steps of all segments below `received`.
        refused: how many numbers were used up by segments refused as items.
        credit_steps: a segment may leave the actor while fewer steps than this are accepted or in flight.
        want_steps: up to where the actor would like credit, in the same units.
        verdicts: how many segments met each verdict.
        last_seen: when the actor was last heard, in the owner's clock.
        progress_at: when it last delivered, or first got credit after it had none.
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
        """Its name within the client."""
        return self.actor_id, self.origin

    # ---- what comes

    def admit(self, first_seq: int, checksums: Sequence[int]) -> int:
        """How many of the segments `first_seq`, ... were seen before; the rest are accepted by `accept`.

        Args:
            first_seq: the number of the first.
            checksums: of the segments; one that was seen before must be what it was.

        Raises:
            ProtocolError: ``GAP`` when a segment before them is missing; ``EQUIVOCATION`` when one was something else before.
        """
        if first_seq > self.received:
            raise ProtocolError(Refusal.GAP, f"segment {first_seq} came, {self.received} is next")
        skip = min(len(checksums), self.received - first_seq)
        for seq, checksum in enumerate(checksums[:skip], first_seq):
            if self._checksums.get(seq, checksum) != checksum:
                raise ProtocolError(Refusal.EQUIVOCATION, f"segment {seq} of this actor was another one before")
        self.verdicts[Verdict.DUPLICATE] += skip
        return skip

    def accept(self, steps: int, checksum: int) -> None:
        """Takes the next segment, of `steps` steps."""
        self.accept_all(steps, [checksum])

    def accept_all(self, steps: int, checksums: Sequence[int]) -> None:
        """Takes the next segments, of `steps` steps in all."""
        kept = checksums[-CHECKSUMS_KEPT:]
        self.received += len(checksums)
        self.accepted_steps += steps
        self._checksums.update(zip(range(self.received - len(kept), self.received), kept, strict=True))
        while len(self._checksums) > CHECKSUMS_KEPT:
            self._checksums.popitem(last=False)

    def refuse(self, seq: int | None = None) -> None:
        """A segment that was accepted just now, by default the last, is refused as an item: its number is used up."""
        seq = self.received - 1 if seq is None else seq
        self.refused += 1
        self._refused_late.append(seq)
        self.dispose([[seq, seq + 1]], Verdict.REFUSED)

    def resume(self, first_seq: int) -> int:
        """Notes that the actor holds nothing below `first_seq` any more; returns how many segments will never come.

        They were acknowledged by another life of the learner, or forgotten; waiting for them would stop the stream for good.
        """
        lost = max(0, first_seq - self.received)
        if lost:
            self._skip(self.received, first_seq)
            self.received = self.durable = first_seq
        return lost

    def request_credit(self, want_steps: int) -> None:
        """Takes the actor's word for how far it would like to go; credit beyond that goes back to the others."""
        self.want_steps = want_steps
        self.credit_steps = min(self.credit_steps, max(want_steps, self.accepted_steps))

    def commit(self, end_seq: int) -> None:
        """Everything below `end_seq` is in the journal."""
        self.durable = max(self.durable, end_seq)
        if self._refused_late:
            self._refused_late = [seq for seq in self._refused_late if seq >= self.durable]

    # ---- what becomes of it

    def dispose(self, ranges: Sequence[Sequence[int]], verdict: str) -> int:
        """Notes what became of segments; returns how many were still pending. None is disposed of twice."""
        fresh = 0
        for first, end in ranges:
            if first <= self.trained and not self._disposed and not self._holes:  # in order, as nearly always
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

    def correct(self, count: int, verdict: str, but: str) -> int:
        """Moves segments that were disposed of to another verdict; returns how many that were."""
        count = min(count, self.verdicts[but])
        self.verdicts[but] -= count
        self.verdicts[verdict] += count
        return count

    def roll_back(self) -> int:
        """Forgets what is pending, because nothing can bring it back; returns how many segments that were."""
        pending = self.pending
        self._disposed.clear()
        self._holes.clear()
        self.trained = self.received
        return pending

    # ---- going back to a checkpoint, and being fed from the journal again

    def rewind(self, mark: int, verdicts: Mapping[str, int]) -> None:
        """The learner thread goes on from a state that has disposed of what is below `mark`, with these verdicts."""
        self._disposed.clear()
        self._holes.clear()
        self.trained = self._replayed = min(mark, self.received)
        self._replay_end = self.received
        self.verdicts.update({verdict: verdicts.get(verdict, 0) for verdict in Verdict.ALL if verdict != Verdict.DUPLICATE})
        # Nobody refuses once more what the journal has not taken yet; it is not pending, and counted when the journal gives it.
        self._uncounted = set(self._refused_late)
        self._disposed |= self._uncounted
        self._advance()

    def replay(self, first_seq: int, end_seq: int) -> int | None:
        """The journal gives segments back, in order: how many of them the state has already, None when it has all.

        What the journal does not have any more leaves a hole, which is pending no more.
        """
        if end_seq <= self._replayed:
            return None
        self._skip(self._replayed, first_seq)
        known = max(0, self._replayed - first_seq)
        self._replayed = end_seq
        return known

    def refuse_again(self, seq: int) -> None:
        """The journal gave back a segment that was refused as an item."""
        if seq in self._uncounted:
            self._uncounted.discard(seq)
            self.verdicts[Verdict.REFUSED] += 1
        else:
            self.dispose([[seq, seq + 1]], Verdict.REFUSED)

    def replay_ends(self) -> None:
        """The journal has given back all that it holds."""
        self._skip(self._replayed, self.durable)
        self._replayed = max(self._replayed, self.durable)

    def counted(self, end_seq: int) -> bool:
        """Whether segments up to `end_seq` came in this life of the learner thread, rather than before it."""
        return end_seq > self._replay_end

    def _skip(self, first: int, end: int) -> None:
        """Segments that will never be disposed of, as far as that is not known yet."""
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

    # ---- what is said

    @property
    def pending(self) -> int:
        """Accepted and not yet disposed of."""
        holes = sum(end - first for first, end in self._holes.items())
        return self.received - self.trained - len(self._disposed) - holes

    def ack(self, *, generation: int, free_items: int, free_bytes: int, min_version: int) -> Ack:
        """The stream's state for its actor; `free_items` more segments of `free_bytes` in all have a place."""
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
