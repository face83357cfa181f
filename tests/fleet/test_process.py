"""The engine for processes, with real processes that misbehave in many ways."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rl4sys_zmq.fleet import ActorReport, ProcessEngine
from rl4sys_zmq.fleet.process import ActorProcess

from .conftest import report_of

REPORT = report_of().to_json()
REPORTS = f"import os, signal, sys, subprocess, time\nprint({REPORT!r}, flush=True)\n"
WAIT_FOR_DRAIN = "line = sys.stdin.readline()\nprint('got', repr(line), flush=True)\n"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
SLEEP = "while True: time.sleep(60)\n"
GRANDCHILD = (
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\nprint('pid', child.pid, flush=True)\n"
)


class Lab:
    def __init__(self) -> None:
        self.script = ""
        self.output: list[str] = []
        self.engine = ProcessEngine(
            lambda index, start: [sys.executable, "-c", self.script], os.environ, lambda index, line: self.output.append(line)
        )

    def start(self, script: str) -> ActorProcess:
        self.script = script
        return self.engine.start(0, 0)

    def until(self, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.output
            self.engine.poll(0.05)

    def grandchild(self) -> int:
        self.until(lambda: any(line.startswith("pid ") for line in self.output))
        return int(next(line for line in self.output if line.startswith("pid ")).split()[1])


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    try:
        yield lab
    finally:
        lab.engine.close()


def gone(pid: int) -> bool:
    """Return True if a process has ended, even if its parent has not reaped it."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_reports_output_and_the_exit_code_arrive(lab: Lab) -> None:
    actor = lab.start(REPORTS + "print('oops', file=sys.stderr)\nsys.stdout.write('no newline')\nsys.exit(3)")
    lab.until(lambda: not actor.alive)
    assert actor.exit_code == 3
    assert actor.report == ActorReport.parse(REPORT.encode())
    assert lab.output == ["oops", "no newline"] and actor.last_output == "no newline"


def test_endless_output_without_a_newline_takes_no_memory(lab: Lab) -> None:
    actor = lab.start("import sys\nfor _ in range(200): sys.stdout.write('x' * 65536)\nprint()\nprint('end')")
    lab.until(lambda: not actor.alive)
    assert actor.exit_code == 0 and lab.output[-1] == "end"
    assert max(map(len, lab.output)) < 200_000


def test_an_actor_drains_when_asked(lab: Lab) -> None:
    actor = lab.start(REPORTS + WAIT_FOR_DRAIN)
    lab.until(lambda: actor.report)
    actor.stop(60.0)
    lab.until(lambda: not actor.alive)
    assert actor.exit_code == 0 and lab.output == [r"got 'drain\n'"]


def test_after_the_grace_period_it_is_terminated(lab: Lab) -> None:
    actor = lab.start(REPORTS + WAIT_FOR_DRAIN + SLEEP)
    lab.until(lambda: actor.report)
    actor.stop(0.2)
    lab.until(lambda: not actor.alive)
    assert actor.exit_code == -signal.SIGTERM


def test_what_ignores_that_is_killed_with_all_that_it_has_started(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.fleet.process.TERMINATE_S", 0.2)
    actor = lab.start(STUBBORN.join([REPORTS, GRANDCHILD]) + SLEEP)
    child = lab.grandchild()
    actor.stop(0.0)
    lab.until(lambda: not actor.alive)
    assert actor.exit_code == -signal.SIGKILL
    lab.until(lambda: gone(child))


def test_a_stopped_process_is_ended_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.fleet.process.TERMINATE_S", 0.2)
    actor = lab.start(REPORTS + SLEEP)
    lab.until(lambda: actor.report)
    os.kill(actor.pid, signal.SIGSTOP)
    actor.stop(0.0)
    lab.until(lambda: not actor.alive)
    assert actor.exit_code == -signal.SIGKILL


def test_what_an_actor_leaves_behind_is_killed(lab: Lab) -> None:
    actor = lab.start(REPORTS + GRANDCHILD)
    child = lab.grandchild()
    lab.until(lambda: not actor.alive)
    lab.until(lambda: gone(child))


def test_an_actor_without_a_report_is_terminated_at_once(lab: Lab) -> None:
    actor = lab.start("import time\nprint('up', flush=True)\ntime.sleep(600)")
    lab.until(lambda: lab.output)
    actor.stop(600.0)
    lab.until(lambda: not actor.alive)
    assert actor.exit_code == -signal.SIGTERM


def test_a_second_stop_can_only_hurry(lab: Lab) -> None:
    actor = lab.start(REPORTS + WAIT_FOR_DRAIN + SLEEP)
    lab.until(lambda: actor.report)
    actor.stop(600.0)
    actor.stop(0.0)
    actor.stop(600.0)
    lab.until(lambda: not actor.alive)
    assert actor.exit_code == -signal.SIGTERM


def test_close_ends_all_and_twice_does_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.fleet.process.TERMINATE_S", 0.3)
    actors = [lab.start(REPORTS + SLEEP), lab.start(REPORTS.replace("time\n", f"time\n{STUBBORN}", 1) + SLEEP)]
    lab.until(lambda: all(actor.report for actor in actors))
    lab.engine.close()
    lab.engine.close()
    assert [actor.exit_code for actor in actors] == [-signal.SIGTERM, -signal.SIGKILL]
    assert all(gone(actor.pid) for actor in actors)


def test_a_command_that_does_not_exist_cannot_be_started(lab: Lab) -> None:
    engine = ProcessEngine(lambda index, start: ["/does/not/exist"], os.environ)
    with engine, pytest.raises(FileNotFoundError):
        engine.start(0, 0)
