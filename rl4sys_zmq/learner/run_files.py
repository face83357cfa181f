"""The run directory's files for people, written record by record in one thread."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.learner.deadletters import DeadLetterFolder
from rl4sys_zmq.learner.event_files import EventFileFormat, event_series
from rl4sys_zmq.learner.log_files import log_series
from rl4sys_zmq.learner.record_series import RecordSeries
from rl4sys_zmq.learner.run_paths import CONFIG, DEAD
from rl4sys_zmq.private import make_private, write_private
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.wire.messages import DeadLetter, Metrics

__all__ = ["RunFiles"]


class RunFiles(Resource):
    """Writes ``config.json``, the log, the event files and the dead letters of a run.

    Attributes:
        counters: ``records_thinned``, the records dropped for newer ones; ``records_too_long``.
    """

    def __init__(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Create the writer. Does not touch the disk.

        Args:
            run_dir: The directory.
            config: The learner's configuration as `LearnerConfig.to_json` returns it, with the size limits.

        Raises:
            ConfigError: If the extra for TensorBoard files is not installed.
        """
        self.counters = Counters()
        self._run_dir, self._config = run_dir, config
        self._form = EventFileFormat()
        self._log = log_series(run_dir, config["log_max_bytes"])
        self._curves: dict[str, RecordSeries] = {}
        self._dead = DeadLetterFolder(run_dir / DEAD)

    def open(self) -> None:
        """Create the directory and ``config.json``.

        Raises:
            OSError: If they cannot be created.
        """
        make_private(self._run_dir)
        text = json.dumps(self._config, indent=2, sort_keys=True, default=str) + "\n"
        write_private(self._run_dir / CONFIG, text.encode())
        self._log.open()

    def metrics(self, client_id: str, metrics: Metrics, at_unix_s: float) -> None:
        """Write the metrics of a learner thread.

        Raises:
            OSError: If they cannot be written.
        """
        record = {
            "t": round(at_unix_s, 3),
            "event": "metrics",
            "client_id": client_id,
            "step": metrics.step,
            "update": metrics.update,
            "scalars": metrics.scalars,
            "episodes": metrics.episodes,
        }
        try:
            self._write(self._log, json.dumps(record).encode() + b"\n", at_unix_s)
        finally:  # if one file cannot be written, the other still gets the metrics
            self._write_curves(client_id, metrics, at_unix_s)

    def event(self, name: str, fields: Mapping[str, Any], at_unix_s: float) -> None:
        """Write an event.

        Raises:
            OSError: If it cannot be written.
        """
        self._write(self._log, json.dumps({"t": round(at_unix_s, 3), "event": name, **fields}).encode() + b"\n", at_unix_s)

    def dead_letter(self, client_id: str, letter: DeadLetter, at_unix_s: float) -> None:
        """Write a quarantined segment.

        Raises:
            OSError: If it cannot be written.
        """
        self._dead.write(client_id, letter, at_unix_s)

    def forget(self, client_id: str) -> None:
        """Close a client's event files.

        Raises:
            OSError: If that fails.
        """
        series = self._curves.pop(client_id, None)
        if series is not None:
            series.close()

    def flush(self) -> None:
        """Pass everything buffered to the operating system.

        Raises:
            OSError: If that fails.
        """
        for series in (self._log, *self._curves.values()):
            series.flush()

    def close(self) -> None:
        """Write everything buffered and close all files. A second call does nothing.

        Raises:
            OSError: If writing fails; all files are closed nevertheless.
        """
        error: OSError | None = None
        for series in (self._log, *self._curves.values()):
            try:
                series.close()
            except OSError as exc:
                error = exc
        if error is not None:
            raise error

    def _write_curves(self, client_id: str, metrics: Metrics, at_unix_s: float) -> None:
        series = self._curves.get(client_id)
        if series is None:
            series = event_series(self._run_dir, client_id, self._form, self._config["tensorboard_max_bytes"])
            self._curves[client_id] = series
        if metrics.scalars:
            self._write(series, self._form.record(at_unix_s, metrics.step, metrics.scalars), at_unix_s)
        for step, total, length in metrics.episodes:
            figures = {"charts/episodic_return": total, "charts/episodic_length": length}
            self._write(series, self._form.record(at_unix_s, int(step), figures), at_unix_s)

    def _write(self, series: RecordSeries, record: bytes, at_unix_s: float) -> None:
        before = series.dropped
        if not series.write(record, at_unix_s):
            self.counters.add("records_too_long")
        if series.dropped > before:
            self.counters.add("records_thinned", series.dropped - before)
