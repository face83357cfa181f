"""The run directory: what a learner leaves behind for people, written by a thread of its own.

::

    RUN/
      config.json              the learner's configuration, as validated
      log.jsonl                one event a line: clients, actors, failures, metrics, episodes
      CLIENT/events.out.tfevents.*   TensorBoard scalars, with CleanRL's tags
      dead/                    quarantined segments (`rl4sys_zmq.learner.deadletters`)
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from pathlib import Path
from typing import Any, Protocol, TextIO

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ConfigError, RunDirectoryError
from rl4sys_zmq.learner.deadletters import DeadLetters
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.wire.messages import DeadLetter, Metrics

__all__ = ["NullSink", "Recorder", "Sink"]

log = logging.getLogger(__name__)

QUEUE_RECORDS = 10_000
FLUSH_S = 1.0


class Sink(Protocol):
    """Where figures for people go; must not block."""

    def metrics(self, client_id: str, metrics: Metrics) -> None:
        """A learner thread's scalars and episodes."""

    def event(self, name: str, **fields: Any) -> None:
        """Something happened that a person may want to know."""

    def dead_letter(self, client_id: str, letter: DeadLetter) -> None:
        """A segment that was quarantined."""

    def forget(self, client_id: str) -> None:
        """No more figures of a client will come, unless it is founded anew."""


class NullSink:
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
        self.counters = Counters()
        self._queue: queue.Queue[tuple[Any, ...] | None] = queue.Queue(QUEUE_RECORDS)
        self._ending = threading.Event()
        self._writers: dict[str, Any] = {}
        self._config = config
        self._dead = DeadLetters(run_dir / "dead")
        try:
            from tensorboard.summary import Writer
        except ModuleNotFoundError as exc:
            raise ConfigError(f"a run directory needs the learner extra: pip install 'rl4sys-zmq[learner]' ({exc})") from exc
        self._make_writer = Writer

    def open(self) -> None:
        """Makes the files and starts the thread. Until then records wait in the queue, and nothing on disk has changed.

        Raises:
            RunDirectoryError: when they cannot be made.
        """
        run_dir = self.run_dir
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            (run_dir / "config.json").write_text(json.dumps(self._config, indent=2, sort_keys=True, default=str) + "\n")
            self._lines: TextIO = (run_dir / "log.jsonl").open("a", buffering=1 << 16)
        except OSError as exc:
            message = f"the run directory {run_dir} cannot be written: {exc.strerror}; choose another --run-dir"
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
                    self._write(*record)
                if time.monotonic() >= next_flush:
                    next_flush = time.monotonic() + FLUSH_S
                    self._flush()
        finally:
            self._close_files()

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
            self._close_writer(name)
            return
        if isinstance(what, DeadLetter):
            self._bury(name, what, at)
            return
        if isinstance(what, dict):
            self._line({"t": round(at, 3), "event": name, **what})
            return
        self._line(
            {
                "t": round(at, 3),
                "event": "metrics",
                "client_id": name,
                "step": what.step,
                "update": what.update,
                "scalars": what.scalars,
                "episodes": what.episodes,
            }
        )
        try:
            self._write_scalars(name, what)
        except OSError as exc:
            self.counters.add("write_errors")
            log.warning("%s: %s", self.run_dir, exc)

    def _bury(self, client_id: str, letter: DeadLetter, at: float) -> None:
        try:
            self._dead.write(client_id, letter, at)
        except OSError as exc:
            self.counters.add("write_errors")
            log.warning("%s: %s", self.run_dir, exc)

    def _close_writer(self, name: str) -> None:
        writer = self._writers.pop(name, None)
        try:
            if writer is not None:
                writer.close()
        except OSError as exc:
            self.counters.add("write_errors")
            log.warning("%s: %s", self.run_dir, exc)

    def _write_scalars(self, name: str, what: Metrics) -> None:
        writer = self._writers.get(name)
        if writer is None:
            writer = self._writers[name] = self._make_writer(str(self.run_dir / name))
        for tag, value in what.scalars.items():
            writer.add_scalar(tag, value, what.step)
        for step, total, length in what.episodes:
            writer.add_scalar("charts/episodic_return", total, int(step))
            writer.add_scalar("charts/episodic_length", length, int(step))

    def _line(self, record: dict[str, Any]) -> None:
        try:
            self._lines.write(json.dumps(record) + "\n")
        except OSError as exc:
            self.counters.add("write_errors")
            log.warning("%s: %s", self.run_dir, exc)

    def _flush(self) -> None:
        try:
            self._lines.flush()
            for writer in self._writers.values():
                writer.flush()
        except OSError as exc:
            self.counters.add("write_errors")
            log.warning("%s: %s", self.run_dir, exc)

    def _close_files(self) -> None:
        try:
            self._flush()
        finally:
            for writer in self._writers.values():
                writer.close()
            self._lines.close()
