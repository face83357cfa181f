"""The watcher of one learner: a thread that asks for its status and its newest records each second, and keeps them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.learner.run.history import History
from rl4sys_zmq.ops.requests import StatusConnection
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.security.keys import UserKeys
from rl4sys_zmq.web.views import MALFORMED, Sparklines, is_record, overview

ASK_S, TIMEOUT_S = 1.0, 3.0
MAX_CATCH_UP = 256
"""The largest number of requests, of 256 kB of records each, with which a watcher reads a learner's history at once."""
FEW = 32
"""With fewer records than this in an answer, what else there is can wait for the next one."""
UNREADABLE = "its status cannot be read; it has another version: install the same one on both sides"
RELAY = "a relay answers at this address; give the address of its learner"


@dataclass(frozen=True, slots=True)
class LearnerSnapshot:
    """The newest knowledge of one learner: its last status, and in `error` why there is no newer one, or ""."""

    address: str
    report: Mapping[str, Any] | None
    answered_unix_s: float | None
    error: str


class Watcher(Worker, Resource):
    """Asks one learner each second. An answer that is missing, foreign or malformed becomes the snapshot's `error`."""

    def __init__(self, address: str, keys: UserKeys | None = None) -> None:
        """Create the thread. Raise ConfigError for a wrong address."""
        super().__init__(f"rl4sys-watcher-{address}")
        self.address = address
        self._connection = StatusConnection(address, keys)
        self._snapshot = LearnerSnapshot(address, None, None, "no answer yet")
        self._overview: Mapping[str, Any] = {}
        self._lock = threading.Lock()  # guards what follows
        self._epoch = 0.0  # the start of the learner whose records these are
        self._next = 0
        self._history, self._sparklines = History(), Sparklines()

    def snapshot(self) -> LearnerSnapshot:
        """Return the newest snapshot."""
        return self._snapshot

    def overview(self) -> dict[str, Any]:
        """Return the learner's part of the page's first screen."""
        known = self._snapshot
        seen = {"address": self.address, "answered_unix_s": known.answered_unix_s, "error": known.error, **self._overview}
        with self._lock:
            seen["changes"] = self._sparklines.changes()
            seen["curves"] = {client_id: self._sparklines.of(client_id) for client_id in self._overview.get("clients", ())}
        return seen

    def records(self, client_id: str | None, since: int) -> tuple[bytes, int, float]:
        """Return records of one client (None: of all), with those of no client, as a JSON array, the next `since`, and the epoch.

        Another epoch than before means that the learner has restarted, and the records begin again at 0.
        """
        with self._lock:
            content, following = self._history.since(since, lambda name: client_id in (None, name))
            return content, following, self._epoch

    def run(self) -> None:
        """Ask until `stop` is called."""
        while not self._stop_asked.is_set():
            self._ask()
            self._stop_asked.wait(ASK_S)
        self._connection.close()

    def _ask(self) -> None:
        try:
            for _ in range(MAX_CATCH_UP):
                answer = self._connection.read(TIMEOUT_S, since=self._next)
                if answer.report.get("relay"):
                    return self._fail(RELAY)
                now = time.time()
                seen = overview(answer.report, now)
                epoch = float(answer.report.get("started_unix_s", 0.0))
                if self._keep(epoch, answer.records, answer.next_record) and len(answer.records) < FEW:
                    break
            self._overview = seen
            self._snapshot = LearnerSnapshot(self.address, answer.report, now, "")
        except (RL4SysError, OSError) as exc:
            self._fail(str(exc))
        except MALFORMED:
            self._fail(UNREADABLE)

    def _keep(self, epoch: float, records: Iterable[Mapping[str, Any]], following: int) -> bool:
        """Keep records. Return False if they are to be asked for again from 0."""
        with self._lock:
            if epoch != self._epoch or following < self._next:
                asked, self._next, self._epoch = self._next, 0, epoch
                self._history, self._sparklines = History(), Sparklines()
                if asked:
                    return False
            self._next = following
            for record in filter(is_record, records):
                self._history.add(record)
                self._sparklines.add(record)
        return True

    def _fail(self, error: str) -> None:
        self._snapshot = replace(self._snapshot, error=error)

    def close(self) -> None:
        """End the thread."""
        self.stop()
        self.join()
