"""Commands in this process, and as processes. Each wait has a time limit, and no process is left behind."""

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from kit import until

import rl4sys_zmq
from rl4sys_zmq.cli.act import RunOptions

PACKAGE = Path(rl4sys_zmq.__file__).parent.parent
START_S = 60.0
RUN = RunOptions(
    env_id="CartPole-v1",
    learner="learner:50051",
    client_id="luna",
    config_path=None,
    num_envs=4,
    episodes=None,
    seed=7,
    algorithm=None,
    connect_timeout_s=None,
    exit_with_stdin=False,
    verbose=False,
    debug=False,
)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


def invoke(group: click.Group, *arguments: object, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(group, [*map(str, arguments)])


def output(result: Result) -> str:
    """Return the output of a command that succeeded."""
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(result: Result, code: int = 2) -> str:
    """Return the one line on stderr of a command that failed."""
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1), result.output
    return result.stderr


class Command:
    """A running command. Its stdout is read line by line, and its stderr is kept."""

    def __init__(self, module: str, arguments: tuple[str, ...], folder: Path, path: tuple[Path, ...] = ()) -> None:
        self._errors = (folder / f"stderr-{time.monotonic_ns()}").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"rl4sys_zmq.cli.{module}", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (PACKAGE, *path)))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def wait_for(self, pattern: str, timeout_s: float = START_S) -> re.Match[str]:
        """Return the match of the first new line that matches."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            assert line is not None, f"it ended before {pattern!r}: {self.lines}, {self.errors}"
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found

    def end(self, timeout_s: float = START_S) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        while (line := self._queue.get_nowait()) is not None:
            self.lines.append(line)
        self._queue.put(None)
        return code

    def wait_for_handlers(self) -> None:
        """Wait until it handles SIGTERM. The interpreter alone does not handle it."""
        status = Path(f"/proc/{self.process.pid}/status")
        until(lambda: int(status.read_text().partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1)

    def signal(self, signum: signal.Signals) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        self.process.send_signal(signum)
        return self.end()

    @property
    def errors(self) -> str:
        """The text that it has written to stderr so far."""
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                stream.close()


Spawn = Callable[..., Command]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Yield a function that starts commands: ``spawn("learner", "serve", "--port", "0")``. They run in `tmp_path`."""
    commands: list[Command] = []

    def start(module: str, *arguments: str, path: tuple[Path, ...] = ()) -> Command:
        commands.append(Command(module, arguments, tmp_path, path))
        return commands[-1]

    yield start
    for command in commands:
        command.close()


def serve(spawn: Spawn, *arguments: str, path: tuple[Path, ...] = ()) -> tuple[Command, str]:
    """Start a learner on a free port, and return it with its address. Skip the test without the packages that it needs."""
    for module in ("torch", "tensorboard", "rich", "matplotlib", "gymnasium"):
        pytest.importorskip(module)
    server = spawn("learner", "serve", "--port", "0", *arguments, path=path)
    return server, server.wait_for(r"learner at (\S+) ").group(1)


def act(spawn: Spawn, address: str, *arguments: str, path: tuple[Path, ...] = ()) -> Command:
    """Start an actor of the client luna in CartPole."""
    return spawn("actor", "run", "--env", "CartPole-v1", "--learner", address, "--client-id", "luna", *arguments, path=path)
