"""The engine that runs each actor as a process of this machine.

One socket is the standard input, output and error of a process, so that the process sees the end of its input, and ends, even
if the fleet is killed. Each process leads a session and a process group of its own: Ctrl-C on the terminal reaches only the
fleet, and everything that an actor has started is killed with the actor.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from rl4sys_zmq.child_process import ChildProcess, child_environment
from rl4sys_zmq.fleet.engine import MAX_REPORT_BYTES, TERMINATE_S, ActorEngine, ActorHandle, ActorReport
from rl4sys_zmq.logs import get_logger

log = get_logger(__name__)

DRAIN_LINE = b"drain\n"
"""The line on its standard input that tells an actor process to drain."""
READ_BYTES = 65_536
READS = 16


def actor_environment() -> dict[str, str]:
    """Return the environment of an actor process, without options of ``rl4sys-actor``: its command line has all of them."""
    inherited = {name: value for name, value in child_environment().items() if not name.startswith("RL4SYS_ACTOR_")}
    return {**inherited, "PYTHONUNBUFFERED": "1"}


class ActorProcess(ActorHandle):
    """One actor process, the fleet's end of its socket, and the steps that end it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], on_output: Callable[[str], None]) -> None:
        super().__init__()
        self._on_output = on_output
        self._buffer = b""
        self._terminate_at = self._kill_at = float("inf")
        self._terminated = False
        self.socket, theirs = socket.socketpair()
        end = theirs.fileno()
        try:
            self._process = ChildProcess(command, stdin=end, stdout=end, stderr=end, env=environment, start_new_session=True)
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()
        self.socket.setblocking(False)
        self.pid = self._process.pid

    def stop(self, grace_s: float) -> None:
        """Drain the process with a line on its input. `advance` sends SIGTERM and SIGKILL later."""
        now = time.monotonic()
        asked = self._terminate_at < float("inf")
        if self.report is None or (not asked and not self._ask_to_drain()):
            grace_s = 0.0
        self._terminate_at = min(self._terminate_at, now + grace_s)
        self._kill_at = min(self._kill_at, self._terminate_at + TERMINATE_S)

    def _ask_to_drain(self) -> bool:
        try:
            return self.socket.send(DRAIN_LINE) == len(DRAIN_LINE)
        except OSError:
            return False

    def read(self) -> bool:
        """Read at most `READS` times `READ_BYTES` of output. Return False at its end."""
        for _ in range(READS):
            try:
                data = self.socket.recv(READ_BYTES)
            except BlockingIOError:
                return True
            except ConnectionError:
                data = b""
            if not data:
                self._on_line(self._buffer)
                self._buffer = b""
                return False
            *lines, rest = (self._buffer + data).split(b"\n")
            self._buffer = rest[-MAX_REPORT_BYTES:]
            for line in lines:
                self._on_line(line)
        return True

    def _on_line(self, line: bytes) -> None:
        report = ActorReport.parse(line)
        if report is not None:
            self.report = report
        elif text := line.decode(errors="replace").strip():
            self.last_output = text
            self._on_output(text)

    def advance(self, now: float) -> None:
        """Do the next step of `stop` if its time has come, and record the end of the process."""
        if self._process.look() is not None:
            self.exit_code = self._process.end(0.0)
            self.read()
        elif now >= self._kill_at:
            self._process.kill_group()
        elif now >= self._terminate_at and not self._terminated:
            self._terminated = True
            self._process.terminate()

    def kill(self) -> None:
        """Kill the process and everything that it has started, and wait for its end."""
        self.exit_code = self._process.end(0.0)


class ProcessEngine(ActorEngine):
    """The engine that starts each actor of a fleet as a process of this machine. Use it in one thread."""

    def __init__(
        self,
        command: Callable[[int, int], Sequence[str]],
        environment: Mapping[str, str],
        on_output: Callable[[int, str], None] = lambda index, line: None,
    ) -> None:
        """Create an engine without processes.

        Args:
            command: Returns the command line of an actor. The arguments are those of `start`. The command must send reports on
                its standard output, drain when it reads `DRAIN_LINE`, and end when its standard input ends.
            environment: The environment variables of the processes.
            on_output: Called with the index of an actor and each line of its output that is not a report.
        """
        self._command, self._environment, self._on_output = command, environment, on_output
        self._selector = selectors.DefaultSelector()
        self._processes: list[ActorProcess] = []

    def start(self, index: int, start: int) -> ActorProcess:
        command = self._command(index, start)
        process = ActorProcess(command, self._environment, lambda line: self._on_output(index, line))
        self._processes.append(process)
        self._selector.register(process.socket, selectors.EVENT_READ, process)
        return process

    def poll(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            process: ActorProcess = key.data
            if not process.read():
                self._selector.unregister(process.socket)
        now = time.monotonic()
        for process in self._processes:
            process.advance(now)
            if not process.alive:
                self._release(process)
        self._processes = [process for process in self._processes if process.alive]

    def _release(self, process: ActorProcess) -> None:
        with contextlib.suppress(KeyError):  # at the end of its output it was unregistered
            self._selector.unregister(process.socket)
        process.socket.close()

    def close(self) -> None:
        """Terminate all processes, kill those that are left after `TERMINATE_S` seconds, and wait for their end."""
        try:
            for process in self._processes:
                process.stop(0.0)
            deadline = time.monotonic() + TERMINATE_S
            while self._processes and time.monotonic() < deadline:
                self.poll(0.05)
        finally:
            for process in self._processes:
                process.kill()
                self._release(process)
            self._processes = []
            self._selector.close()
