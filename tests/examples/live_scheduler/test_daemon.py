"""Tests of the live scheduler: its journal, its processes, and the daemon when it is stopped, killed and started again."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import open_agent, until

from job_scheduling.policy import ACTION_SPACE, OBSERVATION_SPACE
from job_scheduling.trace import Jobs
from live_scheduler import client as client_module
from live_scheduler import compare
from live_scheduler import daemon as daemon_module
from live_scheduler.client import Client, play
from live_scheduler.daemon import Daemon
from live_scheduler.jobs import Job, bounded_slowdown
from live_scheduler.journal import Journal
from live_scheduler.processes import Processes, State
from live_scheduler.schedulers import CLIENT, PolicyScheduler, Scheduler, SlowdownMeter, make_scheduler
from rl4sys_zmq.errors import ConfigError, ObservationError
from rl4sys_zmq.learner import Learner, LearnerConfig

EXAMPLES = Path(__file__).parents[3] / "examples"


def job(name: str, *command: str, slots: int = 1, requested_s: float = 1.0, submit_s: float = 0.0) -> Job:
    return Job(id=name, command=command or ("true",), slots=slots, requested_s=requested_s, submit_s=submit_s)


def served(
    folder: Path, journal: Journal, talk: Callable[[Client], Any], scheduler: str | Scheduler = "FCFS", slots: int = 2
) -> Any:
    """Run a daemon in this process while `talk` uses it from a thread. Return the result of `talk`."""

    async def run() -> Any:
        stop = asyncio.Event()
        daemon = Daemon(folder, journal, make_scheduler(scheduler, folder) if isinstance(scheduler, str) else scheduler, slots)
        serving = asyncio.create_task(daemon.run(stop))

        def conversation() -> Any:
            with Client(folder) as client:
                return talk(client)

        talking = asyncio.create_task(asyncio.to_thread(conversation))
        try:
            await asyncio.wait({talking, serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.set()
            await serving
        return await talking

    return asyncio.run(run())


def wait_for_all(client: Client) -> dict[str, Any]:
    client.ask("wait")
    return {each["id"]: each for each in client.ask("jobs")["jobs"]}


@pytest.mark.parametrize(("scheduler", "order"), [("FCFS", "abcd"), ("SJF", "dbca"), ("random", None)])
def test_jobs_run_in_the_order_of_the_scheduler(tmp_path: Path, journal: Journal, scheduler: str, order: str | None) -> None:
    for name, requested_s in zip("abcd", (9.0, 2.0, 3.0, 1.0), strict=True):
        journal.submitted(job(name, requested_s=requested_s))
    ended = served(tmp_path, journal, wait_for_all, scheduler, slots=1)
    assert all(each["exit_code"] == 0 for each in ended.values())
    found = "".join(sorted(ended, key=lambda name: ended[name]["start_s"]))
    assert found == (order or found) and set(found) == set("abcd")
    assert all(bounded_slowdown(each, 5.0) >= 1.0 for each in journal.jobs.values())


def test_a_chosen_job_that_does_not_fit_holds_the_others(tmp_path: Path, journal: Journal) -> None:
    journal.submitted(job("narrow", "sleep", "0.05"))
    journal.submitted(job("wide", slots=2))
    journal.submitted(job("last"))
    ended = served(tmp_path, journal, wait_for_all)
    assert ended["narrow"]["end_s"] <= ended["wide"]["start_s"] <= ended["last"]["start_s"]


def test_requests_that_are_refused_leave_the_daemon_running(tmp_path: Path, journal: Journal) -> None:
    good = {"id": "a", "command": ["true"], "slots": 1, "requested_s": 1}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"id": "../a"}, "an id has"),
        ({"id": 7}, "an id has"),
        ({"command": []}, "a command is"),
        ({"command": "true"}, "a command is"),
        ({"command": ["a\0b"]}, "zero bytes"),
        ({"command": ["\ud800"]}, "a command is"),
        ({"slots": 3}, "from 1 to 2"),
        ({"slots": True}, "from 1 to 2"),
        ({"requested_s": 0}, "above 0"),
        ({"requested_s": None}, "above 0"),
        ({"requested_s": float("nan")}, "above 0"),
    ]

    def raw(*parts: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "socket"))
            with contextlib.suppress(BrokenPipeError):  # the daemon can refuse and close before it has read everything
                for part in parts:
                    connection.sendall(part)
                connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as stream:
                return stream.readline()

    def talk(client: Client) -> None:
        for change, words in bad:
            with pytest.raises(ConfigError, match=words):
                client.ask("submit", **(good | change))
        with pytest.raises(ConfigError, match="unknown op 'cancel'"):
            client.ask("cancel")
        assert b"one line of JSON" in raw(b"hello\n")
        assert b"the key" in raw(b"[1]\n") and b"the key" in raw(b'{"op": 7}\n')
        assert b"one line of JSON" in raw(b'{"op": "sta')  # a client that ends in the middle of a request
        assert b"at most 65536 bytes" in raw(b"x" * 70_000, b"\n")
        assert client.ask("submit", **good) == client.ask("submit", **good) == {"ok": True, "id": "a"}
        with pytest.raises(ConfigError, match="another job has the id a"):
            client.ask("submit", **(good | {"slots": 2}))
        assert wait_for_all(client).keys() == {"a"}
        status = client.ask("status")
        assert (status["free"], status["waiting"], status["running"], status["ended"]) == (2, 0, 0, 1)

    served(tmp_path, journal, talk)


def test_a_job_that_cannot_be_started_ends_with_the_reason(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen = subprocess.Popen

    def no_process(words: list[str], **options: Any) -> Any:
        if "fork" in words:
            raise BlockingIOError("Resource temporarily unavailable")
        return popen(words, **options)

    monkeypatch.setattr(subprocess, "Popen", no_process)
    for each in (job("a", "/no/such/program"), job("b", "fork"), job("c", "sh", "-c", "exit 3")):
        journal.submitted(each)
    ended = served(tmp_path, journal, wait_for_all, slots=1)
    assert ended["a"]["exit_code"] == 127 and ended["c"]["exit_code"] == 3
    assert "not found" in (tmp_path / "jobs" / "a.out").read_text()
    assert ended["b"]["exit_code"] is None and "no process could be started" in ended["b"]["error"]


class Gate:
    """A pipe at which jobs wait. Each written byte releases one job."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.wait = f"read x < {path}"
        self._descriptor = os.open(path, os.O_RDWR)  # while this is open, no job reads the end of the pipe

    def release(self, jobs: int) -> None:
        os.write(self._descriptor, b"\n" * jobs)

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal") as journal:
        yield journal


