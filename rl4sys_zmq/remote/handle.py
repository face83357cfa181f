"""The gateway's handle to a worker on another machine, for all engines that start such workers.

An engine says only how a process is started on another machine, whether it runs, and how it is killed (`RemoteProcess`). All else
is here and in `worker_link`: the keys, the messages, the checkpoints, and the rules of when a worker counts as lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from rl4sys_zmq.child_process import start_error_text
from rl4sys_zmq.errors import ConfigError, RL4SysError
from rl4sys_zmq.learner.engines.base import ABORT_WAIT_S, REPLACED_KILL_S, WorkerAssignment, WorkerProcessHandle
from rl4sys_zmq.learner.engines.remote_start import RemoteWorkerStart
from rl4sys_zmq.learner.engines.worker_link import RemoteWorkerLink
from rl4sys_zmq.liveness import REMOTE_WORKER_SILENCE_S
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.wire.thread_messages import ThreadFailed, WorkerMessage, frames_of

__all__ = ["RemoteProcess", "RemoteWorker"]

log = get_logger(__name__)

WAIT_S = 0.2
_PAUSED_S = 2.0


class RemoteProcess(Protocol):
    """A process that an engine has started on another machine, and that runs `run_remote_worker`.

    One thread uses it, except that any thread can call `kill`.
    """

    def wait(self, timeout_s: float) -> str | None:
        """Wait for the end of the process, at most `timeout_s` seconds.

        Returns:
            None while it runs or has not begun so far. Afterwards the text that `run_remote_worker` returned (empty if it ended
            in order), or a description of how the process ended, such as ``signal 9 (SIGKILL)`` or the loss of its node.
        """

    def kill(self) -> None:
        """End the process by force, without waiting for its end. A second call does nothing. Any thread can call this."""

    def describe(self) -> dict[str, Any]:
        """Return what the learner's status shows of the process, as JSON, such as its node."""


class RemoteWorker(WorkerProcessHandle):
    """A handle to a worker on another machine. It implements `WorkerHandle`.

    Only the gateway uses this object, except that any thread can call `alive`, `join` and `abort`. The thread of this object
    starts the worker, writes the worker's log records to the log, and waits for the worker's end.
    """

    def __init__(
        self, assignment: WorkerAssignment, link: RemoteWorkerLink, launch: Callable[[RemoteWorkerStart], RemoteProcess]
    ) -> None:
        """Start the worker without waiting for it.

        Args:
            assignment: The client that the worker trains.
            link: The connection, from `GatewayEndpoints.connect_worker`.
            launch: Starts a process that calls `run_remote_worker` with this argument. A thread of this object calls it once,
                so the call can take long. A ConfigError fails the client; other errors of this library count as a crash.
        """
        super().__init__("rl4sys-remote", assignment)
        self._client_id, self._engine = assignment.client_id, assignment.engine
        self._link, self._launch = link, launch
        self._process: RemoteProcess | None = None
        self._awake_at = self._turned_at = time.monotonic()
        try:
            self.start()
        except BaseException:
            link.finished = True
            raise

    def send(self, message: WorkerMessage) -> bool:
        """Queue a message for the worker. Return False if the queue is full, the worker is not connected, or `end` was called."""
        return self._link.send(frames_of(message))

    def end(self, *, replaced: bool) -> None:
        self._link.end(replaced=replaced)
        if replaced:
            self.kill_within(REPLACED_KILL_S)

    @property
    def silent_s(self) -> float:
        if self._link.sign is None or self.over:
            return 0.0
        # The time in which this whole process was stopped does not count.
        return max(0.0, time.monotonic() - max(self._link.sign_at, self._awake_at))

    def describe(self) -> dict[str, Any]:
        """Return the engine, the result of `RemoteProcess.describe`, and after the first sign of life the worker's data."""
        process = self._process.describe() if self._process is not None else {}
        status: dict[str, Any] = {"engine": self._engine, **process}
        sign = self._link.sign
        if sign is not None:
            status |= {"host": sign.host, "pid": sign.pid}
            status |= {"busy_s": round(sign.busy_s, 3), "silent_s": round(self.silent_s, 3)}
        return status

    def stop(self) -> None:
        self._kill_at = 0.0
        self._kill()

    def run(self) -> None:
        try:
            end = self._watch_process()
            if end and not self._link.failed:
                self.crash = f"its worker{self._where()} has ended: {end}"
        except ConfigError as exc:
            self.failure = ThreadFailed(str(exc)[:1000], "")
        except Exception as exc:  # an engine can be a plugin, and the gateway must get the end of the worker in any case
            if not isinstance(exc, RL4SysError):
                log.exception("client %s: the engine %s has failed", self._client_id, self._engine)
            did = "no worker can be started" if self._process is None else f"its worker{self._where()} was given up"
            self.crash = f"{did}: {start_error_text(exc)}"
            self._kill(ABORT_WAIT_S)
        finally:
            try:
                self._link.finish()
                self._log()
            finally:
                self.over = self._link.finished = True
                self._assignment.ended()

    def _kill(self, wait_s: float = 0.0) -> None:
        """Kill the process, and wait up to `wait_s` seconds for its end. Errors of the engine go to the log."""
        if self._process is not None:
            try:
                self._process.kill()
                if wait_s:
                    self._process.wait(wait_s)
            except Exception:
                log.exception("client %s: the engine %s cannot kill the worker", self._client_id, self._engine)

    def _watch_process(self) -> str:
        """Start the process, and return how it ended; an empty text if it ended in order."""
        self._process = process = self._launch(self._link.start)
        while (end := process.wait(WAIT_S)) is None:
            self._log()
            now = time.monotonic()
            if now - self._turned_at > _PAUSED_S:
                self._awake_at = now
            self._turned_at = now
            if now >= self._kill_at:
                process.kill()
            lost = self._link.lost
            if self.silent_s > REMOTE_WORKER_SILENCE_S:
                lost = f"no sign of life for {self.silent_s:.0f} s; is its machine lost, or the worker stopped?"
            if lost:
                process.kill()
                process.wait(ABORT_WAIT_S)  # a process that can be reached ends now
                return lost
        return end

    def _where(self) -> str:
        sign = self._link.sign
        return f" on {sign.host} (pid {sign.pid})" if sign is not None else ""

    def _log(self) -> None:
        for _ in range(len(self._link.logs)):  # a worker can add more without end
            record = self._link.logs.popleft()
            get_logger(record.name).log(record.level, "worker of client %s%s: %s", self._client_id, self._where(), record.text)
