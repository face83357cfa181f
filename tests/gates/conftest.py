"""The gates of docs/explanation/guarantees.md that need no journal on disk: one test body for each gate, at two sizes.

The quick tier runs with the whole suite and asserts outcomes only. The long tier runs when RL4SYS_SOAK is set (`make soak`)
and asserts times as well. RL4SYS_SOAK_REPORT names a file to which each gate appends its figures as a line of JSON.
RL4SYS_SOAK_SCALE (default: 1) reduces the long sizes.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness.children import PYTHONPATH, stop_process
from harness.cpp_client import PROGRAMS, build
from kit import forms, play

import rl4sys_zmq
from rl4sys_zmq import AgentConfig, RL4SysAgent, native
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

PACKAGE = Path(rl4sys_zmq.__file__).parent.parent
PROCESSES = Path(__file__).parent / "processes"
SOAK = bool(os.environ.get("RL4SYS_SOAK"))
SCALE = float(os.environ.get("RL4SYS_SOAK_SCALE", "1"))
PATIENCE_S = 60.0
"""The time limit of every wait, for a machine under any load."""

Report = Callable[..., None]


@dataclass(frozen=True)
class Tier:
    """The size of a gate."""

    name: str

    @property
    def long(self) -> bool:
        return self.name == "long"

    def size(self, quick: int, long: int, least: int = 1) -> int:
        """Return the size of this tier. RL4SYS_SOAK_SCALE scales the long size, down to `least`."""
        return max(least, round(long * SCALE)) if self.long else quick

    def __str__(self) -> str:
        return self.name


@pytest.hookimpl(tryfirst=True)  # so that names of tests do not depend on which tests are run
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "tier" in metafunc.fixturenames:
        tiers = [pytest.param(Tier("quick"), id="quick")]
        if SOAK:
            tiers.append(pytest.param(Tier("long"), id="long", marks=pytest.mark.soak))
        metafunc.parametrize("tier", tiers)


@dataclass(frozen=True)
class LabForm:
    """The form of a lab's actors, as their statistics name it, and their program if they are C++ programs."""

    name: str
    program: Path | None = None


@pytest.fixture(params=[*forms(), "C++"])
def lab_form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LabForm:
    if request.param == "C++":
        return LabForm("compiled", build(PROGRAMS / "gate_actor.cpp"))
    monkeypatch.setenv(native.VARIABLE, "always" if request.param == "compiled" else "never")
    return LabForm(request.param)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, for ipc."""
    with tempfile.TemporaryDirectory(prefix="rl4g-") as path:
        yield Path(path)


@pytest.fixture
def report(request: pytest.FixtureRequest, seed: int) -> Report:
    """Report the figures of a gate: a line on stdout, and a line of JSON in the file that RL4SYS_SOAK_REPORT names."""

    def say(**figures: Any) -> None:
        line = {"gate": request.node.name, "seed": seed, **figures}
        print(", ".join(f"{key} {value}" for key, value in line.items()))
        if path := os.environ.get("RL4SYS_SOAK_REPORT"):
            with open(path, "a") as file:
                file.write(json.dumps(line) + "\n")

    return say


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


class Child:
    """A running script of `processes/` and its connection to the test: JSON lines in both directions."""

    def __init__(self, script: str, options: Any, folder: Path) -> None:
        self.name = script
        self._stderr_path = folder / f"{script}-{time.monotonic_ns()}.stderr"
        self._stderr = self._stderr_path.open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(PROCESSES / f"{script}.py"), json.dumps(options)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONFAULTHANDLER": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self._heard = b""
        self._checked = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def errors(self) -> str:
        return self._stderr_path.read_text()

    def tell(self, name: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, *arguments]).encode() + b"\n")
        self.process.stdin.flush()

    def line_within(self, timeout_s: float) -> str | None:
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._heard:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                return None
            data = os.read(descriptor, 1 << 16)
            assert data, f"{self.name} ended without a word: {self.errors}"
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def hear_within(self, timeout_s: float) -> list[Any]:
        """Return a list with the next value that the process sends, or an empty list after the timeout."""
        line = self.line_within(timeout_s)
        said: list[Any] = [] if line is None else json.loads(line)
        return said

    def find(self, pattern: str, timeout_s: float = PATIENCE_S) -> str:
        """Return the match of a pattern's first group in the first output line that contains the pattern."""
        while (line := self.line_within(timeout_s)) is not None:
            if found := re.search(pattern, line):
                return found.group(1)
        pytest.fail(f"{self.name} did not write {pattern!r} within {timeout_s:g} s: {self.errors}", pytrace=False)

    def hear(self, timeout_s: float = PATIENCE_S) -> Any:
        said = self.hear_within(timeout_s)
        assert said, f"{self.name} said nothing for {timeout_s:g} s: {self.errors}"
        return said[0]

    def ask(self, name: str, *arguments: Any, timeout_s: float = PATIENCE_S) -> Any:
        self.tell(name, *arguments)
        return self.hear(timeout_s)

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal. SIGSTOP has taken effect when this method returns."""
        if signum == signal.SIGSTOP:
            stop_process(self.process.pid)
        else:
            self.process.send_signal(signum)

    def end(self, code: int = 0, timeout_s: float = PATIENCE_S, *, expect: str = "") -> float:
        """Close the process's stdin, wait until it exits with this code, and return the seconds that this takes."""
        began = time.monotonic()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            got = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.name} did not end within {timeout_s:g} s: {self.errors}", pytrace=False)
        self._checked = True
        assert got == code, f"{self.name} ended with {got}: {self.errors}"
        assert expect in self.errors if expect else "Traceback" not in self.errors, self.errors
        return time.monotonic() - began

    def kill(self) -> None:
        assert self.process.poll() is None, f"{self.name} had ended already: {self.errors}"
        self.process.kill()
        self.end(-signal.SIGKILL)

    def close(self) -> None:
        """Release all resources. If the end of the process was not checked so far, end the process and check its exit."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        try:
            if not self._checked:
                if self.name == "command":  # the command ends at a signal, not at the end of its stdin
                    self.process.send_signal(signal.SIGTERM)
                self.end()
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            for stream in (self.process.stdin, self.process.stdout, self._stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()


Spawn = Callable[..., Child]
StartLearner = Callable[..., tuple[Child, str]]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Start processes: ``spawn("learner", {...})``."""
    children: list[Child] = []

    def start(script: str, options: Any = None) -> Child:
        children.append(Child(script, options or {}, tmp_path))
        return children[-1]

    yield start
    failures = []
    for child in reversed(children):
        try:
            child.close()
        except (AssertionError, pytest.fail.Exception) as exc:
            failures.append(str(exc))
    assert not failures, failures