def test_a_queue_has_an_end(tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    monkeypatch.setattr(daemon_module, "MAX_WAITING", 2)

    def talk(client: Client) -> dict[str, Any]:
        for name in ("a", "b", "c"):
            client.ask("submit", id=name, command=["sh", "-c", gate.wait], slots=1, requested_s=1.0)
        with pytest.raises(ConfigError, match="2 jobs wait"):
            client.ask("submit", id="d", command=["true"], slots=1, requested_s=1.0)
        gate.release(3)
        return wait_for_all(client)

    assert served(tmp_path, journal, talk, slots=1).keys() == {"a", "b", "c"}


def test_a_journal_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path, 100.0) as journal:
        journal.submitted(job("a", "echo", "ü", requested_s=5.0))
        journal.submitted(job("b"))
        journal.started(journal.jobs["a"])
        journal.ended(journal.jobs["a"], 7.5, 0)
        known, now_s = journal.jobs, journal.now_s()
    with path.open("ab") as file:
        file.write(b'{"event": "submit')  # this request was never answered
    with Journal(path, 100.0) as journal:
        assert journal.jobs == known and journal.jobs["a"].end_s == 7.5 and journal.now_s() >= now_s
        journal.submitted(job("c"))
    with Journal(path, 100.0) as journal:
        assert list(journal.jobs) == ["a", "b", "c"]
    with pytest.raises(ConfigError, match="has the speed 100, not 1"):
        Journal(path)


@pytest.mark.parametrize("line", ["{", "7", '{"event": "ended", "id": "x"}', '{"event": "lost"}', '{"event": "submitted"}'])
def test_a_damaged_journal_is_refused_with_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal"
    with Journal(path):
        pass
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigError, match="line 2, is damaged"):
        Journal(path)


def full(*_: object) -> None:
    raise OSError("No space left on device")


def test_a_job_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def talk(client: Client) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(ConfigError, match="make room on the disk"):
                client.ask("submit", id="a", command=["true"], slots=1, requested_s=1.0)
        client.ask("submit", id="b", command=["true"], slots=1, requested_s=1.0)
        wait_for_all(client)

    with Journal(tmp_path / "journal") as journal:
        served(tmp_path, journal, talk)
    with Journal(tmp_path / "journal") as journal:
        assert list(journal.jobs) == ["b"]


