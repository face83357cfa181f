"""What happened in real processes, written down by themselves outside the system.

Each process under test appends to a file of its own: a host before it hands a segment over (`submitted`), and when somebody has
promised to keep it (`acked`: the learner's durable mark covers it; `kept`: its own spool has it); a learner what its counters
say (`law`), and at the end what its state holds (`applied`). `check_trace` (its own module) holds these against each other. A
segment is a text that stands for no other: nothing of the library's own numbering is trusted.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4sys_zmq.resource import Resource

__all__ = ["ACTOR_LAW", "LEARNER_LAW", "Event", "TraceBroken", "TraceTail", "TraceWriter", "read_trace"]

LEARNER_LAW = ("accepted", ("trained", "stale", "quarantined", "pending", "rolled_back"))
ACTOR_LAW = ("submitted", ("dropped_at_source", "in_actor", "refused", "accepted", "in_doubt"))


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
