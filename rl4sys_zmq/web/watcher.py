"""The watcher of one learner: a thread that asks for its status each second and keeps the newest figures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.logs import printable
from rl4sys_zmq.ops.requests import request_status
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.security.keys import UserKeys
from rl4sys_zmq.web.records import RecordStore
from rl4sys_zmq.web.views import overview

ASK_S, TIMEOUT_S = 1.0, 3.0
UNREADABLE = "its status cannot be read by this version; install the same version on both sides"
RELAY = "a relay answers here; give the address of its learner"


@dataclass(frozen=True, slots=True)
class LearnerSnapshot:
    """What is known about one learner. `report` is its newest status, and `error` why there is no newer one, or ""."""

    address: str
    report: Mapping[str, Any] | None
    answered_unix_s: float | None
    error: str


@dataclass(frozen=True, slots=True)
class _Seen:
    snapshot: LearnerSnapshot
    overview: Mapping[str, Any] = field(default_factory=dict)


class Watcher(Worker, Resource):
    """Asks one learner each second. An answer that is missing, foreign or malformed becomes the snapshot's `error`."""

    def __init__(self, address: str, keys: UserKeys | None = None, *, max_bytes: int = 32 << 20) -> None:
        """Create the thread. `max_bytes` bounds the records that it keeps."""
        super().__init__(f"rl4sys-watcher-{address}")
        self.address, self.records = address, RecordStore(max_bytes)
        self._keys = keys
        self._seen = _Seen(LearnerSnapshot(address, None, None, "no answer yet"))

    def snapshot(self) -> LearnerSnapshot:
        """Return the newest snapshot."""
        return self._seen.snapshot

    def overview(self) -> dict[str, Any]:
        """Return the learner's part of the page's first screen, with the curve of each client."""
        seen = self._seen
        known, at = seen.snapshot, seen.snapshot.answered_unix_s
        return {"address": known.address, "answered_unix_s": at, "error": printable(known.error), **seen.overview}

    def run(self) -> None:
        """Ask until `stop` is called."""
        while not self._stop_asked.is_set():
            self._ask()
            self._stop_asked.wait(ASK_S)

    def _ask(self) -> None:
        known = self._seen.snapshot
        try:
            report = request_status(self.address, TIMEOUT_S, self._keys)
            now = time.time()
            if report.get("relay"):
                self._fail(RELAY)
                return
            self._seen = _Seen(LearnerSnapshot(self.address, report, now, ""), overview(report, now))
        except (RL4SysError, OSError) as exc:
            self._fail(str(exc))
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            self._fail(UNREADABLE)
        del known

    def _fail(self, error: str) -> None:
        known = self._seen.snapshot
        self._seen = _Seen(LearnerSnapshot(self.address, known.report, known.answered_unix_s, error), self._seen.overview)

    def close(self) -> None:
        """End the thread."""
        self.stop()
        self.join()
