"""What happened in real processes, written down by themselves outside the system, and what it must have been.

Each process under test appends to a file of its own: a host before it hands a segment over (`submitted`), and when somebody has
promised to keep it (`acked`: the learner's durable mark covers it; `kept`: its own spool has it); a learner what its counters
say (`law`), and at the end what its state holds (`applied`). `check_trace` holds these against each other. A segment is a text
that stands for no other: nothing of the library's own numbering is trusted.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl4sys_zmq.resource import Resource

__all__ = ["Event", "Outcome", "TraceBroken", "TraceTail", "TraceWriter", "check_trace", "read_trace"]

SHOWN = 5
"""How many examples a message names."""

LEARNER_LAW = ("accepted", ("trained", "stale", "quarantined", "pending", "rolled_back"))
ACTOR_LAW = ("submitted", ("dropped_at_source", "in_actor", "refused", "accepted", "in_doubt"))
COUNTED = ("stale", "quarantined", "rolled_back")
"""The verdicts that explain why an acknowledged segment is not in the state."""


class TraceBroken(AssertionError):
    """The history is not one that the guarantees allow, or is none at all."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a trace.

    Attributes:
        who: the process: the name of its file.
        life: which start of it, from 1.
        client: the client that it acts or learns for, as its writer said; empty for none.
        at_ns: when, by the monotonic clock that all processes of one machine share.
        kind: ``life``, ``submitted``, ``kept``, ``acked``, ``applied``, ``law``, or the name of a note.
        ids: the segments that it is about.
        fields: everything else.
    """

    who: str
    life: int
    client: str
    at_ns: int
    kind: str
    ids: tuple[str, ...]
    fields: Mapping[str, Any]


class TraceWriter(Resource):
    """Appends to one process's trace: a line and a system call per event, so that a SIGKILL costs at most a torn last line."""

    def __init__(self, path: str | os.PathLike[str], *, client: str = "") -> None:
        """Begins a life in the file `path`, after whatever earlier lives have written there.

        Args:
            path: the file; its stem names the process.
            client: for which it acts.
        """
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")  # the last life was killed within a line
        self._say("life", (), {"pid": os.getpid(), "client": client})

    def submitted(self, *ids: str) -> None:
        """The host is about to hand these over. Say it first: what is not said here and turns up is unexpected."""
        self._say("submitted", ids, {})

    def kept(self, ids: Sequence[str]) -> None:
        """The actor's spool has these: they must reach the state, whoever dies."""
        self._say("kept", ids, {})

    def acked(self, ids: Sequence[str]) -> None:
        """It was seen that the learner's durable mark covers these."""
        self._say("acked", ids, {})

    def applied(self, ids: Sequence[str], *, client: str) -> None:
        """What the state of `client` holds now, all of it, in the order of its application."""
        self._say("applied", ids, {"client": client})

    def law(self, side: str, numbers: Mapping[str, Any], *, at_ns: int | None = None, client: str = "") -> None:
        """The counters at one moment.

        Args:
            side: ``learner`` or ``actor``.
            numbers: what a status says of a client, or `RL4SysAgent.stats`; all but the law's own numbers are left out.
            at_ns: a monotonic moment before they were read; None: now.
            client: whose.
        """
        total, parts = LEARNER_LAW if side == "learner" else ACTOR_LAW
        flat = {**numbers, **numbers.get("verdicts", {})} if side == "learner" else numbers
        kept = {name: flat.get(name, 0) for name in (total, *parts)}
        self._say("law", (), {"side": side, "client": client, **kept}, at_ns)

    def note(self, name: str, **fields: Any) -> None:
        """Anything else."""
        self._say(name, (), fields)

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _say(self, kind: str, ids: Sequence[str], fields: Mapping[str, Any], at_ns: int | None = None) -> None:
        document = {"kind": kind, "at_ns": time.monotonic_ns() if at_ns is None else at_ns, **fields}
        if ids:
            document["ids"] = list(ids)
        rest = memoryview(json.dumps(document).encode() + b"\n")
        while rest:
            rest = rest[os.write(self._fd, rest) :]


