"""The jobs of the daemon, and what a scheduler sees of them. Times are seconds of the journal's clock."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from job_scheduling.simulator import SHORT_JOB_S
from job_scheduling.trace import Jobs
from rl4sys_zmq.errors import ConfigError

__all__ = ["ClusterView", "Job", "bounded_slowdown", "read_job", "read_request"]

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""The form of a job's id, which is also a file name."""


@dataclass(slots=True, kw_only=True)
class Job:
    """A job.

    Attributes:
        id: The name that its user has given it. A job that is submitted again with the same id is the same job.
        command: The program and its arguments.
        slots: The number of slots that it takes.
        requested_s: The run time that its user expects.
        submit_s: The time at which it was submitted.
        start_s: The time at which it started, or None.
        end_s: The time at which it ended, or None.
        exit_code: Its exit code; None while it has none, and if it ended without one.
        error: The reason why it ended without an exit code.
    """

    id: str
    command: tuple[str, ...]
    slots: int
    requested_s: float
    submit_s: float
    start_s: float | None = None
    end_s: float | None = None
    exit_code: int | None = None
    error: str | None = None


def read_request(line: bytes) -> dict[str, Any]:
    """Return a request: a JSON object with the key ``op``.

    Raises:
        ConfigError: If the line is something else.
    """
    try:
        request = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"a request is one line of JSON: {error}") from error
    if not isinstance(request, dict) or not isinstance(request.get("op"), str):
        raise ConfigError('a request is a JSON object with the key "op", such as {"op": "status"}')
    return request


def read_job(request: Mapping[str, Any], machine: int, now_s: float) -> Job:
    """Return the job that a request submits.

    Args:
        request: The request.
        machine: The number of slots of the machine.
        now_s: The time.

    Raises:
        ConfigError: If a value is missing or invalid, or the job needs more slots than the machine has.
    """
    name, command, slots = request.get("id"), request.get("command"), request.get("slots", 1)
    requested_s = request.get("requested_s")
    if not isinstance(name, str) or not ID.fullmatch(name):
        raise ConfigError(f"an id has 1 to 100 letters, digits, dots, underscores and dashes, not {name!r}", key="id")
    if not isinstance(command, list) or not command or not all(_is_argument(word) for word in command):
        raise ConfigError("a command is a list of a program and its arguments, without zero bytes", key="command")
    if type(slots) is not int or not 1 <= slots <= machine:
        raise ConfigError(f"slots is a whole number from 1 to {machine}, the size of this machine, not {slots!r}", key="slots")
    if not isinstance(requested_s, int | float) or not 0.0 < requested_s < math.inf:
        raise ConfigError(f"requested_s is the expected run time in seconds, above 0, not {requested_s!r}", key="requested_s")
    return Job(id=name, command=tuple(command), slots=slots, requested_s=float(requested_s), submit_s=now_s)


def _is_argument(word: object) -> bool:
    """Return True if a process can be started with this argument."""
    try:
        return isinstance(word, str) and b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def bounded_slowdown(job: Job, run_s: float) -> float:
    """Return the bounded slowdown of a job that has started, ``max(1, (wait + run) / max(run, 10 s))``.

    Args:
        job: The job.
        run_s: The run time of its program, in seconds. From the start to the end of the job it is longer: a process takes some
            milliseconds to start and to end, which are half a minute at 6000 times the speed.
    """
    if job.start_s is None:
        raise ValueError(f"job {job.id} has not run")
    return max((job.start_s - job.submit_s + run_s) / max(run_s, SHORT_JOB_S), 1.0)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The state of the machine at a decision. It implements `job_scheduling.simulator.ClusterState`.

    Attributes:
        jobs: The waiting jobs in the order of submission. Their run times are unknown: they are the requested ones.
        machine: The number of slots.
        waiting: The rows of `jobs`, which are all of them.
        now_s: The time.
        free: The number of free slots.
        ends: The requested end and the slots of each running job, in the order of these ends.
        backfilling: False: the daemon starts no other job while the chosen one cannot start.
    """

    jobs: Jobs
    machine: int
    waiting: list[int]
    now_s: float
    free: int
    ends: list[tuple[float, int]]
    backfilling: bool = False

    @classmethod
    def of(cls, waiting: Sequence[Job], running: Sequence[Job], machine: int, now_s: float) -> ClusterView:
        """Return the state of a machine with these jobs."""
        requested_s = np.array([job.requested_s for job in waiting])
        jobs = Jobs(
            submit_s=np.array([job.submit_s for job in waiting]),
            run_s=requested_s,
            requested_s=requested_s,
            processors=np.array([job.slots for job in waiting], dtype=np.int64),
        )
        ends = sorted((max((job.start_s or 0.0) + job.requested_s, now_s), job.slots) for job in running)
        return cls(jobs, machine, list(range(len(waiting))), now_s, machine - sum(job.slots for job in running), ends)

    def running(self) -> list[tuple[float, int]]:
        """Return the requested end and the slots of each running job, by this end."""
        return self.ends
