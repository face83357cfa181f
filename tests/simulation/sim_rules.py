"""The rules of a simulation, and the record of what a journal has written."""

from dataclasses import dataclass, field, replace
from typing import Self

from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.wire.messages import Verdict

RULES = {
    "identity": "a sequence number of a stream means one segment, to both sides, and a segment has one number",
    "order": "the learner takes the segments of a stream in their order, without gaps that nobody announced",
    "once": "a segment reaches the algorithm at most once in what its state goes on from",
    "ahead": "the algorithm gets only what the journal has",
    "promised": "no actor is told a durable mark beyond what the journal has, nor a received mark behind it",
    "released": "an actor forgets a segment only when the learner's journal has it",
    "lost": "what an actor was told to forget is in the journal's lineage, or in a gap that was announced",
    "disposed": "what is in the journal is disposed of, unless a thread dies that no journal on a disk can feed again",
    "gap": "a gap is announced where the learner lacks what actors have forgotten, and is exactly that long",
    "session": "a message moves a mark only while its connection is the last that its actor was welcomed on",
    "expired": "a stream is forgotten after its lease, and only a forgotten one is refused as expired",
    "conserved": "submitted - in_doubt = dropped + in_actor + refused + accepted;"
    " accepted = trained + stale + quarantined + pending + rolled_back",
    "wedged": "when the faults are over, every queue and window drains",
    "credit": "what came and what is promised never exceed the demand, but for what came without credit or was taken back",
    "transit": "what the pool counts as given and not taken is what waits in the journal and travels to the learner thread",
    "stalled": "no client stands still whose learner thread wants data while an actor has some",
    "internal": "no message makes the learner raise an error that it has no name for, and no word stops a client",
    "verdicts": "an actor counts the verdicts that its segments met",
}
JUDGED = Verdict.FINAL


class Violation(AssertionError):
    """Raised when a rule is broken."""

    def __init__(self, rule: str, detail: str) -> None:
        self.rule = rule
        super().__init__(f"{rule}: {detail} ({RULES[rule]})")


@dataclass(frozen=True)
class Books:
    """The learner's counters of its client."""

    accepted: int
    refused: int
    judged: int
    pending: int
    rolled_back: int
    gap: int


@dataclass
class Lineage:
    """The record of what a journal has written.

    Attributes:
        marks: The next sequence number of each stream.
        accepted, refused: The segments.
        gaps: The announced gaps: the stream, the sequence number, and the number of times that the learner had
            forgotten the stream before it wrote a segment of it.
        touched: The streams with at least one segment.
        streams: The streams that have a row.
        forgotten: The streams that the learner forgot at the end of their lease.
    """

    marks: dict[Key, int] = field(default_factory=dict)
    accepted: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    gaps: set[tuple[Key, int, int]] = field(default_factory=set)
    touched: set[Key] = field(default_factory=set)
    streams: set[Key] = field(default_factory=set)
    forgotten: set[Key] = field(default_factory=set)

    def copy(self) -> Self:
        return replace(
            self,
            marks=dict(self.marks),
            accepted=set(self.accepted),
            refused=set(self.refused),
            gaps=set(self.gaps),
            touched=set(self.touched),
            streams=set(self.streams),
            forgotten=set(self.forgotten),
        )
