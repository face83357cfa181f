"""Traces: records of events that real processes write outside the system under test.

Each process appends to its own file. A host records a segment before it submits it (`submitted`), when the learner's durable
mark covers it (`acked`), and when its own spool has it (`kept`). A learner records its counters (`law`) and finally the content
of its state (`applied`). `check_trace` in `harness.trace_check` compares these records. Each segment has a unique text
as its name, so that the check does not depend on the library's own numbers.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4sys_zmq.resource import Resource

LEARNER_LAW = ("accepted", ("trained", "stale", "quarantined", "evaluated", "pending", "rolled_back"))
ACTOR_LAW = ("submitted", ("dropped_at_source", "in_actor", "refused", "accepted", "in_doubt"))


class TraceBroken(AssertionError):
    """The history violates the guarantees, or the trace cannot be read."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a trace."""

    who: str
    life: int
    client: str
    at_ns: int
    kind: str
    ids: tuple[str, ...]
    fields: Mapping[str, Any]


class TraceWriter(Resource):
    """A writer of one process's trace: one system call per line, so that a SIGKILL truncates only the last."""

    def __init__(self, path: str | os.PathLike[str], *, client: str = "") -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")  # the last process was killed within a line
        self._say("life", (), {"pid": os.getpid(), "client": client})

    def submitted(self, *ids: str) -> None:
        """Record segments that the host is about to submit. Segments that are not recorded count as unexpected."""
        self._say("submitted", ids, {})

    def kept(self, ids: Sequence[str]) -> None:
        """Record segments that the actor's spool has. They must reach the state whichever process is killed."""
        self._say("kept", ids, {})

    def acked(self, ids: Sequence[str]) -> None:
        """Record segments that the learner's durable mark covers."""
        self._say("acked", ids, {})

    def applied(self, ids: Sequence[str], *, client: str) -> None:
        """Record the whole content of the state of `client`, in the order of its application."""
        self._say("applied", ids, {"client": client})

    def law(self, side: str, numbers: Mapping[str, Any], *, at_ns: int | None = None, client: str = "") -> None:
        """Record the counters of one moment, to check the conservation law."""
        total, parts = LEARNER_LAW if side == "learner" else ACTOR_LAW
        flat = {**numbers, **numbers.get("verdicts", {})} if side == "learner" else numbers
        kept = {name: flat.get(name, 0) for name in (total, *parts)}
        self._say("law", (), {"side": side, "client": client, **kept}, at_ns)

    def note(self, name: str, **fields: Any) -> None:
        self._say(name, (), fields)

    def close(self) -> None:
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
    """A reader that follows a trace while it is written. It skips incomplete lines."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._at = 0
        self._rest = b""
        self._ids: Counter[str] = Counter()
        self._last: dict[str, dict[str, Any]] = {}
        self._lines: Counter[str] = Counter()

    def ids(self, kind: str) -> int:
        """Return the number of segment names in all events of this kind so far. A name that occurs twice counts twice."""
        self._read()
        return self._ids[kind]

    def count(self, kind: str) -> int:
        self._read()
        return self._lines[kind]

    def last(self, kind: str) -> Mapping[str, Any]:
        """Return the last event of this kind; empty if there is none."""
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
                raise TraceBroken(f"{path}: line {torn} cannot be read, and its process wrote further lines")
            kind, at_ns, ids = document.pop("kind"), document.pop("at_ns"), tuple(document.pop("ids", ()))
            events.append(Event(path.stem, life, document.get("client") or client, at_ns, kind, ids, document))
    return events


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "kind" in document and "at_ns" in document else None
