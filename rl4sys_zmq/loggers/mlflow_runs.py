"""The logger ``mlflow``. MLflow's environment variables apply, such as ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from rl4sys_zmq.learner.run.run_loggers import RunInfo
from rl4sys_zmq.loggers.client_runs import PROJECT, ClientRuns

RUN, CLIENT = "rl4sys.run", "rl4sys.client"
COMMIT = "mlflow.source.git.commit"
BATCH, BATCH_S = 500, 1.0
"""Figures are sent together: at most so many, and at the first call after so many seconds."""
MAX_TEXT = 5000


class MlflowRuns(ClientRuns[str]):
    """An MLflow run for each client, in one experiment. Parameters of MLflow cannot change, so a changed one is a tag."""

    def open(self, run: RunInfo) -> None:
        super().open(run)
        self._client: Any = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        self._experiment = found.experiment_id if found is not None else self._client.create_experiment(name)
        self._waiting: dict[str, list[Any]] = {}
        self._sent_at = time.monotonic()

    def _begin(self, client_id: str, title: str) -> str:
        tags = {RUN: self._info.run_id, CLIENT: client_id}
        earlier = self._client.search_runs([self._experiment], f"tags.`{RUN}` = '{self._info.run_id}'")
        run_id = next((str(run.info.run_id) for run in earlier if run.data.tags.get(CLIENT) == client_id), "")
        if run_id:
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        run = self._client.create_run(self._experiment, run_name=title, tags={**tags, COMMIT: self._info.commit})
        self._client.log_dict(run.info.run_id, dict(self._info.config), "learner.json")
        return str(run.info.run_id)

    def _configure(self, run: str, values: Mapping[str, Any]) -> None:
        known = self._client.get_run(run).data.params
        texts = {name: (value if isinstance(value, str) else json.dumps(value))[:MAX_TEXT] for name, value in values.items()}
        self._client.log_batch(run, params=[Param(name, text) for name, text in texts.items() if name not in known][:100])
        for name, text in texts.items():
            if known.get(name, text) != text:
                self._client.set_tag(run, f"changed.{name}", text)

    def _log(self, run: str, step: int, values: Mapping[str, float], at_unix_s: float) -> None:
        waiting = self._waiting.setdefault(run, [])
        waiting += [Metric(name, float(value), round(1000 * at_unix_s), step) for name, value in values.items()]
        if len(waiting) >= BATCH or time.monotonic() >= self._sent_at + BATCH_S:
            for other in list(self._waiting):
                self._send(other)
            self._sent_at = time.monotonic()

    def _send(self, run: str) -> None:
        figures = self._waiting.pop(run, [])
        for first in range(0, len(figures), BATCH):
            self._client.log_batch(run, metrics=figures[first : first + BATCH])

    def _note(self, run: str, name: str, text: str) -> None:
        self._client.set_tag(run, name, text[:MAX_TEXT])

    def _keep(self, run: str, path: Path) -> None:
        self._client.log_artifacts(run, str(path), path.name)

    def _finish(self, run: str) -> None:
        self._send(run)
        self._client.set_terminated(run)
