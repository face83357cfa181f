"""Loggers, which show the figures of a run elsewhere, such as in W&B, and the thread in which each one works."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.interfaces import RunLogger
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.learner.run.log_files import TENSORBOARD
from rl4sys_zmq.learner.run.record_thread import RecordThread
from rl4sys_zmq.learner.run.recorder import COMMENT, NullEventSink, figures_of
from rl4sys_zmq.learner.run.resume import BEST, CHECKPOINTS, CONFIG, NEVER
from rl4sys_zmq.learner.run.stored_policies import newest_policy
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import folder_name
from rl4sys_zmq.plugins import load_factory
from rl4sys_zmq.policies.folder import encode_policy
from rl4sys_zmq.private import write_folder
from rl4sys_zmq.wire.thread_messages import TrainingMetrics

log = get_logger(__name__)

CLOSE_S = 5.0
GIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The description of a run for its loggers."""

    run_id: str  # random, the same after a restart of the learner in its run directory
    name: str  # for people: that of the run directory, or `run_id`
    run_dir: Path | None
    config: Mapping[str, Any] = field(repr=False)  # of the learner, as JSON values
    commit: str  # of the Git repository in which the learner was started; empty if there is none


def describe_run(config: LearnerConfig) -> RunInfo:
    run_id = _earlier_id(config) or secrets.token_hex(4)
    name = config.run_dir.resolve().name if config.run_dir is not None else run_id
    shown = {key: value for key, value in config.to_json().items() if key != "alarms"}  # a webhook's address can be a secret
    return RunInfo(run_id=run_id, name=name, run_dir=config.run_dir, config=shown, commit=_git_commit())


def _earlier_id(config: LearnerConfig) -> str:
    """Return the id of the run that this learner continues; empty for a new one, or one of an older version."""
    try:
        document = json.loads((config.run_dir / CONFIG).read_bytes()) if config.run_dir and config.resume != NEVER else {}
        return str(document[COMMENT]["id"])
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return ""


def _git_commit() -> str:
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


LOGGERS = {"wandb": "rl4sys_zmq.loggers.wandb_runs:WandbRuns", "mlflow": "rl4sys_zmq.loggers.mlflow_runs:MlflowRuns"}
"""The classes of this package's own loggers by name, each of which is also the extra that it needs."""


def logger_classes(config: LearnerConfig) -> dict[str, Callable[[], RunLogger]]:
    """Return the configured loggers without TensorBoard's, by name. Raise ConfigError if one does not exist."""
    return {name: _logger_class(name) for name in config.loggers if name != TENSORBOARD}


def _logger_class(name: str) -> Callable[[], RunLogger]:
    location: Callable[[], RunLogger] | str = LOGGERS.get(name, name)
    if location == name and ":" not in name:
        valid = ", ".join([TENSORBOARD, *LOGGERS])
        raise ConfigError(f"unknown logger {name!r}; valid: {valid}, or package.module:Class", key="loggers")
    return load_factory(location, f"logger {name!r}", "loggers", name if name in LOGGERS else "")


def close_s(config: LearnerConfig) -> float:
    """Return the time that the loggers have at the end of the learner, after `LearnerConfig.shutdown_timeout_s`."""
    return CLOSE_S if {*config.loggers} - {TENSORBOARD} else 0.0


class LoggerThread(NullEventSink, RecordThread):
    """The thread of one logger, and an event sink. If the logger cannot be opened, the thread ends and drops all."""

    def __init__(self, title: str, factory: Callable[[], RunLogger], run: RunInfo) -> None:
        RecordThread.__init__(self, f"rl4sys-logger-{title}", f"logger {title}", (Exception,), Counters())
        self.title = title
        self._factory, self._run, self._failed = factory, run, False
        self._logger: RunLogger  # of the thread

    def metrics(self, client_id: str, metrics: TrainingMetrics) -> None:
        for step, values in figures_of(metrics):
            self.put(partial(self._call, "scalars", client_id, step, values, time.time()))

    def event(self, name: str, /, **fields: Any) -> None:
        self.put(partial(self._call, "event", name, fields, time.time()))
        if name == "best_policy" and self._run.run_dir is not None:
            folder = self._run.run_dir / BEST / folder_name(fields["client_id"]) / "policy"
            self.put(partial(self._keep, fields["client_id"], "best", partial(shutil.copytree, folder)))

    def keep_final(self, client_id: str) -> None:
        """Give the logger the newest policy of a client, if there is a checkpoint. No worker may be running."""
        run_dir = self._run.run_dir
        if run_dir is not None and CheckpointStore(run_dir / CHECKPOINTS / folder_name(client_id)).newest():
            files = encode_policy(newest_policy(run_dir, client_id)[1])
            self._keep(client_id, "final", lambda folder: write_folder(folder, files))

    def _keep(self, client_id: str, title: str, write: Callable[[Path], object]) -> None:
        with tempfile.TemporaryDirectory(prefix="rl4sys-") as folder:  # the learner can replace its own one meanwhile
            path = Path(folder) / title
            write(path)
            self._logger.artefact(client_id, path, time.time())

    def put(self, call: Callable[[], None]) -> None:
        if self._failed:
            self.counters.add("records_dropped")
        else:
            super().put(call)

    def run(self) -> None:
        self._failed = not self.attempt(self._open)
        if self._failed:
            log.error("logger %s could not be opened: it records nothing until the learner starts again", self.title)
        else:
            super().run()

    def _open(self) -> None:
        self._logger = self._factory()
        self._logger.open(self._run)

    def _call(self, method: str, *arguments: object) -> None:
        getattr(self._logger, method)(*arguments)

    def end(self, client_ids: Iterable[str]) -> None:
        """Ask the thread to pass on what is queued and the newest policies, and to end."""
        for client_id in client_ids:
            self.put(partial(self.keep_final, client_id))
        self.stop()

    def close(self) -> None:
        self._logger.close()