class TraceTail:
    """Follows one trace while it is written. Lines that are not whole yet, or never will be, are left out."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._at = 0
        self._rest = b""
        self._ids: Counter[str] = Counter()
        self._last: dict[str, dict[str, Any]] = {}
        self._lines: Counter[str] = Counter()

    def ids(self, kind: str) -> int:
        """How many segments the events of this kind name so far."""
        self._read()
        return self._ids[kind]

    def count(self, kind: str) -> int:
        """How many events of this kind there are so far."""
        self._read()
        return self._lines[kind]

    def last(self, kind: str) -> Mapping[str, Any]:
        """The last event of this kind; empty when there is none."""
        self._read()
        return self._last.get(kind, {})

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            document = _parsed(line)
            if document is not None:
                self._lines[document["kind"]] += 1
                self._ids[document["kind"]] += len(document.get("ids", ()))
                self._last[document["kind"]] = document


def read_trace(*paths: str | os.PathLike[str]) -> list[Event]:
    """All events of these files: those of one file in its order.

    Raises:
        TraceBroken: for a line that cannot be read and was not a killed process's last.
    """
    events: list[Event] = []
    for path in map(Path, paths):
        life, client = 0, ""
        torn = 0
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            document = _parsed(line)
            if document is None:
                torn = number if line else torn
                continue
            if document["kind"] == "life":
                life, client, torn = life + 1, document["client"], 0
            if torn:
                raise TraceBroken(f"{path}: line {torn} cannot be read, and its process went on")
            kind, at_ns, ids = document.pop("kind"), document.pop("at_ns"), tuple(document.pop("ids", ()))
            events.append(Event(path.stem, life, document.get("client") or client, at_ns, kind, ids, document))
    return events


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "kind" in document and "at_ns" in document else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The place of each segment, by its name.

    Attributes:
        submitted, acked, applied: how many segments each event names; what was kept counts as acked.
        ok: acked, and once in the state.
        lost: acked, and not in the state. `counted` may explain them.
        duplicate: more than once in the state.
        unexpected: acked or in the state, and never submitted.
        recovered: in the state, though nobody was told that it was kept. That is allowed.
        unacked: neither acked nor in the state: with the actor still, dropped, or refused.
        reordered: in the state before another segment that its process submitted earlier.
        counted: by the learner's last words, its ``stale``, ``quarantined`` and ``rolled_back`` segments.
        breaches: laws that did not hold, in words.
        laws: how many were checked.
        lives: how many starts of a process there were.
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
        """Holds the outcome against the guarantees: each loss is counted, nothing is doubled, and every law held.

        Args:
            delivered: nothing may be unacked either.

        Raises:
            TraceBroken: when it breaks one; it names them all.
        """
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
        wrong += [f"{len(self.breaches)} breaches, such as {self.breaches[0]}"] if self.breaches else []
        if wrong:
            raise TraceBroken(f"{'; '.join(wrong)} ({self})")

    def __str__(self) -> str:
        counted = ", ".join(f"{name} {count}" for name, count in self.counted.items())
        return (
            f"{self.submitted} submitted, {self.acked} acked, {self.applied} applied: {self.ok} ok, {len(self.lost)} lost, "
            f"{len(self.duplicate)} duplicate, {len(self.unexpected)} unexpected, {len(self.recovered)} recovered, "
            f"{len(self.unacked)} unacked, {len(self.reordered)} reordered; {counted}; {self.laws} laws in {self.lives} lives, "
            f"{len(self.breaches)} breached"
        )


def check_trace(events: Iterable[Event], *, one_lineage: bool = True) -> Outcome:
    """Classifies every segment and checks every law.

    Args:
        events: of all processes; those of one process in order.
        one_lineage: no learner's state was ever put back or thrown away, so that at each moment it had accepted all that had
            been acked to its client's actors before.
    """
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
    return Outcome(
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
    """The segments in a state that stand behind one that its process submitted later."""
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
    """The lives of learners that were ready to work and said nothing of their counters."""
    said = {(event.who, event.life) for event in events if event.kind == "law"}
    for event in events:
        if event.kind == "ready" and (event.who, event.life) not in said:
            yield f"{event.who} in life {event.life} was ready and told no counters"


def _forgotten(events: Sequence[Event], laws: Sequence[Event]) -> Iterable[str]:
    """The moments at which a learner knew less than had been acknowledged before them."""
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
