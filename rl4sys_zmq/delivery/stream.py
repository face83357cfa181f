"""The learner's side of one actor's stream: what came, what became of it, how much more may come."""

from __future__ import annotations

from collections.abc import Sequence

from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.wire.messages import Ack, Verdict

__all__ = ["Stream"]


class Stream:
    """Marks, verdicts and credit of one (client, actor, incarnation).

    All marks are "the next sequence number": everything below has the property.

    Attributes:
        received: accepted (or refused as an item).
        durable: in the ledger.
        trained: disposed of.
        accepted_steps: the steps of all segments below `received`.
        credit_steps: a segment may leave the actor while fewer steps than this are accepted or in flight.
        want_steps: up to where the actor would like credit, in the same units.
        verdicts: how many segments met each verdict.
        last_seen: when the actor was last heard, in the owner's clock.
        progress_at: when it last delivered, or first got credit after it had none.
    """

    def __init__(
        self, client_id: str, actor_id: str, incarnation: int, first_seq: int, now: float, *, submits: bool = True
    ) -> None:
        self.client_id = client_id
        self.actor_id = actor_id
        self.incarnation = incarnation
        self.submits = submits
        self.received = self.durable = self.trained = first_seq
        self.accepted_steps = 0
        self.credit_steps = 0
        self.want_steps = 0
        self.verdicts = dict.fromkeys(Verdict.ALL, 0)
        self.last_seen = self.progress_at = now
        self._first_seq = first_seq
        self._disposed: set[int] = set()
        self._holes: dict[int, int] = {}

    def admit(self, first_seq: int, count: int) -> int:
        """How many of the segments `first_seq`, ... were seen before; the rest are accepted by `accept`.

        Raises:
            ProtocolError: `Refusal.GAP` when a segment before them is missing.
        """
        if first_seq > self.received:
            raise ProtocolError(Refusal.GAP, f"segment {first_seq} came, {self.received} is next")
        skip = min(count, self.received - first_seq)
        self.verdicts[Verdict.DUPLICATE] += skip
        return skip

    def resume(self, first_seq: int) -> int:
        """Notes that the actor holds nothing below `first_seq` any more; returns how many segments will never come.

        They were acknowledged by another life of the learner, or forgotten; waiting for them would stop the stream for good.
        """
        lost = max(0, first_seq - self.received)
        if lost:
            self._holes[self.received] = first_seq
            self.received = self.durable = first_seq
            self._first_seq += lost
            self._advance()
        return lost

    def accept(self, count: int, steps: int) -> None:
        """Takes the next `count` segments with `steps` steps in all."""
        self.received += count
        self.accepted_steps += steps

    def wish(self, want_steps: int) -> None:
        """Takes the actor's word for how far it would like to go; credit beyond that goes back to the others."""
        self.want_steps = want_steps
        self.credit_steps = min(self.credit_steps, max(want_steps, self.accepted_steps))

    def commit(self, end_seq: int) -> None:
        """Everything below `end_seq` is in the ledger."""
        self.durable = max(self.durable, end_seq)

    def dispose(self, ranges: Sequence[Sequence[int]], verdict: str) -> int:
        """Notes what became of segments; returns how many were still pending. None is disposed of twice."""
        fresh = 0
        for first, end in ranges:
            for seq in range(max(first, self.trained), min(end, self.received)):
                if seq not in self._disposed:
                    self._disposed.add(seq)
                    fresh += 1
        self.verdicts[verdict] += fresh
        self._advance()
        return fresh

    def roll_back(self) -> int:
        """Forgets what is pending, because its learner thread is gone; returns how many segments that were."""
        pending = self.pending
        self._disposed.clear()
        self._holes.clear()
        self.trained = self.received
        return pending

    def _advance(self) -> None:
        while self.trained in self._disposed or self.trained in self._holes:
            self._disposed.discard(self.trained)
            self.trained = self._holes.pop(self.trained, self.trained + 1)

    @property
    def pending(self) -> int:
        """Accepted and not yet disposed of."""
        holes = sum(end - first for first, end in self._holes.items())
        return self.received - self.trained - len(self._disposed) - holes

    @property
    def accepted(self) -> int:
        """Accepted since this learner knows the stream, refused items included."""
        return self.received - self._first_seq

    def ack(self, *, generation: int, free_items: int, min_version: int) -> Ack:
        """The stream's state for its actor; `free_items` more segments have a place."""
        return Ack(
            generation,
            self.received,
            self.durable,
            self.trained,
            0,
            self.accepted_steps,
            self.credit_steps,
            self.received + free_items,
            min_version,
            dict(self.verdicts),
        )
