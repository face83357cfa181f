"""Jobs as processes that outlive the daemon, and run once.

Each job has a status file, which its shell and its processes hold locked for as long as one of them lives. The shell writes a
line before it runs the command, and the exit code after it. So a daemon that starts can tell what became of each job:

- the file is locked: the job runs;
- it has an exit code: the job has ended;
- it has the first line only: the shell was killed; the exit code is unknown, and the job is not run again;
- it is empty or missing: the job has never begun.
"""

from __future__ import annotations

import fcntl
import subprocess
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from live_scheduler.jobs import Job

__all__ = ["Processes", "State", "Status"]

SHELL = 'echo begun; "$@" </dev/null 3>&1 >"$0" 2>&1; echo $?'
"""The program of the shell. Its standard output is the status file, and ``$0`` the file for the output of the job. The job has
the status file as descriptor 3, so that the lock lasts as long as the job, also if its shell is killed."""


class State(Enum):
    """The states of a job's process."""

    NEW = "has never begun"
    RUNNING = "runs"
    ENDED = "has ended"
    KILLED = "was killed"


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a job's process.

    Attributes:
        state: The state.
        exit_code: The exit code, if it has ended. The shell's: 126 or 127 if the command could not be run, 128 plus the number
            of the signal that ended it.
        changed_at: The Unix time of the last change: if it has ended, of its end.
    """

    state: State
    exit_code: int | None = None
    changed_at: float = 0.0


class Processes:
    """The processes of jobs. They use the files of one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder

    def start(self, job: Job) -> subprocess.Popen[bytes]:
        """Start a job.

        Raises:
            OSError: If no process can be started.
        """
        with self._path(job).open("ab") as status:
            fcntl.flock(status, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the shell and the job inherit the lock
            output = str(self._folder / f"{job.id}.out")
            return subprocess.Popen(
                ["sh", "-c", SHELL, output, *job.command],
                stdin=subprocess.DEVNULL,
                stdout=status,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # neither Ctrl-C nor a signal for the daemon's group reaches the job
            )

    def status(self, job: Job) -> Status:
        """Return the state of a job's process."""
        try:
            with self._path(job).open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return Status(State.RUNNING)
                lines = file.read().split()
                changed_at = self._path(job).stat().st_mtime
        except FileNotFoundError:
            return Status(State.NEW)
        if not lines:
            return Status(State.NEW)
        if len(lines) == 1:
            return Status(State.KILLED, None, changed_at)
        return Status(State.ENDED, int(lines[1]), changed_at)

    def _path(self, job: Job) -> Path:
        return self._folder / f"{job.id}.status"