def test_a_daemon_that_cannot_write_ends_with_the_error(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Journal, "ended", full)
    journal.submitted(job("a"))
    daemon = Daemon(tmp_path, journal, make_scheduler("FCFS", tmp_path), 1)
    with pytest.raises(OSError, match="No space left"):
        asyncio.run(daemon.run(asyncio.Event()))


def test_one_folder_has_one_daemon(tmp_path: Path, call: Any) -> None:
    with Journal(tmp_path / "journal.jsonl"):
        code, _, err = call(daemon_module, tmp_path)
    assert code == 1 and "another daemon uses" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--slots", "0"], "at least one slot"),
        (["--slots", "1"], "needs 2 slots, and this machine has 1"),
        (["--speed", "0"], "positive number"),
        (["--scheduler", "policy"], "--learner"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, call: Any, flags: list[str], words: str) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.submitted(job("wide", slots=2))
    code, _, err = call(daemon_module, tmp_path, *flags)
    assert code == 1 and words in err


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    with Journal(folder / "journal") as journal, pytest.raises(ConfigError, match="too long for a socket"):
        Daemon(folder, journal, make_scheduler("FCFS", folder), 1)


@pytest.mark.parametrize("kill", [os.kill, os.killpg])
def test_a_job_whose_shell_was_killed_is_not_run_again(
    tmp_path: Path, journal: Journal, gate: Gate, kill: Callable[[int, int], None]
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    processes = Processes(tmp_path / "jobs")
    blocked = job("a", "sh", "-c", f"echo > {fifo}; {gate.wait}")
    assert processes.status(blocked).state is State.NEW
    shell = processes.start(blocked)
    fifo.read_text()  # the job runs now
    assert processes.status(blocked).state is State.RUNNING
    with pytest.raises(BlockingIOError):
        processes.start(blocked)
    kill(shell.pid, signal.SIGKILL)
    shell.wait()
    if kill is os.killpg:  # the rest of the group ends a moment later
        until(lambda: processes.status(blocked).state is not State.RUNNING, "the end of the group")

    def talk(client: Client) -> dict[str, Any]:
        assert client.ask("status")["running"] == (1 if kill is os.kill else 0)  # a job without its shell still has its slots
        gate.release(1)
        return wait_for_all(client)

    journal.submitted(blocked)
    ended = served(tmp_path, journal, talk)
    assert processes.status(blocked).state is State.KILLED
    assert ended["a"]["exit_code"] is None and "shell of the job was killed" in ended["a"]["error"]


def test_a_job_whose_start_was_noted_but_never_happened_is_started(tmp_path: Path, journal: Journal) -> None:
    journal.submitted(job("a"))
    journal.started(journal.jobs["a"])
    assert served(tmp_path, journal, wait_for_all)["a"]["exit_code"] == 0


def test_a_daemon_waits_also_for_jobs_that_it_starts_after_those_of_an_earlier_one(
    tmp_path: Path, journal: Journal, gate: Gate
) -> None:
    for each in (job("ended", "true"), job("first", "sh", "-c", gate.wait), job("second", "sh", "-c", gate.wait)):
        journal.submitted(each)
    journal.started(journal.jobs["ended"])
    Processes(tmp_path / "jobs").start(journal.jobs["ended"]).wait()

    def talk(client: Client) -> dict[str, Any]:
        assert client.ask("status")["ended"] == 1
        gate.release(2)
        return wait_for_all(client)

    ended = served(tmp_path, journal, talk, slots=1)
    assert {name: each["exit_code"] for name, each in ended.items()} == dict.fromkeys(ended, 0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "live_scheduler.daemon", str(tmp_path / "batch"), "--slots", "2"]
        process = subprocess.Popen(words, cwd=EXAMPLES, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline().startswith("ready")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_job_is_lost_or_run_twice_when_the_daemon_ends(
    tmp_path: Path, start: Callable[[], subprocess.Popen[str]], gate: Gate, number: signal.Signals
) -> None:
    log = tmp_path / "log"
    daemon = start()
    with Client(tmp_path / "batch") as client:
        for k in range(6):  # two run, and wait at the gate; four wait for a slot
            command = ["sh", "-c", f"echo {k} >> {log}; {gate.wait}"]
            client.ask("submit", id=f"job-{k}", command=command, slots=1, requested_s=1.0)
        assert client.ask("status")["running"] == 2
        daemon.send_signal(number)
        assert daemon.wait(10.0) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        gate.release(1)  # one of the two ends while no daemon is there
        start()
        gate.release(5)
        ended = wait_for_all(client)
    assert {name: each["exit_code"] for name, each in ended.items()} == {f"job-{k}": 0 for k in range(6)}
    assert sorted(log.read_text().split()) == list("012345")


def test_the_load_generator_plays_jobs_at_their_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = np.arange(4.0)
    jobs = Jobs(times, times + 1, times + 1, np.array([1, 2, 1, 1]))

    def talk(client: Client) -> None:
        counts: list[int] = []
        assert play(client, jobs, 1000.0, on_submitted=counts.append) == ["job-0", "job-1", "job-2", "job-3"]
        assert counts == [1, 2, 3, 4]
        assert all(each["exit_code"] == 0 for each in wait_for_all(client).values())

    with Journal(tmp_path / "journal", 1000.0) as journal:
        served(tmp_path, journal, talk)
        submits_s = [each.submit_s for each in journal.jobs.values()]
    assert np.all(np.diff(submits_s) >= 0.0)
    assert np.all(np.array(submits_s) >= times), "no job is submitted before its time; a busy machine can make it late"


def test_the_load_generator_is_a_command(tmp_path: Path, call: Any) -> None:
    def talk(client: Client) -> tuple[int, str, str]:
        code, out, err = call(client_module, tmp_path, "--jobs", 5, "--speed", "1e9")
        return code, out, err

    with Journal(tmp_path / "journal", 1e9) as journal:
        code, out, _ = served(tmp_path, journal, talk, slots=8)
    assert code == 0 and "5 of 5 jobs have ended with exit code 0" in out


def test_a_client_without_a_daemon_gives_up(tmp_path: Path) -> None:
    said = f"at {tmp_path}/socket for 0 s .No such file or directory.; .* python -m live_scheduler.daemon {tmp_path}"
    with Client(tmp_path, patience_s=0.0) as client, pytest.raises(client_module.DaemonUnavailable, match=said):
        client.ask("status")


def test_the_meter_adds_up_to_the_slowdown_of_the_waits() -> None:
    jobs = [job("a", requested_s=20.0, submit_s=0.0), job("b", requested_s=1.0, submit_s=5.0)]
    meter, waiting = SlowdownMeter(), list(jobs)
    parts = [meter.growth(waiting[:1], 4.0)]
    waiting.remove(jobs[0])
    meter.started(jobs[0], 6.0)
    parts.append(meter.growth(waiting, 10.0))
    meter.started(jobs[1], 30.0)
    parts.append(meter.growth([], 40.0))
    assert sum(parts) == pytest.approx(6.0 / 20.0 + ((25.0 + 1.0) / 10.0 - 1.0))
    assert all(part >= 0.0 for part in parts)


PARAMETERS = {
    "network": {"kind": "job_scorer", "hidden_sizes": [8], "value_units": 8},
    "normalise_observations": False,
    "steps_per_update": 16,
    "rollout_length": 8,
    "minibatch_size": 8,
}


def submit(client: Client, gate: Gate, name: str, count: int) -> dict[str, Any]:
    """Submit jobs that wait for the first one, and release it. Return all jobs that have ended."""
    client.ask("submit", id=name, command=["sh", "-c", gate.wait], slots=2, requested_s=1.0)
    for k in range(count):
        client.ask("submit", id=f"{name}-{k}", command=["true"], slots=1 + k % 2, requested_s=1.0 + 7 * k % 11)
    gate.release(1)
    return wait_for_all(client)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a learner with a policy of the daemon that is not trained so far."""
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    import job_scheduling.plugin  # registers the network

    assert job_scheduling.plugin.__all__
    run_dir = tmp_path_factory.mktemp("learner") / "run"
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=run_dir, torch_threads=1)) as learner:
        spaces = {"observation_space": OBSERVATION_SPACE, "action_space": ACTION_SPACE}
        with open_agent(
            learner, linger_ms=5_000, client_id=CLIENT, algorithm_name="PPO", algorithm_parameters=PARAMETERS, **spaces
        ):
            learner.save(timeout_s=30.0)
    return run_dir


def test_no_decision_waits_for_the_learner(tmp_path: Path, gate: Gate, run_dir: Path) -> None:
    address = f"ipc://{tmp_path}/learner"
    scheduler = make_scheduler("policy", tmp_path, learner=address, learn=True, timeout_s=0.0)
    assert isinstance(scheduler, PolicyScheduler)

    def talk(client: Client) -> None:
        submit(client, gate, "before", 8)
        status = client.ask("status")
        assert status["scheduler"]["version"] == -1 and status["decisions"] == 6  # the first two had no choice
        with Learner(LearnerConfig(bind=address, run_dir=run_dir, torch_threads=1)) as learner:
            scheduler.agent.wait_version(0, 60.0)
            submit(client, gate, "with", 40)
            learner.wait(client_id=CLIENT, version=1, timeout_s=60.0)
            verdicts = learner.status()["clients"][CLIENT]["verdicts"]
            assert verdicts["trained"] > 0 and verdicts["quarantined"] == verdicts["refused"] == 0
        version = scheduler.agent.version
        assert all(each["exit_code"] == 0 for each in submit(client, gate, "after", 8).values())
        status = client.ask("status")
        assert status["scheduler"]["version"] == version > 0 and status["scheduler"]["failures"] == 0
        assert status["ended"] == 59

    with closing(scheduler), Journal(tmp_path / "journal", 1000.0) as journal:
        served(tmp_path, journal, talk, scheduler)
    with closing(make_scheduler("policy", tmp_path, learner=address, timeout_s=0.0)) as again:
        assert again.status()["version"] > 0  # from its file, without the learner


def test_the_time_to_start_a_process_is_no_run_time() -> None:
    job = Job(id="a", command=("true",), slots=1, requested_s=60.0, submit_s=100.0, start_s=130.0, end_s=190.0)
    assert bounded_slowdown(job, 20.0) == (30.0 + 20.0) / 20.0
    assert bounded_slowdown(job, 2.0) == (30.0 + 2.0) / 10.0
    with pytest.raises(ValueError, match="has not run"):
        bounded_slowdown(Job(id="b", command=("true",), slots=1, requested_s=1.0, submit_s=0.0), 1.0)


def test_schedulers_are_compared_and_a_killed_learner_stops_nothing(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    figures = tmp_path / "figures.json"
    common = ("--schedulers", "policy", "--seeds", 1, "--jobs", 12, "--speed", 2e5, "--json", figures)
    kill, exit_codes = BaseProcess.kill, []

    def note(process: BaseProcess) -> None:
        kill(process)
        process.join()
        exit_codes.append(process.exitcode)

    monkeypatch.setattr(BaseProcess, "kill", note)
    code, out, _ = call(compare, run_dir, "--kill-learner", *common)
    assert code == 0 and "| policy, learner killed |" in out
    assert exit_codes == [-signal.SIGKILL]
    with_learner, killed = json.loads(figures.read_text())
    assert killed["name"] == "policy, learner killed"
    for result in (with_learner, killed):
        assert len(result["slowdowns"]) == 12 and min(result["slowdowns"]) >= 1.0
        assert result["state"]["version"] >= 0 and result["state"]["failures"] == 0


def test_a_comparison_without_a_training_says_so(tmp_path: Path, call: Any) -> None:
    code, _, err = call(compare, tmp_path / "none")
    assert code == 1 and "none is not the run directory of a training" in err


def test_a_classic_scheduler_decides_when_the_actor_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ObservationError("the observation has NaN")

    scheduler = make_scheduler("policy", tmp_path, learner=f"ipc://{tmp_path}/learner", timeout_s=0.0)
    assert isinstance(scheduler, PolicyScheduler)
    monkeypatch.setattr(scheduler.agent, "request_for_action", fail)
    with closing(scheduler), Journal(tmp_path / "journal") as journal:
        for name, requested_s in zip("abc", (9.0, 2.0, 3.0), strict=True):
            journal.submitted(job(name, requested_s=requested_s))
        ended = served(tmp_path, journal, wait_for_all, scheduler, slots=1)
        assert scheduler.status()["failures"] == 2
    assert "".join(sorted(ended, key=lambda name: ended[name]["start_s"])) == "bca"


def test_an_unknown_scheduler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown scheduler 'LIFO'"):
        make_scheduler("LIFO", tmp_path)
