"""A check of traces: each segment has exactly one place, and the conservation laws hold. Pure functions of events."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.trace import ACTOR_LAW, LEARNER_LAW, Event, TraceBroken

SHOWN = 5
"""Number of examples in a message."""

COUNTED = ("stale", "quarantined", "rolled_back")
"""The verdicts that explain why an acknowledged segment is not in the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOutcome:
    """The classification of all segments, by name.

    Attributes:
        submitted, acked, applied: Number of segments that each kind of event names. Segments that were kept count as acked.
        ok: Number of segments that are acked and once in the state.
        lost: Segments that are acked and not in the state. `counted` can explain them.
        duplicate: Segments that are in the state more than once.
        unexpected: Segments that are acked or in the state, but were never submitted.
        recovered: Segments that are in the state but not acked. This is allowed.
        unacked: Segments that are neither acked nor in the state: still with the actor, dropped, or refused.
        reordered: Segments that are in the state after one that their process submitted later.
        counted: The learner's last counts of ``stale``, ``quarantined`` and ``rolled_back`` segments.
        breaches: Violations of a conservation law, as text.
        laws: Number of checked conservation laws.
        lives: Number of process starts.
    """

    submitted: int
    acked: int
    applied: int
    ok: int
    lost: tuple[str, ...]
    duplicate: tuple[str, ...]
    unexpected: tuple[str, ...]
    recovered: tuple[str, ...]
    unacked: tuple[str, ...]
    reordered: tuple[str, ...]
    counted: Mapping[str, int] = field(default_factory=dict)
    breaches: tuple[str, ...] = ()
    laws: int = 0
    lives: int = 0

    def check(self, *, delivered: bool = True) -> None:
        """Check that every loss is counted, nothing is duplicated, and the conservation laws hold."""
        unexplained = max(0, len(self.lost) - sum(self.counted.values()))
        wrong = [
            f"{len(found)} {name} segments, such as {', '.join(found[:SHOWN])}"
            for name, found in (
                ("lost", self.lost if unexplained else ()),
                ("duplicate", self.duplicate),
                ("unexpected", self.unexpected),
                ("reordered", self.reordered),
                ("unacked", self.unacked if delivered else ()),
            )
            if found
        ]
        wrong += [f"{len(self.breaches)} violations, such as {self.breaches[0]}"] if self.breaches else []
        if wrong:
            raise TraceBroken(f"{'; '.join(wrong)} ({self})")

    def __str__(self) -> str:
        counted = ", ".join(f"{name} {count}" for name, count in self.counted.items())
        return (
            f"{self.submitted} submitted, {self.acked} acked, {self.applied} applied: {self.ok} ok, {len(self.lost)} lost, "
            f"{len(self.duplicate)} duplicate, {len(self.unexpected)} unexpected, {len(self.recovered)} recovered, "
            f"{len(self.unacked)} unacked, {len(self.reordered)} reordered; {counted}; {self.laws} laws in {self.lives} runs, "
            f"{len(self.breaches)} violated"
        )


def check_trace(events: Iterable[Event], *, one_lineage: bool = True) -> TraceOutcome:
    events = list(events)
    submitted: dict[str, tuple[str, int]] = {}
    acked: set[str] = set()
    states: dict[str, tuple[str, ...]] = {}
    places: Counter[str] = Counter()
    for event in events:
        if event.kind == "submitted":
            for name in event.ids:
                submitted[name] = event.who, places[event.who]
                places[event.who] += 1
        elif event.kind in ("acked", "kept"):
            acked.update(event.ids)
        elif event.kind == "applied":
            states[event.client] = event.ids
    applied = Counter(name for ids in states.values() for name in ids)
    once = {name for name, count in applied.items() if count == 1}
    laws = [event for event in events if event.kind == "law"]
    return TraceOutcome(
        submitted=len(submitted),
        acked=len(acked),
        applied=sum(applied.values()),
        ok=len(acked & once & submitted.keys()),
        lost=_names(acked - applied.keys()),
        duplicate=_names(name for name, count in applied.items() if count > 1),
        unexpected=_names((acked | applied.keys()) - submitted.keys()),
        recovered=_names((applied.keys() - acked) & submitted.keys()),
        unacked=_names(submitted.keys() - acked - applied.keys()),
        reordered=_names(name for ids in states.values() for name in _overtaken(ids, submitted)),
        counted=_counted(laws),
        breaches=(*_lawless(laws), *_mute(events), *(_forgotten(events, laws) if one_lineage else ())),
        laws=len(laws),
        lives=sum(event.kind == "life" for event in events),
    )


def _names(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(ids))


def _overtaken(ids: Sequence[str], submitted: Mapping[str, tuple[str, int]]) -> Iterable[str]:
    """Iterate over the segments that are in the state after one that their process submitted later."""
    latest: dict[str, int] = {}
    seen: set[str] = set()
    for name in ids:
        who, place = submitted.get(name, ("", -1))
        if place < latest.get(who, -1) and name not in seen:
            yield name
        seen.add(name)
        latest[who] = max(place, latest.get(who, -1))


def _counted(laws: Sequence[Event]) -> dict[str, int]:
    last = {law.client: law.fields for law in laws if law.fields["side"] == "learner"}
    return {name: sum(int(numbers[name]) for numbers in last.values()) for name in COUNTED}


def _lawless(laws: Sequence[Event]) -> Iterable[str]:
    for law in laws:
        total, parts = LEARNER_LAW if law.fields["side"] == "learner" else ACTOR_LAW
        numbers = {name: law.fields[name] for name in (total, *parts)}
        if numbers[total] != sum(numbers[name] for name in parts) or min(numbers.values()) < 0:
            yield f"{law.who} in life {law.life}: {numbers}"


def _mute(events: Sequence[Event]) -> Iterable[str]:
    """Iterate over the runs of learners that were ready but recorded no counters."""
    said = {(event.who, event.life) for event in events if event.kind == "law"}
    for event in events:
        if event.kind == "ready" and (event.who, event.life) not in said:
            yield f"{event.who} in life {event.life} was ready but recorded no counters"


def _forgotten(events: Sequence[Event], laws: Sequence[Event]) -> Iterable[str]:
    """Iterate over the moments at which a learner had accepted fewer segments than were acknowledged before."""
    words = sorted((e for e in events if e.kind in ("acked", "law")), key=lambda e: e.at_ns)
    promised: Counter[str] = Counter()
    for event in words:
        if event.kind == "acked":
            promised[event.client] += len(event.ids)
        elif event.fields["side"] == "learner" and event.fields["accepted"] < promised[event.client]:
            yield (
                f"{event.who} in life {event.life}: {event.fields['accepted']} accepted for {event.client!r}, "
                f"{promised[event.client]} were acked before"
            )
