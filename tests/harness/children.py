"""A child process that a test kills, stops and restarts, with a check of every exit code."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import rl4sys_zmq
from rl4sys_zmq.resource import Resource

REAP_S = 10.0
TAIL_BYTES = 4_000
PYTHONPATH = os.pathsep.join(str(path) for path in (Path(rl4sys_zmq.__file__).parents[1], Path(__file__).parents[1]))
"""The search path of a child that imports the package under test and these tools."""

SPARE = "RL4SYS_SPARE"
"""The variable of a child started in advance: it loads its modules and waits for a line on its input."""

TRY_AGAIN = 75
"""``EX_TEMPFAIL``: the exit code of a child whose address was in use and that should be started again."""


def stop_process(pid: int) -> None:
    """Send SIGSTOP to a process, and return when all of its threads have stopped or ended."""
    os.kill(pid, signal.SIGSTOP)
    pause = threading.Event()
    while any(map(_runs, Path(f"/proc/{pid}/task").glob("*/stat"))):
        pause.wait(0.001)


def _runs(stat: Path) -> bool:
    """Return True if a thread has neither stopped nor ended, by its file in /proc."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "TZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_there(pid: int) -> bool:
    """Return True if a process has not ended. A zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends while its file is read
        return False


class ProcessFailed(AssertionError):
    """A process under test ended by itself, with the wrong code, or not at all."""


@dataclass(frozen=True, slots=True)
class _End:
    """The end of one run: its exit code, and the codes that were expected."""

    code: int
    expected: tuple[int, ...]


class Child(Resource):
    """A program that can be started again and again.

    Its standard input is a pipe that closes with its owner's process. The child should then exit, so that none outlives a killed
    test run. Its output goes to ``NAME.out``."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, *, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.kills = self.retries = self.started_ns = 0
        self.command = list(command)
        self._output = folder / f"{name}.out"
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[str] | None = None
        self._spare: subprocess.Popen[str] | None = None
        self._spare_command: list[str] = []
        self._expected: tuple[int, ...] = ()
        self._ends: list[_End] = []

    def start(self, **env: str) -> None:
        if self.running:
            raise ProcessFailed(f"{self.name} is already running")
        self._expected = ()
        self.started_ns = time.monotonic_ns()
        if self._spare is not None and self._spare_command == self.command and not env:
            self._process, self._spare = self._spare, None
            self.tell("go")
        else:
            self._process = self._launch(env)

    def prepare(self) -> None:
        """Start the next process in advance, for a program that supports `SPARE`. A restart then takes milliseconds."""
        if self._spare is None:
            self._spare, self._spare_command = self._launch({SPARE: "1"}), list(self.command)

    def _launch(self, env: Mapping[str, str]) -> subprocess.Popen[str]:
        with self._output.open("ab") as output:
            return subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True, env={**self._env, **env}
            )

    @property
    def running(self) -> bool:
        """True while the process runs. The property records the exit code of a process that has ended."""
        process = self._process
        if process is None:
            return False
        if process.poll() is None:
            return True
        self._collect(process)
        return False

    @property
    def pid(self) -> int:
        return self._living.pid

    @property
    def codes(self) -> list[int]:
        return [end.code for end in self._ends]

    def tell(self, line: str) -> None:
        pipe = self._living.stdin
        assert pipe is not None
        try:
            pipe.write(line + "\n")
            pipe.flush()
        except OSError as exc:
            raise ProcessFailed(f"{self.name} does not read {line!r}: {exc}{self.said()}") from exc

    def expect(self, *codes: int) -> None:
        """Allow the process to end by itself with one of these codes."""
        self._expected = codes

    def kill(self) -> None:
        process = self._living
        self._expected = (-signal.SIGKILL,)
        process.send_signal(signal.SIGKILL)
        process.wait(REAP_S)
        self._collect(process)
        self.kills += 1
        self.check()

    def pause(self) -> None:
        """Stop the process: it keeps its resources and does nothing."""
        stop_process(self._living.pid)

    def resume(self) -> None:
        self._living.send_signal(signal.SIGCONT)

    def wait(self, timeout_s: float, *codes: int) -> int:
        """Wait for the end and return the exit code, which must be one of these codes (0 if none is given)."""
        self._expected = codes or (0,)
        process = self._process
        if process is not None:
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise ProcessFailed(f"{self.name} has not ended within {timeout_s:g} s{self.said()}") from None
            self._collect(process)
        self.check()
        return self._ends[-1].code

    def check(self) -> None:
        for life, end in enumerate(self._ends, 1):
            if end.code not in end.expected:
                wanted = " or ".join(map(str, end.expected)) or "to keep running"
                raise ProcessFailed(f"{self.name} ended run {life} with code {end.code}; expected {wanted}{self.said()}")

    def close(self) -> None:
        """Kill the processes that still run and wait for their end."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.kill()
            spare.wait(REAP_S)
            _hang_up(spare)
        process = self._process
        if process is not None and process.poll() is None:
            self._expected = (-signal.SIGKILL,)
            process.kill()
            process.wait(REAP_S)
        if process is not None:
            self._collect(process)

    @property
    def _living(self) -> subprocess.Popen[str]:
        if not self.running or self._process is None:
            self.check()
            raise ProcessFailed(f"{self.name} is not running{self.said()}")
        return self._process

    def _collect(self, process: subprocess.Popen[str]) -> None:
        if self._process is not process:
            return
        self._process = None
        _hang_up(process)
        self._ends.append(_End(process.returncode, self._expected))

    def forgive(self) -> bool:
        """Accept the last exit if its code was `TRY_AGAIN`. Return True if it was."""
        if self._ends and self._ends[-1] == _End(TRY_AGAIN, ()):
            self._ends[-1] = _End(TRY_AGAIN, (TRY_AGAIN,))
            self.retries += 1
            return True
        return False

    def said(self) -> str:
        try:
            tail = self._output.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            tail = ""
        return f"; its output:\n{tail}" if tail else "; it has no output"


def _hang_up(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):  # unread lines in the pipe have no reader any more
            process.stdin.close()
