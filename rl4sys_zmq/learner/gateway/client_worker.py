"""The workers of one client, one after the other: their start, their messages, their crashes and their end."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from rl4sys_zmq.interfaces import WorkerHandle
from rl4sys_zmq.liveness import WORKER_RESTART
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.thread_messages import AssignClient, ThreadMessage, WorkerMessage

STEADY_S = 30.0
"""Time for which a worker must have trained so that its crash is followed by the shortest pause, in seconds."""

MAX_FAILED_STARTS = 5
"""Number of workers in a row that can crash before they are ready. After that, the client has failed."""


class ClientWorkers:
    """The workers of one client: the current one, and earlier ones until they have ended.

    Attributes:
        key: The first frame of each message of the current worker. It has random bytes, so that no process of an earlier learner
            has the same key.
        handle: The current worker; None after `end`.
        handles: All workers that can still be running.
        starts: The number of workers that were started.
        backlog: The messages to the current worker, oldest first. They wait here while its queue is full.
        started_at: The start of the current worker, on the monotonic clock, in seconds.
        restart_at: The time of the next start after a crash, on the monotonic clock, in seconds; None at all other times.
        devices: The device of each rank of the current worker.
    """

    def __init__(self, policy_id: bytes, monotonic: Callable[[], float]) -> None:
        self._policy_id, self._monotonic = policy_id, monotonic
        self.key = b""
        self.handle: WorkerHandle | None = None
        self.handles: list[WorkerHandle] = []
        self.starts = 0
        self.backlog: deque[WorkerMessage] = deque()
        self.started_at = monotonic()
        self.restart_at: float | None = None
        self.devices: list[str] = []
        self.crashes = 0
        self.last_crash = ""
        self._crashes_in_a_row = self._failed_starts = 0

    def start(self, assign: AssignClient, start_worker: Callable[[AssignClient, bytes], WorkerHandle]) -> None:
        """Start a new worker, and queue its first message."""
        self.starts += 1
        self.key = self._policy_id + self.starts.to_bytes(4, "little") + os.urandom(8)
        self.restart_at = None
        self.started_at = self._monotonic()
        self.send(assign)
        self.handle = start_worker(assign, self.key)
        self.handles.append(self.handle)

    def send(self, message: ThreadMessage) -> None:
        """Queue a message for the current worker."""
        self.backlog.append(encode(message))

    def end(self, *, replaced: bool = False) -> None:
        """Discard the queued messages, and ask all workers to end. With `replaced`, they write no checkpoint."""
        self.handle = self.restart_at = None
        self.devices = []
        self.backlog.clear()
        for handle in self.handles:
            handle.end(replaced=replaced)
        self.handles = [handle for handle in self.handles if handle.alive]

    def crashed(self, crash: str, *, ready: bool) -> bool:
        """Record a crash, and set `restart_at`. Return False if too many workers in a row have crashed before they were ready.

        The pause becomes longer with each crash, unless the worker had trained for `STEADY_S`.
        """
        now = self._monotonic()
        self.crashes += 1
        self.last_crash = crash
        if ready and now - self.started_at >= STEADY_S:
            self._crashes_in_a_row = 0
        self._failed_starts = 0 if ready else self._failed_starts + 1
        self.end(replaced=True)
        if self._failed_starts >= MAX_FAILED_STARTS:
            self._failed_starts = 0
            return False
        self.restart_at = now + WORKER_RESTART.pause_s(self._crashes_in_a_row)
        self._crashes_in_a_row += 1
        self.started_at = now
        return True

    def report(self, now: float) -> dict[str, Any]:
        """Return the part of the client's status about its worker and the crashes."""
        report = self.handle.describe() | {"devices": self.devices} if self.handle is not None else {}
        if self.crashes:
            report |= {"crashes": self.crashes, "last_crash": self.last_crash}
        if self.restart_at is not None:
            report["restart_in_s"] = round(max(0.0, self.restart_at - now), 3)
        return report
