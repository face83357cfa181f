"""A real process that is killed, stopped and started again, and whose every exit code is looked at."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl4sys_zmq.resource import Resource

__all__ = ["SPARE", "TRY_AGAIN", "Child", "ProcessFailed"]

REAP_S = 10.0
TAIL_BYTES = 4_000
SPARE = "RL4SYS_SPARE"
"""Set for a child that was started ahead of its time: it imports what it needs, and waits for a line before it does anything."""

TRY_AGAIN = 75
"""``EX_TEMPFAIL``: the exit code with which a child says that its address was in use, and that it wants to be started again."""


class ProcessFailed(AssertionError):
    """A process under test ended by itself, with the wrong code, or not at all."""


@dataclass(frozen=True, slots=True)
class _End:
    """How one life ended: with which code, and with which it was to."""

    code: int
    expected: tuple[int, ...]


class Child(Resource):
    """One program, started anew as often as its owner likes.

    Its standard input is a pipe that closes with its owner's process, at which a child should end itself, so that none outlives
    a killed test run. What it prints goes to ``NAME.out``.

    Attributes:
        name: for messages.
        command: the program and its arguments; a change holds from the next start on.
        started_ns: when its present or last life began, by the monotonic clock.
        kills: how many lives ended by our SIGKILL.
        retries: how many ended with `TRY_AGAIN`.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, *, env: Mapping[str, str] | None = None) -> None:
        """Starts nothing yet.

        Args:
            name: of the program, among those of one owner.
            command: the program and its arguments.
            folder: where ``NAME.out`` goes.
            env: variables beside those of this process.
        """
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
        """Starts it, with these variables in addition.

        Raises:
            ProcessFailed: when it runs already.
        """
        if self.running:
            raise ProcessFailed(f"{self.name} runs already")
        self._expected = ()
        self.started_ns = time.monotonic_ns()
        if self._spare is not None and self._spare_command == self.command and not env:
            self._process, self._spare = self._spare, None
            self.tell("go")
        else:
            self._process = self._launch(env)

    def prepare(self) -> None:
        """Starts the next life ahead of its time, for a program that knows `SPARE`: a restart then takes milliseconds."""
        if self._spare is None:
            self._spare, self._spare_command = self._launch({SPARE: "1"}), list(self.command)

    def _launch(self, env: Mapping[str, str]) -> subprocess.Popen[str]:
        with self._output.open("ab") as output:
            return subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True, env={**self._env, **env}
            )

    @property
    def running(self) -> bool:
        """It was started, and has not ended. Collects its exit code when it has."""
        process = self._process
        if process is None:
            return False
        if process.poll() is None:
            return True
        self._collect(process)
        return False

    @property
    def pid(self) -> int:
        """Of the running process.

        Raises:
            ProcessFailed: when there is none.
        """
        return self._living.pid

    @property
    def codes(self) -> list[int]:
        """The exit codes of its ended lives."""
        return [end.code for end in self._ends]

    def tell(self, line: str) -> None:
        """Writes a line to its standard input.

        Raises:
            ProcessFailed: when it does not run, or reads no more.
        """
        pipe = self._living.stdin
        assert pipe is not None
        try:
            pipe.write(line + "\n")
            pipe.flush()
        except OSError as exc:
            raise ProcessFailed(f"{self.name} does not hear {line!r}: {exc}{self.said()}") from exc

    def expect(self, *codes: int) -> None:
        """From now on it may end by itself, with one of these codes."""
        self._expected = codes

    def kill(self) -> None:
        """SIGKILL, and waits for the end.

        Raises:
            ProcessFailed: when it had ended before.
        """
        process = self._living
        self._expected = (-signal.SIGKILL,)
        process.send_signal(signal.SIGKILL)
        process.wait(REAP_S)
        self._collect(process)
        self.kills += 1
        self.check()

    def pause(self) -> None:
        """SIGSTOP: it keeps all that it holds and does nothing.

        Raises:
            ProcessFailed: when it does not run.
        """
        self._living.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT.

        Raises:
            ProcessFailed: when it does not run.
        """
        self._living.send_signal(signal.SIGCONT)

    def wait(self, timeout_s: float, *codes: int) -> int:
        """Waits for its end, which must have one of these codes (0 if none is given); returns it.

        Raises:
            ProcessFailed: when it has another one, or does not end in time.
        """
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
        """Looks at all exit codes so far.

        Raises:
            ProcessFailed: for one that nobody expected.
        """
        for life, end in enumerate(self._ends, 1):
            if end.code not in end.expected:
                wanted = " or ".join(map(str, end.expected)) or "to run on"
                raise ProcessFailed(f"{self.name} ended its life {life} with code {end.code}, not {wanted}{self.said()}")

    def close(self) -> None:
        """SIGKILLs and collects what still runs."""
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
            raise ProcessFailed(f"{self.name} does not run{self.said()}")
        return self._process

    def _collect(self, process: subprocess.Popen[str]) -> None:
        if self._process is not process:
            return
        self._process = None
        _hang_up(process)
        self._ends.append(_End(process.returncode, self._expected))

    def forgive(self) -> bool:
        """Whether the last life ended because its address was in use; that end is then as expected as any."""
        if self._ends and self._ends[-1] == _End(TRY_AGAIN, ()):
            self._ends[-1] = _End(TRY_AGAIN, (TRY_AGAIN,))
            self.retries += 1
            return True
        return False

    def said(self) -> str:
        """The end of what it printed, for messages."""
        try:
            tail = self._output.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            tail = ""
        return f"; it said:\n{tail}" if tail else "; it said nothing"


def _hang_up(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):  # what was not read yet has nobody to read it
            process.stdin.close()
