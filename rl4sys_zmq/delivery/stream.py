"""The learner's record of one stream: the segments that have arrived, their verdicts, and the actor's credit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field

from rl4sys_zmq.dedup import count_received
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.wire.messages import Ack, Verdict

CHECKSUMS_KEPT = 64
FIRST_PACE_S, FIRST_STEPS, MAX_PACE_S = 0.02, 64.0, 10.0

Key = tuple[str, int]
"""The key of a stream within its client: the actor's id, and the origin."""


# Slots: instances with more than 30 attributes share no keys in CPython, so each would need a kilobyte more.
@dataclass(slots=True, eq=False, repr=False)
class SegmentStream:
    """The learner's record of one stream.

    `received`, `durable`, `trained` and `checkpointed` are marks. A refused segment keeps its sequence number.
    """

    client_id: str
    actor_id: str
    incarnation: int  # the actor's present start. It differs from `origin` with a spool, or after a higher number was taken.
    first_seq: InitVar[int]
    now: InitVar[float]
    _: KW_ONLY
    origin: int = 0
    submits: bool = True
    spooled: bool = False  # the actor continues the numbering after a restart. Never discard `received` then.
    owner: str = field(default="", init=False)  # the user that the stream belongs to; empty without keys
    library: str = field(default="", init=False)  # name and version, as the actor reports it
    address: str = field(default="", init=False)  # the IP address of the peer; empty on ipc and inproc
    relay: str = field(default="", init=False)  # the URI of the first relay that the actor should use; empty for none
    received: int = field(init=False)  # the next number that the learner expects. Those below were accepted or refused.
    durable: int = field(init=False)  # all segments below this number are in the journal
    trained: int = field(init=False)  # all segments below this number have a verdict
    checkpointed: int = field(default=0, init=False)  # a checkpoint covers all segments below this number
    # One past the number of the last accepted segment; 0 for none. `received` can be above it, because the actor can begin
    # later or give up segments. A restored stream has `received` here.
    accepted_end: int = field(default=0, init=False)
    accepted_steps: int = field(default=0, init=False)  # the steps in all segments below `received`
    refused: int = field(default=0, init=False)
    # Totals since the stream began. The actor may send a segment while its steps accepted and in flight are below the credit.
    credit_steps: int = field(default=0, init=False)
    want_steps: int = field(default=0, init=False)
    verdicts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Verdict.ALL, 0), init=False)
    last_seen: float = field(init=False)  # the time of the actor's last message
    useful: bool = field(default=True, init=False)  # False after the verdict quarantined or refused: no progress
    ready_at: float = field(init=False)  # the last useful delivery, or a later grant of credit after it had none
    # `accepted_steps` at the last such grant. An actor that returns its credit and requests it again gets no new `ready_at`.
    ready_steps: int = field(default=-1, init=False)
    pace_s: float = field(default=FIRST_PACE_S, init=False)  # the mean time from `ready_at` to the next useful delivery
    burst_steps: float = field(default=FIRST_STEPS, init=False)  # the mean number of steps of a useful delivery
    _disposed: set[int] = field(default_factory=set, init=False)
    _holes: dict[int, int] = field(default_factory=dict, init=False)
    _refused_late: list[int] = field(default_factory=list, init=False)
    _uncounted: set[int] = field(default_factory=set, init=False)
    _checksums: OrderedDict[int, int] = field(default_factory=OrderedDict, init=False)
    _replayed: int = field(init=False)
    _replay_end: int = field(init=False)

    def __post_init__(self, first_seq: int, now: float) -> None:
        self.origin = self.origin or self.incarnation
        self.received = self.durable = self.trained = first_seq
        self._replayed = self._replay_end = first_seq
        self.last_seen = self.ready_at = now

    @property
    def key(self) -> Key:
        """The key of the stream within its client."""
        return self.actor_id, self.origin

    def admit(self, first_seq: int, checksums: Sequence[int]) -> int:
        """Return how many segments of a message, from the first one on, are duplicates. Pass the others to `accept_all`.

        The checksums of the last `CHECKSUMS_KEPT` segments are kept, and compared with those of duplicates.

        Raises:
            ProtocolError: ``GAP`` if a segment before the first one is missing; ``EQUIVOCATION`` if a duplicate has another
                checksum than before.
        """
        if first_seq > self.received:
            raise ProtocolError(RefusalReason.GAP, f"received segment {first_seq}; expected segment {self.received}")
        skip = count_received(self.received, first_seq, len(checksums))
        for seq, checksum in enumerate(checksums[:skip], first_seq):
            if self._checksums.get(seq, checksum) != checksum:
                raise ProtocolError(
                    RefusalReason.EQUIVOCATION, f"segment {seq} of this actor was received before with other data"
                )
        self.verdicts[Verdict.DUPLICATE] += skip
        return skip

    def accept_all(self, steps: int, checksums: Sequence[int]) -> None:
        """Record that the next segments were accepted, one per checksum. Together they have `steps` steps."""
        kept = checksums[-CHECKSUMS_KEPT:]
        self.received = self.accepted_end = self.received + len(checksums)
        self.accepted_steps += steps
        self._checksums.update(zip(range(self.received - len(kept), self.received), kept, strict=True))
        while len(self._checksums) > CHECKSUMS_KEPT:
            self._checksums.popitem(last=False)

    @property
    def unused_steps(self) -> int:
        """The number of steps of the credit that the actor has not used."""
        return max(0, self.credit_steps - self.accepted_steps)

    @property
    def rate(self) -> float:
        """The steps per second that the actor delivers while it has credit; 0 after a quarantined or refused segment."""
        return self.burst_steps / max(self.pace_s, 1e-3) if self.useful else 0.0

    def measure(self, steps: int, now: float) -> None:
        """Update the actor's mean delivery time and size, after `steps` steps were accepted at the time `now`."""
        if self.useful and steps:
            self.pace_s += (min(now - self.ready_at, MAX_PACE_S) - self.pace_s) / 2
            self.burst_steps += (steps - self.burst_steps) / 2
            self.ready_at = now

    def refuse(self, seq: int) -> None:
        """Record a malformed segment as refused, after `accept_all` has counted it."""
        self.refused += 1
        self._refused_late.append(seq)
        self.dispose([[seq, seq + 1]], Verdict.REFUSED)

    def advance_to(self, first_seq: int) -> int:
        """Stop waiting for segments below `first_seq`, which the actor no longer has. Return how many are missing for good.

        An earlier process of the learner acknowledged these segments, or the learner discarded its record of them. To wait for
        them would block the stream forever.
        """
        lost = max(0, first_seq - self.received)
        if lost:
            self._skip(self.received, first_seq)
            self.received = self.durable = first_seq
        return lost

    def request_credit(self, want_steps: int) -> None:
        """Record the credit that the actor requests, as a total of steps. Unused credit above this number is taken back."""
        self.want_steps = want_steps
        self.credit_steps = min(self.credit_steps, max(want_steps, self.accepted_steps))

    def commit(self, end_seq: int) -> None:
        """Record that all segments below `end_seq` are durable."""
        self.durable = max(self.durable, end_seq)
        if self._refused_late:
            self._refused_late = [seq for seq in self._refused_late if seq >= self.durable]

    def dispose(self, ranges: Sequence[Sequence[int]], verdict: str) -> int:
        """Record a verdict for ranges (first number, one past the last). Return how many of the segments had no verdict before.

        A second verdict for a segment is ignored.
        """
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
        if fresh:
            self.useful = verdict not in (Verdict.QUARANTINED, Verdict.REFUSED)
        self._advance()
        return fresh

    def correct(self, count: int, verdict: str, replaces: str) -> int:
        """Change the verdict `replaces` of up to `count` segments to `verdict`. Return how many were changed."""
        count = min(count, self.verdicts[replaces])
        self.verdicts[replaces] -= count
        self.verdicts[verdict] += count
        return count

    def roll_back(self) -> int:
        """Give up all pending segments, because they cannot be recovered. Return their number."""
        pending = self.pending
        self._disposed.clear()
        self._holes.clear()
        self.trained = self.received
        return pending

    def rewind(self, mark: int, verdicts: Mapping[str, int]) -> None:
        """Return the stream to its state in a checkpoint, which includes the segments below `mark`."""
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
        """Record that the segments `first_seq` to `end_seq` - 1 of a journal entry are delivered again, after `rewind`.

        Call this for each entry, in order. Segments that the journal lacks between two entries get no verdict. Return how many
        of the segments, from the first one on, the checkpoint includes; None if it includes all of them.
        """
        if end_seq <= self._replayed:
            return None
        self._skip(self._replayed, first_seq)
        known = count_received(self._replayed, first_seq, end_seq - first_seq)
        self._replayed = end_seq
        return known

    def refuse_again(self, seq: int) -> None:
        """Count a malformed segment as refused once more, because the journal delivers it again after `rewind`."""
        if seq in self._uncounted:
            self._uncounted.discard(seq)
            self.verdicts[Verdict.REFUSED] += 1
        else:
            self.dispose([[seq, seq + 1]], Verdict.REFUSED)

    def replay_ends(self) -> None:
        """Record that the journal has no further segments to deliver again. Segments that it lacks get no verdict."""
        self._skip(self._replayed, self.durable)
        self._replayed = max(self._replayed, self.durable)

    def counted(self, end_seq: int) -> bool:
        """Return True if the segments before `end_seq` arrived after the last `rewind`.

        Only such segments were passed to `LearnerThreadBacklog.accept`.
        """
        return end_seq > self._replay_end

    def _skip(self, first: int, end: int) -> None:
        """Record that the segments `first` to `end` - 1 will never get a verdict, unless they have one already."""
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

    @property
    def pending(self) -> int:
        """The number of segments that are accepted and have no verdict so far."""
        holes = sum(end - first for first, end in self._holes.items())
        return self.received - self.trained - len(self._disposed) - holes

    def ack(self, *, generation: int, free_items: int, free_bytes: int, min_version: int) -> Ack:
        """Return the `Ack` message of this stream. The learner can still accept `free_items` segments of `free_bytes` bytes."""
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
