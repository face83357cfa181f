"""The registry of loggers, which show the figures of a run elsewhere, such as in W&B, and the thread in which each one works."""

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
from typing import Any, cast

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.interfaces import RunLogger
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.learner.run.log_files import TENSORBOARD
from rl4sys_zmq.learner.run.record_thread import RecordThread
from rl4sys_zmq.learner.run.recorder import COMMENT, figures_of
from rl4sys_zmq.learner.run.resume import BEST, CHECKPOINTS, CONFIG, NEVER
from rl4sys_zmq.learner.run.stored_policies import newest_policy
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import folder_name
from rl4sys_zmq.plugins import Registry, import_remedy, load_object, reason_of
from rl4sys_zmq.policies.folder import encode_policy
from rl4sys_zmq.private import write_folder
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire.thread_messages import QuarantinedSegment, TrainingMetrics

log = get_logger(__name__)

CLOSE_S = 5.0
GIT_S = 5.0
METHODS = ("open", "scalars", "event", "artefact", "close")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The description of a run for its loggers.

    Attributes:
        run_id: A random name of the run, the same after a restart of the learner in its run directory.
        run_dir: The run directory, or None.
        config: The learner's configuration, as JSON values.
        commit: The commit of the Git repository in which the learner was started; empty if there is none.
        version: The version of this package.
    """

    run_id: str
    run_dir: Path | None
    config: Mapping[str, Any] = field(repr=False)
    commit: str
    version: str

    @property
    def name(self) -> str:
        """The name for people: that of the run directory."""
        return self.run_dir.resolve().name if self.run_dir is not None else self.run_id


def describe_run(config: LearnerConfig) -> RunInfo:
    run_id = _earlier_id(config) or secrets.token_hex(4)
    return RunInfo(run_id=run_id, run_dir=config.run_dir, config=config.to_json(), commit=git_commit(), version=package_version())


def _earlier_id(config: LearnerConfig) -> str:
    """Return the id of the run that this learner continues; empty for a new one."""
    if config.run_dir is None or config.resume == NEVER:
        return ""
    try:
        return str(json.loads((config.run_dir / CONFIG).read_bytes())[COMMENT]["id"])
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return ""  # a new directory, or one of an older version


def git_commit() -> str:
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerEntry:
    """The description of a logger in the registry.

    Attributes:
        name: The name for configurations, such as ``wandb``.
        factory: Creates a `RunLogger`, or its location ``"package.module:attribute"``.
        extra: The optional dependency group of this package that it needs; empty if none.
    """

    name: str
    factory: Callable[[], RunLogger] | str
    extra: str = ""

    def load(self) -> Callable[[], RunLogger]:
        """Return the factory.

        Raises:
            ConfigError: If it cannot be imported.
        """
        if not isinstance(self.factory, str):
            return self.factory
        try:
            return cast("Callable[[], RunLogger]", load_object(self.factory))
        except Exception as exc:  # a foreign module can raise anything; it is raised again as our error
            remedy = "correct the module"
            if isinstance(exc, ImportError):
                module = self.factory.partition(":")[0]
                remedy = f"pip install 'rl4sys-zmq[{self.extra}]'" if self.extra else import_remedy(module, exc)
            raise ConfigError(f"logger {self.name!r} cannot be imported: {reason_of(exc)}; {remedy}", key="loggers") from exc


TENSORBOARD_ENTRY = LoggerEntry(name=TENSORBOARD, factory="")
"""A name without a class: `RunDirectoryWriter` writes the event files, whose size it limits."""


def own_logger(name: str) -> LoggerEntry:
    """Return the entry of a class that the configuration names as ``package.module:Class``."""
    return LoggerEntry(name=name, factory=name)


LOGGERS = Registry(
    LoggerEntry,
    {
        TENSORBOARD: f"{__name__}:TENSORBOARD_ENTRY",
        "wandb": "rl4sys_zmq.loggers:WANDB",
        "mlflow": "rl4sys_zmq.loggers:MLFLOW",
    },
    noun="logger",
    group="rl4sys_zmq.loggers",
    key="loggers",
    families={"": f"{__name__}:own_logger"},
)
"""The registry of all loggers, by name."""


def load_loggers(config: LearnerConfig) -> dict[str, Callable[[], RunLogger]]:
    """Return what creates each configured logger, by name, without TensorBoard's, which the recorder writes.

    Raises:
        ConfigError: If there is no such logger, or it cannot be imported.
    """
    return {name: LOGGERS.get(name).load() for name in config.loggers if name != TENSORBOARD}


def make_loggers(config: LearnerConfig, run: RunInfo) -> list[LoggerThread]:
    """Create all configured loggers, with a thread for each that is not started yet.

    Raises:
        ConfigError: If there is no such logger, or it cannot be created.
    """
    return [LoggerThread(name, _make(name, factory), run) for name, factory in load_loggers(config).items()]


def _make(name: str, factory: Callable[[], RunLogger]) -> RunLogger:
    try:
        logger = factory()
    except Exception as exc:  # a foreign class can raise anything; it is raised again as our error
        raise ConfigError(f"logger {name!r} cannot be created: {reason_of(exc)}; correct its class", key="loggers") from exc
    missing = [method for method in METHODS if not callable(getattr(logger, method, None))]
    if missing:
        raise ConfigError(f"logger {name!r} has no method {', '.join(missing)}; add what RunLogger has", key="loggers")
    return logger


def close_s(config: LearnerConfig) -> float:
    """Return the time that the loggers have at the end of the learner, after `LearnerConfig.shutdown_timeout_s`."""
    return CLOSE_S if set(config.loggers) - {TENSORBOARD} else 0.0


class LoggerThread(RecordThread):
    """The thread of one logger. It implements `EventSink`. If the logger cannot be opened, the thread ends and drops all."""

    def __init__(self, title: str, logger: RunLogger, run: RunInfo) -> None:
        super().__init__(f"rl4sys-logger-{title}", f"logger {title}", (Exception,), Counters())
        self.title = title
        self._logger, self._run = logger, run
        self._failed = False

    def metrics(self, client_id: str, metrics: TrainingMetrics) -> None:
        for step, values in figures_of(metrics):
            self.put(partial(self._logger.scalars, client_id, step, values, time.time()))

    def event(self, name: str, **fields: Any) -> None:
        self.put(partial(self._logger.event, name, fields, time.time()))
        if name == "best_policy" and self._run.run_dir is not None:
            folder = self._run.run_dir / BEST / folder_name(fields["client_id"]) / "policy"
            self.put(partial(self._keep, fields["client_id"], "best", partial(shutil.copytree, folder)))

    def dead_letter(self, client_id: str, letter: QuarantinedSegment) -> None:
        """Do nothing: the letter is on the disk."""

    def forget(self, client_id: str) -> None:
        """Do nothing: an event tells it."""

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
        self._failed = not self.attempt(partial(self._logger.open, self._run))
        if self._failed:
            log.error("logger %s could not be opened: it records nothing until the learner starts again", self.title)
        else:
            super().run()

    def end(self, client_ids: Iterable[str]) -> None:
        """Ask the thread to pass on what is queued and the newest policies, and to end."""
        for client_id in client_ids:
            self.put(partial(self.keep_final, client_id))
        self.stop()

    def flush(self) -> None:
        """Do nothing: a logger flushes by itself."""

    def close(self) -> None:
        self._logger.close()