@pytest.fixture
def learner(spawn: Spawn) -> StartLearner:
    """Start learner processes."""

    def start(
        bind: str = "tcp://127.0.0.1:0",
        *,
        hidden: int = 8,
        config: Any = None,
        forgetful: bool = False,
        torch: bool = False,
        **fake: Any,
    ) -> tuple[Child, str]:
        options = {"bind": bind, "hidden": hidden, "config": config or {}, "forgetful": forgetful, "torch": torch, "fake": fake}
        child = spawn("learner", options)
        return child, child.hear()["address"]

    return start


def agent_options(address: str, **options: Any) -> dict[str, Any]:
    """Return the configuration of an agent with the fake algorithm, in JSON values."""
    return {
        "client_id": "lab",
        "algorithm_name": "FAKE",
        "input_size": 4,
        "act_dim": 2,
        "train_server_address": address,
        "linger_ms": 0,
        "connect_timeout_s": PATIENCE_S,
        "seed": 1,
        **options,
    }


def join(address: str, **options: Any) -> RL4SysAgent:
    given = agent_options(address, **options)
    del given["input_size"], given["act_dim"]
    return RL4SysAgent(config=AgentConfig(observation_space=BoxSpace((4,)), action_space=DiscreteSpace(2), **given))


def drive(agent: RL4SysAgent, versions: int = 1, steps: int = 1) -> None:
    """Cause new versions, one after another."""
    for _ in range(versions):
        held = agent.version
        play(agent, steps)
        agent.wait_version(held + 1, PATIENCE_S)


def check_law(stats: dict[str, Any]) -> None:
    """Check the actor's conservation law. No segment may be on its way."""
    assert stats["submitted"] == stats["dropped_at_source"] + stats["in_actor"] + stats["refused"] + stats["accepted"], stats


def check_learner_law(client: dict[str, Any]) -> None:
    """Check the learner's conservation law for a client that runs and has resumed."""
    judged = sum(client["verdicts"][verdict] for verdict in ("trained", "stale", "quarantined"))
    assert client["accepted"] == judged + client["pending"] + client["rolled_back"], client


def account(process: Child, accepted: int) -> dict[str, Any] | None:
    """Return the client's status if the learner has judged all segments that its actors count as accepted."""
    client: dict[str, Any] = process.ask("status")["clients"]["lab"]
    judged = sum(client["verdicts"][v] for v in ("trained", "stale", "quarantined"))
    return client if client["accepted"] == accepted == judged + client["pending"] else None
