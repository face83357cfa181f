"""What happened in a simulation, as an onlooker would write it down, and the rules that it must not break.

The onlooker knows what neither side can: which segment really is behind a sequence number. `History.check` holds the notes
against the guarantees; every breach is a `Violation` with the name of its rule.
"""

from __future__ import annotations

from collections import Counter

__all__ = ["RULES", "History", "Violation"]

RULES = {
    "identity": "a sequence number of one incarnation means one segment, to both sides",
    "order": "a learner's life takes the segments of a stream in their order, without gaps that nobody announced",
    "once": "a learner's life gives a segment to the algorithm at most once",
    "released": "an actor forgets a segment only when a learner's ledger has it, or has refused it",
    "disposed": "what is in the ledger is disposed of, unless the learner or its thread dies",
    "conserved": "submitted = dropped_at_source + in_actor + refused + accepted",
    "wedged": "when the faults are over, every queue and window drains",
    "credit": "what came and what is promised never exceed the demand, but for what came without credit or was taken back",
    "verdicts": "an actor counts no verdict that no learner gave",
}

Stream = tuple[str, int]
"""An actor and its incarnation."""


class Violation(AssertionError):
    """A rule that was broken.

    Attributes:
        rule: one of `RULES`.
    """

    def __init__(self, rule: str, detail: str) -> None:
        self.rule = rule
        super().__init__(f"{rule}: {detail} ({RULES[rule]})")


class History:
    """The notes. Segments are called by their episode ids, which are unique in a simulation."""

    def __init__(self) -> None:
        self.assigned: dict[tuple[Stream, int], int] = {}
        self.submitted: dict[Stream, set[int]] = {}
        self.dropped: dict[Stream, set[int]] = {}
        self.accepted: set[int] = set()
        self.refused: set[int] = set()
        self.committed: set[int] = set()
        self.verdicts: Counter[tuple[Stream, str]] = Counter()
        self.counts: Counter[str] = Counter()
        self._life = 0
        self._next: dict[Stream, int] = {}
        self._observed: set[int] = set()
        self._owed: set[int] = set()

    # ---- the actors' side

    def submit(self, stream: Stream, segment: int) -> None:
        """A host handed over a segment."""
        self.submitted.setdefault(stream, set()).add(segment)
        self.counts["submitted"] += 1

    def drop(self, stream: Stream, segment: int) -> None:
        """The queue was full."""
        self.dropped.setdefault(stream, set()).add(segment)
        self.counts["dropped_at_source"] += 1

    def assign(self, stream: Stream, seq: int, segment: int) -> None:
        """A segment left the queue under a sequence number."""
        known = self.assigned.setdefault((stream, seq), segment)
        if known != segment:
            raise Violation("identity", f"{stream} sent {segment} as {seq}, which is {known}")

    def release(self, stream: Stream, seq: int) -> None:
        """An actor forgot a segment."""
        segment = self.assigned[stream, seq]
        if segment not in self.committed and segment not in self.refused:
            raise Violation("released", f"{stream} forgot {seq}")

    # ---- the learner's side

    def begin_life(self, *, thread_only: bool = False) -> None:
        """The learner starts with nothing; or only its learner thread does, and what it owed is rolled back."""
        self._owed.clear()
        if thread_only:
            self.counts["thread_restarts"] += 1
            return
        self._life += 1
        self.counts["lives"] += 1
        self._next.clear()
        self._observed.clear()

    def begin_stream(self, stream: Stream, first_seq: int) -> None:
        """The learner expects `first_seq` next, on the word of the actor's HELLO."""
        self._next[stream] = max(first_seq, self._next.get(stream, 0))

    def take(self, stream: Stream, seq: int, segment: int, *, refused: bool) -> None:
        """The learner moved its mark over a segment."""
        if self.assigned.get((stream, seq)) != segment:
            raise Violation("identity", f"the learner took {segment} as {seq} of {stream}")
        if seq != self._next.get(stream, 0):
            raise Violation("order", f"{seq} of {stream} was taken, {self._next.get(stream, 0)} was next")
        self._next[stream] = seq + 1
        (self.refused if refused else self.accepted).add(segment)
        self.counts["refused" if refused else "accepted"] += 1

    def commit(self, segment: int) -> None:
        """The ledger has it."""
        self.committed.add(segment)
        self._owed.add(segment)

    def observe(self, segment: int) -> None:
        """The algorithm got it."""
        if segment in self._observed:
            raise Violation("once", f"segment {segment} reached the algorithm twice in life {self._life}")
        self._observed.add(segment)

    def dispose(self, stream: Stream, segment: int, verdict: str) -> None:
        """The algorithm is done with it."""
        self._owed.discard(segment)
        self.verdicts[stream, verdict] += 1
        self.counts[verdict] += 1

    # ---- the end

    def check(self, stream: Stream, in_actor: int) -> None:
        """At quiescence: nothing is on its way, and every segment has one place."""
        if in_actor:
            raise Violation("wedged", f"{in_actor} segments are still in the actor of {stream}")
        submitted, dropped = self.submitted.get(stream, set()), self.dropped.get(stream, set())
        homeless = submitted - dropped - self.accepted - self.refused
        doubled = (dropped & (self.accepted | self.refused)) | (self.accepted & self.refused)
        if homeless or doubled & submitted:
            raise Violation("conserved", f"of {stream} no place for {sorted(homeless)[:5]}, two for {sorted(doubled)[:5]}")

    def check_disposed(self) -> None:
        """At the end of a life that was not cut short."""
        if self._owed:
            raise Violation("disposed", f"{len(self._owed)} segments in the ledger met no verdict, such as {min(self._owed)}")

    def check_verdicts(self, stream: Stream, counted: dict[str, int]) -> None:
        """What an actor says became of its segments."""
        for verdict in ("trained", "stale", "quarantined"):
            given = self.verdicts[stream, verdict]
            if counted[verdict] > given:
                raise Violation("verdicts", f"{stream} counts {counted[verdict]} {verdict}, there were {given}")
