"""The recorder: what a learner leaves behind for people, written by a thread of its own (`rl4sys_zmq.learner.run_files`)."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rl4sys_zmq.errors import RunDirectoryError
from rl4sys_zmq.learner.run_files import RunFiles
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.wire.messages import DeadLetter, Metrics

__all__ = ["NullEventSink", "Recorder", "EventSink"]

log = logging.getLogger(__name__)

QUEUE_RECORDS = 10_000
FLUSH_S = 1.0


class EventSink(Protocol):
    """Where figures for people go; must not block."""

    def metrics(self, client_id: str, metrics: Metrics) -> None:
        """A learner thread's scalars and episodes."""

    def event(self, name: str, **fields: Any) -> None:
        """Something happened that a person may want to know."""

    def dead_letter(self, client_id: str, letter: DeadLetter) -> None:
        """A segment that was quarantined."""

    def forget(self, client_id: str) -> None:
        """No more figures of a client will come, unless it is founded anew."""


class NullEventSink:
    """Keeps nothing: a learner without a run directory."""

    def metrics(self, client_id: str, metrics: Metrics) -> None:
        """Ignores figures."""

    def event(self, name: str, **fields: Any) -> None:
        """Leaves a line in the log."""
        log.info("%s %s", name, fields)

    def dead_letter(self, client_id: str, letter: DeadLetter) -> None:
        """Keeps none."""

    def forget(self, client_id: str) -> None:
        """Has nothing of it."""


class Recorder(Worker):
    """Writes the run directory. Its queue is bounded: what does not fit is dropped and counted, the caller never waits."""

    def __init__(self, run_dir: Path, config: dict[str, Any]) -> None:
        super().__init__("rl4sys-recorder")
        self.run_dir = run_dir
        self._queue: queue.Queue[tuple[Any, ...] | None] = queue.Queue(QUEUE_RECORDS)
        self._ending = threading.Event()
        self._files = RunFiles(run_dir, config)
        self.counters = self._files.counters

    def open(self) -> None:
        """Makes the files and starts the thread. Until then records wait in the queue, and nothing on disk has changed.

        Raises:
            RunDirectoryError: when they cannot be made.
        """
        try:
            self._files.open()
        except OSError as exc:
            message = f"the run directory {self.run_dir} cannot be written: {exc.strerror}; choose another --run-dir"
            raise RunDirectoryError(message) from exc
        self.start()

    # ---- called by the gateway; never blocks

    def metrics(self, client_id: str, metrics: Metrics) -> None:
        """Queues a learner thread's figures."""
        self._put((client_id, metrics, time.time()))

    def event(self, name: str, **fields: Any) -> None:
        """Queues an event."""
        log.info("%s %s", name, fields)
        self._put((name, fields, time.time()))

    def dead_letter(self, client_id: str, letter: DeadLetter) -> None:
        """Queues a quarantined segment."""
        self._put((client_id, letter, time.time()))

    def forget(self, client_id: str) -> None:
        """Queues the closing of a client's files."""
        self._put((client_id, None, time.time()))

    def _put(self, record: tuple[Any, ...]) -> None:
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self.counters.add("records_dropped")

    # ---- the thread

    def run(self) -> None:
        """The thread's body."""
        next_flush = time.monotonic() + FLUSH_S
        try:
            while True:
                try:
                    record = self._queue.get(timeout=FLUSH_S)
                except queue.Empty:
                    record = ()
                if record is None:
                    return
                if record:
                    self._try(partial(self._write, *record))
                if time.monotonic() >= next_flush:
                    next_flush = time.monotonic() + FLUSH_S
                    self._try(self._files.flush)
        finally:
            self._try(self._files.close)

    def stop(self) -> None:
        """Writes what is queued, then ends."""
        if self.ident is not None and not self._ending.is_set():
            self._ending.set()
            try:
                self._queue.put(None, timeout=FLUSH_S)
            except queue.Full:
                log.warning("the recorder of %s does not keep up; its last records are lost", self.run_dir)

    def _write(self, name: str, what: Metrics | DeadLetter | dict[str, Any] | None, at: float) -> None:
        if what is None:
            self._files.forget(name)
        elif isinstance(what, DeadLetter):
            self._files.dead_letter(name, what, at)
        elif isinstance(what, dict):
            self._files.event(name, what, at)
        else:
            self._files.metrics(name, what, at)

    def _try(self, write: Callable[[], None]) -> None:
        """A disk that refuses costs figures for people, and is counted."""
        try:
            write()
        except OSError as exc:
            self.counters.add("write_errors")
            log.warning("%s: %s", self.run_dir, exc)
