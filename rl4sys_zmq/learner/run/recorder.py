"""The recorder: a thread that writes a learner's log, metrics and dead letters to its run directory."""

from __future__ import annotations

import contextlib
import json
import queue
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import RunDirectoryError
from rl4sys_zmq.learner.run.deadletters import DeadLetterFolder
from rl4sys_zmq.learner.run.log_files import (
    CLIENT_READY,
    LEARNER_STARTED,
    TensorBoardFileFormat,
    event_series,
    last_record_unix_s,
    log_series,
)
from rl4sys_zmq.learner.run.record_series import RotatingFileWriter
from rl4sys_zmq.learner.run.resume import CONFIG, DEAD
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.private import make_private, write_private
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire.thread_messages import QuarantinedSegment, TrainingMetrics


class RunDirectoryWriter(Resource):
    """The writer of ``config.json``, the log, the event files and the dead letters. One thread uses it.

    Its counters are ``records_thinned`` (old records that were dropped to make space) and ``records_too_long``.
    """

    def __init__(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        self.counters = Counters()
        self._run_dir, self._config = run_dir, config
        self._form = TensorBoardFileFormat()
        self._log = log_series(run_dir, config["log_max_bytes"])
        self._curves: dict[str, RotatingFileWriter] = {}
        self._dead = DeadLetterFolder(run_dir / DEAD)

    def open(self, at_unix_s: float) -> None:
        """Create the run directory, ``config.json`` and the log, and write the event that the learner has started."""
        make_private(self._run_dir)
        text = json.dumps(self._config, indent=2, sort_keys=True, default=str) + "\n"
        write_private(self._run_dir / CONFIG, text.encode())
        last = last_record_unix_s(self._run_dir)
        self._log.open()
        down_s = max(0.0, at_unix_s - last) if last is not None else 0.0
        self.event(LEARNER_STARTED, {"version": package_version(), "down_s": round(down_s, 3)}, at_unix_s)

    def metrics(self, client_id: str, metrics: TrainingMetrics, at_unix_s: float) -> None:
        record = {
            "t": round(at_unix_s, 3),
            "event": "metrics",
            "client_id": client_id,
            "step": metrics.step,
            "update": metrics.update,
            "scalars": metrics.scalars,
            "episodes": metrics.episodes,
            "lags": metrics.lags,
        }
        if metrics.evaluations:
            record["evaluations"] = metrics.evaluations
        try:
            self._write(self._log, json.dumps(record).encode() + b"\n", at_unix_s)
        finally:  # if one file cannot be written, the other still gets the metrics
            self._write_curves(client_id, metrics, at_unix_s)

    def event(self, name: str, fields: Mapping[str, Any], at_unix_s: float) -> None:
        self._write(self._log, json.dumps({"t": round(at_unix_s, 3), "event": name, **fields}).encode() + b"\n", at_unix_s)
        if name == CLIENT_READY:
            self._write(self._curve(fields["client_id"]), self._form.restart_record(at_unix_s, fields["steps"]), at_unix_s)

    def dead_letter(self, client_id: str, letter: QuarantinedSegment, at_unix_s: float) -> None:
        self._dead.write(client_id, letter, at_unix_s)

    def forget(self, client_id: str) -> None:
        """Close the event files of a client that was removed."""
        series = self._curves.pop(client_id, None)
        if series is not None:
            series.close()

    def flush(self) -> None:
        for series in (self._log, *self._curves.values()):
            series.flush()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # each is closed, also after an error
            for series in (self._log, *self._curves.values()):
                stack.callback(series.close)

    def _curve(self, client_id: str) -> RotatingFileWriter:
        series = self._curves.get(client_id)
        if series is None:
            series = event_series(self._run_dir, client_id, self._form, self._config["tensorboard_max_bytes"])
            self._curves[client_id] = series
        return series

    def _write_curves(self, client_id: str, metrics: TrainingMetrics, at_unix_s: float) -> None:
        series = self._curve(client_id)
        if metrics.scalars or metrics.lags:
            self._write(series, self._form.record(at_unix_s, metrics.step, metrics.scalars, metrics.lags), at_unix_s)
        for step, total, length in metrics.episodes:
            figures = {"charts/episodic_return": total, "charts/episodic_length": length}
            self._write(series, self._form.record(at_unix_s, int(step), figures), at_unix_s)
        for _, total, length in metrics.evaluations:
            figures = {"eval/return": total, "eval/length": length}
            self._write(series, self._form.record(at_unix_s, metrics.step, figures), at_unix_s)

    def _write(self, series: RotatingFileWriter, record: bytes, at_unix_s: float) -> None:
        before = series.dropped
        if not series.write(record, at_unix_s):
            self.counters.add("records_too_long")
        if series.dropped > before:
            self.counters.add("records_thinned", series.dropped - before)


log = get_logger(__name__)

QUEUE_RECORDS = 10_000
FLUSH_S = 1.0

LOGGED_BY_CALLER = frozenset(
    {"alarm", "checkpoint_damaged", "checkpoint_failed", "client_failed", "client_forgotten", "gap", "loss_accepted", "moved"}
    | {"hello_refused", "others_can_write", "system"}
)
"""The events that `log_event` does not log, because the caller logs them as a sentence, or because they are figures."""


def log_event(name: str, fields: Mapping[str, Any]) -> None:
    if name not in LOGGED_BY_CALLER:
        log.info("%s %s", name, dict(fields))


class NullEventSink:
    """The event sink of a learner without a run directory. It passes events to `logging`, and drops metrics."""

    def metrics(self, client_id: str, metrics: TrainingMetrics) -> None:
        """Do nothing."""

    def event(self, name: str, /, **fields: Any) -> None:
        log_event(name, fields)

    def dead_letter(self, client_id: str, letter: QuarantinedSegment) -> None:
        """Do nothing."""

    def forget(self, client_id: str) -> None:
        """Do nothing."""


class Recorder(Worker):
    """The thread that writes to the run directory. It implements `EventSink`.

    Records go into a queue of at most `QUEUE_RECORDS`. If it is full, they are dropped and counted as ``records_dropped``.
    Failures to write are logged and counted as ``write_errors``.
    """

    def __init__(self, run_dir: Path, config: dict[str, Any]) -> None:
        super().__init__("rl4sys-recorder")
        self.run_dir = run_dir
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(QUEUE_RECORDS)
        self._files = RunDirectoryWriter(run_dir, config)
        self.counters = self._files.counters

    def open(self) -> None:
        """Create the files and start the thread. Until then, records wait in the queue and nothing on disk changes."""
        try:
            self._files.open(time.time())
        except OSError as exc:
            message = f"the run directory {self.run_dir} cannot be written: {exc.strerror}; choose another --run-dir"
            raise RunDirectoryError(message) from exc
        self.start()

    def metrics(self, client_id: str, metrics: TrainingMetrics) -> None:
        self._put(partial(self._files.metrics, client_id, metrics, time.time()))

    def event(self, name: str, /, **fields: Any) -> None:
        log_event(name, fields)
        self._put(partial(self._files.event, name, fields, time.time()))

    def dead_letter(self, client_id: str, letter: QuarantinedSegment) -> None:
        self._put(partial(self._files.dead_letter, client_id, letter, time.time()))

    def forget(self, client_id: str) -> None:
        self._put(partial(self._files.forget, client_id))

    def _put(self, write: Callable[[], None]) -> None:
        try:
            self._queue.put_nowait(write)
        except queue.Full:
            self.counters.add("records_dropped")

    def run(self) -> None:
        next_flush = time.monotonic() + FLUSH_S
        try:
            while True:
                ending = self._stop_asked.is_set()  # then the queue has all records, but maybe not the None of `stop`
                try:
                    write = self._queue.get(timeout=FLUSH_S)
                except queue.Empty:
                    if ending:
                        return
                else:
                    if write is None:
                        return
                    self._try(write)
                if time.monotonic() >= next_flush:
                    next_flush = time.monotonic() + FLUSH_S
                    self._try(self._files.flush)
        finally:
            self._try(self._files.close)

    def stop(self) -> None:
        """Ask the thread to write all queued records and end."""
        if self.ident is not None and not self._stop_asked.is_set():
            super().stop()
            try:
                self._queue.put(None, timeout=FLUSH_S)
            except queue.Full:
                log.warning("the recorder of %s is too slow: its queue is full, and the last records are lost", self.run_dir)

    def _try(self, write: Callable[[], None]) -> None:
        """Call `write`. Count and log an `OSError`."""
        try:
            write()
        except OSError as exc:
            self.counters.add("write_errors")
            log.warning("%s: %s", self.run_dir, exc)
