"""Learners whose clients are trained in processes: crashes, stopped processes, errors, and the end of the learner."""

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.children import PYTHONPATH, is_there
from harness.engine_plugin import FRUITFUL
from kit import until

from rl4sys_zmq import plugins
from rl4sys_zmq.errors import ConfigError, RL4SysError
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.learner.engines import packets, process
from rl4sys_zmq.learner.gateway import core

from .conftest import Lab, play
from .engine_lab import PATIENCE_S, balanced, check_a_relic, client_of, trained, worker_options

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def lab(ipc_lab: Lab) -> Lab:
    return ipc_lab


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return worker_options(tmp_path)


def open_sockets() -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(entry).startswith("socket:")
    return count


def test_a_crash_is_seen_in_a_program_that_ignores_sigchld(
    lab: Lab, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    request.addfinalizer(lambda: signal.signal(signal.SIGCHLD, before))
    learner = lab.learner(**options)
    play(lab.agent(learner, algorithm_name="IMPORTABLE"), 2)
    os.kill(trained(learner, 2)["worker"]["pid"], signal.SIGKILL)
    until(lambda: client_of(learner)["restarts"] == 1 and client_of(learner)["state"] == "running", "another process")
    assert "unknown exit status: this program ignores SIGCHLD" in client_of(learner)["worker"]["last_crash"]


def test_a_stopped_process_that_wakes_after_its_replacement_changes_nothing(
    lab: Lab, options: dict[str, Any], stopped: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "REPLACED_KILL_S", 10 * PATIENCE_S)  # the old process must not be killed so soon
    check_a_relic(lab, options, stopped, lambda learner: learner.restart("lab"))


def test_a_stopped_process_is_shown(
    lab: Lab, options: dict[str, Any], stopped: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "WORKER_SILENCE_S", 1.2)
    learner = lab.learner(**options)
    lab.agent(learner, algorithm_name="IMPORTABLE")
    pid = trained(learner, 0)["worker"]["pid"]
    stopped(pid)
    shown = until(lambda: (c := client_of(learner))["alarms"].get("worker_silent") and c, "the alarm")
    assert shown["worker"]["silent_s"] > 1.2 and shown["state"] == "running"
    os.kill(pid, signal.SIGCONT)
    until(lambda: client_of(learner)["worker"]["silent_s"] < 1.2, "a sign of life")


def test_a_replaced_process_that_stays_stopped_is_killed(
    lab: Lab, options: dict[str, Any], stopped: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "REPLACED_KILL_S", 0.1)
    learner = lab.learner(**options)
    lab.agent(learner, algorithm_name="IMPORTABLE")
    old = trained(learner, 0)["worker"]["pid"]
    stopped(old)
    learner.restart("lab")
    until(lambda: not is_there(old), "it is killed")
    until(lambda: client_of(learner)["state"] == "running", "its successor runs")
    assert learner.forget("lab", timeout_s=PATIENCE_S)["pending"] == 0


def test_closing_kills_a_process_that_does_not_end(lab: Lab, options: dict[str, Any], stopped: Callable[[int], None]) -> None:
    learner = lab.learner(**{**options, "shutdown_timeout_s": 0.2})
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    pid = trained(learner, 4)["worker"]["pid"]
    stopped(pid)
    agent.close()
    learner.close()
    assert not is_there(pid)


def test_an_algorithm_that_only_the_program_knows_is_named(lab: Lab, options: dict[str, Any]) -> None:
    """FAKE is registered in the process of this test only."""
    learner = lab.learner(**options)
    with pytest.raises(RL4SysError, match="plugins"):
        lab.agent(learner)


def test_a_killed_process_takes_along_what_it_has_started(
    lab: Lab, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    learner = lab.learner(**options)
    agent = lab.agent(learner, algorithm_name="MORTAL_OFF")
    play(agent, 1, FRUITFUL)
    pid = trained(learner, 1)["worker"]["pid"]
    line = until(lambda: next((line for line in caplog.messages if "a child" in line), None), "the line")
    child = int(line.split()[-1])
    assert is_there(child)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_there(child), "its child has ended")


def test_a_process_is_watched_where_the_kernel_lacks_pidfd_open(
    lab: Lab, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    learner = lab.learner(**options)
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    before = trained(learner, 4)
    assert "crashes" not in before["worker"]
    os.kill(before["worker"]["pid"], signal.SIGKILL)
    until(lambda: client_of(learner)["restarts"] == 1, "another process")


def test_a_learner_whose_working_directory_was_removed_starts_processes(
    lab: Lab, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    learner = lab.learner(**options)
    gone.rmdir()
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    balanced(trained(learner, 4), 4)


def test_a_process_finds_modules_in_the_order_of_the_learner(
    lab: Lab, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A module beside the program that embeds the learner hides a module with the same name in PYTHONPATH."""
    for name, text in {
        "beside": "from harness.engine_plugin import *",
        "elsewhere": "raise ImportError('the wrong one')",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "engine_twin.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'elsewhere'}{os.pathsep}{PYTHONPATH}")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "beside"), *sys.path])
    monkeypatch.setattr(plugins, "_imported", {})  # so that later learners of this process do not import it
    learner = lab.learner(**{**options, "plugins": ("engine_twin",)})
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    balanced(trained(learner, 4), 4)


@pytest.mark.parametrize("fault", ["thread", "engine"])
def test_a_worker_that_cannot_be_started_costs_one_client_a_pause(
    fault: str, lab: Lab, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system cannot start a thread when a crashed worker must be replaced, or the engine raises an unexpected exception."""
    clients = {"well": {"engine": "thread"}, "sick": {"engine": "process"}}
    learner = lab.learner(**{**options, "engine": "thread", "clients": clients})
    well, sick = (lab.agent(learner, name, algorithm_name="IMPORTABLE") for name in ("well", "sick"))
    play(sick, 4)
    pid = trained(learner, 4, "sick")["worker"]["pid"]
    learner.save(timeout_s=PATIENCE_S)
    full = threading.Event()
    full.set()
    start_thread, start_worker = threading.Thread.start, process.ProcessEngine.start

    def no_thread(thread: threading.Thread) -> None:
        if fault == "thread" and full.is_set() and thread.name == "rl4sys-process-sick":
            raise RuntimeError("can't start new thread")
        start_thread(thread)

    def no_worker(engine: process.ProcessEngine, assignment: Any) -> Any:
        if fault == "engine" and full.is_set():
            raise LookupError("a fault of the engine")
        return start_worker(engine, assignment)

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    monkeypatch.setattr(process.ProcessEngine, "start", no_worker)
    sockets = open_sockets()
    os.kill(pid, signal.SIGKILL)
    text = {"thread": "can't start new thread; raise the limit of processes", "engine": "a fault of the engine"}[fault]
    until(lambda: text in client_of(learner, "sick")["worker"].get("last_crash", ""), "an attempt has failed")
    full.clear()
    play(well, 4)
    balanced(trained(learner, 4, "well"), 4)
    play(sick, 4)
    found = trained(learner, 8, "sick")
    balanced(found, 8)
    assert found["worker"]["crashes"] >= 2
    assert open_sockets() <= sockets, "nothing of the failed attempts is left"


def test_an_error_while_a_process_is_watched_costs_it_a_restart(
    lab: Lab, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = lab.learner(**options)
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    pid = trained(learner, 4)["worker"]["pid"]
    decode, faulty = packets.decode_packet, threading.Event()
    faulty.set()

    def fault(data: bytes) -> Any:
        if faulty.is_set():
            faulty.clear()
            raise ValueError("no packet")
        return decode(data)

    monkeypatch.setattr(packets, "decode_packet", fault)
    until(lambda: client_of(learner)["restarts"] == 1, "another process")
    assert not is_there(pid)
    crash = client_of(learner)["worker"]["last_crash"]
    assert crash == f"its process {pid} was killed, because of an error in the learner: ValueError: no packet"
    play(agent, 4)
    balanced(trained(learner, 8), 8)


def test_an_engine_that_does_not_exist_is_refused_with_the_nearest(options: dict[str, Any]) -> None:
    config = LearnerConfig(**{**options, "clients": {"lab": {"engine": "proces"}}})
    with pytest.raises(ConfigError, match=r"unknown engine 'proces'.*did you mean 'process'"), Learner(config):
        pytest.fail("it has started")
