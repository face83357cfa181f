"""The recorder: a thread that writes a learner's log, metrics and dead letters to its run directory."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import RunDirectoryError
from rl4sys_zmq.interfaces import EventSink
from rl4sys_zmq.learner.run.deadletters import DeadLetterFolder
from rl4sys_zmq.learner.run.log_files import (
    CLIENT_READY,
    LEARNER_STARTED,
    TENSORBOARD,
    TensorBoardFileFormat,
    event_series,
    last_record_unix_s,
    log_series,
    metrics_record,
)
from rl4sys_zmq.learner.run.record_series import RotatingFileWriter
from rl4sys_zmq.learner.run.record_thread import RecordThread
from rl4sys_zmq.learner.run.resume import CONFIG, DEAD
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.private import make_private, write_private
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire.thread_messages import QuarantinedSegment, TrainingMetrics


def figures_of(metrics: TrainingMetrics) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Yield the figures in a message by tag, with the environment steps at which they apply, also those of single episodes."""
    if metrics.scalars:
        yield metrics.step, metrics.scalars
    for step, total, length in metrics.episodes:
        yield int(step), {"charts/episodic_return": total, "charts/episodic_length": length}
    for _, total, length in metrics.evaluations:
        yield metrics.step, {"eval/return": total, "eval/length": length}


class RunDirectoryWriter(Resource):
    """The writer of ``config.json``, the log, the dead letters and, if configured, TensorBoard's files. One thread uses it.

    Its counters are ``records_thinned`` (old records that were dropped to make space) and ``records_too_long``.
    """

    def __init__(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        self.counters = Counters()
        self._run_dir, self._config = run_dir, config
        self._form = TensorBoardFileFormat() if TENSORBOARD in config["loggers"] else None
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
        record = metrics_record(client_id, metrics, at_unix_s)
        try:
            self._write(self._log, json.dumps(record).encode() + b"\n", at_unix_s)
        finally:  # if one file cannot be written, the other still gets the metrics
            self._write_curves(client_id, metrics, at_unix_s)

    def event(self, name: str, fields: Mapping[str, Any], at_unix_s: float) -> None:
        self._write(self._log, json.dumps({"t": round(at_unix_s, 3), "event": name, **fields}).encode() + b"\n", at_unix_s)
        if name == CLIENT_READY and self._form is not None:
            curve = self._curve(fields["client_id"], self._form)
            self._write(curve, self._form.restart_record(at_unix_s, fields["steps"]), at_unix_s)
            commit = self._config.get(COMMENT, {}).get("commit")
            values = {"algorithm": fields["algorithm"], "commit": commit, **fields["parameters"]}
            self._write(curve, self._form.hyperparameters_record(at_unix_s, values), at_unix_s)

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

    def _curve(self, client_id: str, form: TensorBoardFileFormat) -> RotatingFileWriter:
        series = self._curves.get(client_id)
        if series is None:
            series = event_series(self._run_dir, client_id, form, self._config["tensorboard_max_bytes"])
            self._curves[client_id] = series
        return series

    def _write_curves(self, client_id: str, metrics: TrainingMetrics, at_unix_s: float) -> None:
        if self._form is None:
            return
        series = self._curve(client_id, self._form)
        if metrics.lags:
            self._write(series, self._form.record(at_unix_s, metrics.step, {}, metrics.lags), at_unix_s)
        for step, values in figures_of(metrics):
            self._write(series, self._form.record(at_unix_s, step, values), at_unix_s)

    def _write(self, series: RotatingFileWriter, record: bytes, at_unix_s: float) -> None:
        before = series.dropped
        if not series.write(record, at_unix_s):
            self.counters.add("records_too_long")
        if series.dropped > before:
            self.counters.add("records_thinned", series.dropped - before)


log = get_logger(__name__)

COMMENT = "_comment_run"
"""The key in ``config.json`` for what is not configuration. Readers of configuration files skip it."""

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


class EventSinks:
    """An event sink that passes everything on to several others."""

    def __init__(self, sinks: Sequence[EventSink]) -> None:
        self._sinks = tuple(sinks)

    def metrics(self, client_id: str, metrics: TrainingMetrics) -> None:
        for sink in self._sinks:
            sink.metrics(client_id, metrics)

    def event(self, name: str, /, **fields: Any) -> None:
        for sink in self._sinks:
            sink.event(name, **fields)

    def dead_letter(self, client_id: str, letter: QuarantinedSegment) -> None:
        for sink in self._sinks:
            sink.dead_letter(client_id, letter)

    def forget(self, client_id: str) -> None:
        for sink in self._sinks:
            sink.forget(client_id)


class Recorder(RecordThread):
    """The thread that writes to the run directory. It implements `EventSink`."""

    def __init__(self, run_dir: Path, config: dict[str, Any]) -> None:
        self.run_dir = run_dir
        self._files = RunDirectoryWriter(run_dir, config)
        super().__init__("rl4sys-recorder", str(run_dir), (OSError,), self._files.counters)

    def open(self) -> None:
        """Create the files and start the thread. Until then, records wait in the queue and nothing on disk changes."""
        try:
            self._files.open(time.time())
        except OSError as exc:
            message = f"the run directory {self.run_dir} cannot be written: {exc.strerror}; choose another --run-dir"
            raise RunDirectoryError(message) from exc
        self.start()

    def metrics(self, client_id: str, metrics: TrainingMetrics) -> None:
        self.put(partial(self._files.metrics, client_id, metrics, time.time()))

    def event(self, name: str, /, **fields: Any) -> None:
        log_event(name, fields)
        self.put(partial(self._files.event, name, fields, time.time()))

    def dead_letter(self, client_id: str, letter: QuarantinedSegment) -> None:
        self.put(partial(self._files.dead_letter, client_id, letter, time.time()))

    def forget(self, client_id: str) -> None:
        self.put(partial(self._files.forget, client_id))

    def flush(self) -> None:
        self._files.flush()

    def close(self) -> None:
        self._files.close()
