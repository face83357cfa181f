"""The journal: all jobs that were submitted, on the disk before the submission is answered.

It is a file of JSON lines, one for each event. A daemon that starts reads it, and knows all jobs again. Only one daemon can
have it open.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from live_scheduler.jobs import Job
from rl4sys_zmq.errors import ConfigError

__all__ = ["Journal"]


class Journal:
    """The jobs of a daemon, in memory and on disk.

    Its clock begins with the first start of the daemon and goes on while no daemon runs.

    Attributes:
        jobs: All jobs by id, in the order of submission.
        speed: The seconds of its clock in a real one.
    """

    def __init__(self, path: Path, speed: float = 1.0) -> None:
        """Open a journal, or begin one.

        Args:
            path: The file.
            speed: The seconds of the clock in a real one: above 1, a workload of days plays in minutes.

        Raises:
            ConfigError: If another daemon has the journal open, the file cannot be used, or it has another speed.
        """
        if not 0.0 < speed < math.inf:
            raise ConfigError(f"speed is a positive number, not {speed}", key="speed")
        self.jobs: dict[str, Job] = {}
        self.speed = speed
        self._path = path
        try:
            self._file = path.open("ab+", buffering=0)
        except OSError as error:
            raise ConfigError(f"cannot open the journal: {error}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError:
            self._file.close()
            raise ConfigError(f"another daemon uses {path.parent}; stop it, or choose another folder") from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def now_s(self) -> float:
        """Return the time."""
        return self.at_s(time.time())

    def at_s(self, unix_s: float) -> float:
        """Return the time of this journal at a Unix time."""
        return (unix_s - self._epoch) * self.speed

    def submitted(self, job: Job) -> None:
        """Add a job. It is on the disk when this returns.

        Raises:
            OSError: If it cannot be written. The job is not in the journal then.
        """
        event = {"event": "submitted", **{key: value for key, value in asdict(job).items() if value is not None}}
        self._append(event, durable=True)
        self._apply(event)

    def started(self, job: Job) -> None:
        """Note that a job starts now."""
        self._note({"event": "started", "id": job.id, "start_s": self.now_s()})

    def ended(self, job: Job, end_s: float, exit_code: int | None, error: str | None = None) -> None:
        """Note that a job has ended.

        Args:
            job: The job.
            end_s: The time at which it ended.
            exit_code: Its exit code, or None.
            error: The reason why it has no exit code.
        """
        self._note({"event": "ended", "id": job.id, "end_s": end_s, "exit_code": exit_code, "error": error})

    def _note(self, event: dict[str, Any]) -> None:
        self._append(event)
        self._apply(event)

    def _append(self, event: dict[str, Any], durable: bool = False) -> None:
        line = json.dumps(event).encode() + b"\n"
        size = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(line) != len(line):
                raise OSError(f"the disk of {self._path} is full")
            if durable:
                os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), size)
            raise

    def _apply(self, event: dict[str, Any]) -> None:
        fields = dict(event)
        match fields.pop("event"):
            case "created":
                self._epoch, self.speed = float(fields["epoch"]), float(fields["speed"])
            case "submitted":
                self.jobs[fields["id"]] = Job(**{**fields, "command": tuple(fields["command"])})
            case "started" | "ended":
                job = self.jobs[fields.pop("id")]
                for key, value in fields.items():
                    setattr(job, key, value)
            case other:
                raise ValueError(f"unknown event {other!r}")

    def _read(self) -> None:
        """Read all events. A last line without an end was never answered, and is removed."""
        speed = self.speed
        self._file.seek(0)
        content = self._file.read()
        complete = content[: content.rfind(b"\n") + 1]
        os.ftruncate(self._file.fileno(), len(complete))
        for number, line in enumerate(complete.splitlines(), 1):
            try:
                self._apply(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{self._path}, line {number}, is damaged ({error!r}); restore the file, or remove it"
                ) from error
        if not complete:
            self._note({"event": "created", "epoch": time.time(), "speed": speed})
        if self.speed != speed:
            raise ConfigError(f"{self._path} has the speed {self.speed:g}, not {speed:g}", key="speed")
