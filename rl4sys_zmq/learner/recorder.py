"""The recorder: a thread that writes a learner's log, metrics and dead letters (`rl4sys_zmq.learner.run_files`)."""

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
    """The receiver of a learner's metrics and events for people. No method blocks."""

    def metrics(self, client_id: str, metrics: Metrics) -> None:
        """Record the scalars and episodes of a learner thread."""

    def event(self, name: str, **fields: Any) -> None:
        """Record an event that can interest a person."""

    def dead_letter(self, client_id: str, letter: DeadLetter) -> None:
        """Record a quarantined segment."""

    def forget(self, client_id: str) -> None:
        """Release what belongs to a client that has ended, such as open files."""


class NullEventSink:
    """An event sink that stores nothing, for a learner without a run directory."""

    def metrics(self, client_id: str, metrics: Metrics) -> None:
        """Ignore the metrics."""

    def event(self, name: str, **fields: Any) -> None:
        """Log the event."""
        log.info("%s %s", name, fields)

    def dead_letter(self, client_id: str, letter: DeadLetter) -> None:
        """Ignore the segment."""

    def forget(self, client_id: str) -> None:
        """Do nothing."""


class Recorder(Worker):
    """Writes the run directory in its own thread.

    The queue has `QUEUE_RECORDS` places. Records that do not fit are dropped and counted; the caller never waits.
    """

    def __init__(self, run_dir: Path, config: dict[str, Any]) -> None:
        super().__init__("rl4sys-recorder")
        self.run_dir = run_dir
        self._queue: queue.Queue[tuple[Any, ...] | None] = queue.Queue(QUEUE_RECORDS)
        self._ending = threading.Event()
        self._files = RunFiles(run_dir, config)
        self.counters = self._files.counters

    def open(self) -> None:
        """Create the files and start the thread. Before that, records wait in the queue and nothing on disk changes.

        Raises:
            RunDirectoryError: If the files cannot be created.
        """
        try:
            self._files.open()
        except OSError as exc:
            message = f"the run directory {self.run_dir} cannot be written: {exc.strerror}; choose another --run-dir"
            raise RunDirectoryError(message) from exc
        self.start()

    # ---- called by the gateway; never blocks

    def metrics(self, client_id: str, metrics: Metrics) -> None:
        """Queue the metrics of a learner thread."""
        self._put((client_id, metrics, time.time()))

    def event(self, name: str, **fields: Any) -> None:
        """Log and queue an event."""
        log.info("%s %s", name, fields)
        self._put((name, fields, time.time()))

    def dead_letter(self, client_id: str, letter: DeadLetter) -> None:
        """Queue a quarantined segment."""
        self._put((client_id, letter, time.time()))

    def forget(self, client_id: str) -> None:
        """Queue the closing of a client's files."""
        self._put((client_id, None, time.time()))

    def _put(self, record: tuple[Any, ...]) -> None:
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self.counters.add("records_dropped")

    # ---- the thread

    def run(self) -> None:
        """Write queued records until `stop`. This is the body of the thread."""
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
        """Write all queued records, then end the thread."""
        if self.ident is not None and not self._ending.is_set():
            self._ending.set()
            try:
                self._queue.put(None, timeout=FLUSH_S)
            except queue.Full:
                log.warning("the recorder of %s is too slow: its queue is full, and the last records are lost", self.run_dir)

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
        """Call `write`; count and log a failure of the disk instead of raising it."""
        try:
            write()
        except OSError as exc:
            self.counters.add("write_errors")
            log.warning("%s: %s", self.run_dir, exc)
