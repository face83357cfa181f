"""Signals under load, ends without a close, forks and threads: no hang, no abort, and the intended exit code."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kit import play, until

from rl4sys_zmq.errors import Closed
from rl4sys_zmq.ops.requests import request_status

from .conftest import PATIENCE_S, SOAK, Child, Report, Spawn, StartLearner, Tier, agent_options, join

LEARNER_S = 1.5
"""The default of `LearnerConfig.shutdown_timeout_s`."""

ACTOR_S = 1.85
"""The time limit of `rl4sys-actor` after a signal."""

GRACE_S = 0.5
EXIT_S = 2.5
"""The time limit for an agent's close and the interpreter's exit."""


@contextmanager
def load(address: str, actors: int = 2) -> Iterator[None]:
    """Run agents in this process that submit as fast as they can."""
    agents = [join(address, queue_items=64) for _ in range(actors)]
    failed: list[BaseException] = []

    def submit(agent: Any) -> None:
        try:
            while True:
                play(agent, 16)
        except Closed:
            pass
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=submit, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for agent in agents:
            agent.close(0.0)
        for thread in threads:
            thread.join(PATIENCE_S)
    assert not failed, failed


def serve(spawn: Spawn, **fake: Any) -> tuple[Child, str]:
    """Start `rl4sys-learner serve`. Return the process and its address."""
    given = {"fake": {"steps_per_update": 16, "rollout_length": 16, **fake}, "command": "learner"}
    child = spawn("command", {**given, "arguments": ["serve", "--port", "0"]})
    return child, child.find(r"learner at (\S+) ")


def acting(spawn: Spawn, learner: StartLearner, *more: str) -> tuple[Child, Child]:
    """Start a learner and `rl4sys-actor run`. Return their processes when the third version is there."""
    pytest.importorskip("gymnasium")
    process, address = learner(steps_per_update=64, rollout_length=8)
    arguments = ["run", "--env", "CartPole-v1", "--learner", address, "--client-id", "lab", "--algorithm", "FAKE"]
    child = spawn("command", {"command": "actor", "arguments": [*arguments, *more]})
    child.find("acting with (version)")
    process.ask("wait", 3)
    return process, child


def terminate(child: Child, signals: int) -> float:
    """Send SIGTERM, once or until the process ends, and return the seconds that this takes."""
    began = time.monotonic()
    child.signal(signal.SIGTERM)
    pause = threading.Event()
    while signals > 1 and child.process.poll() is None:
        pause.wait(0.002)
        child.signal(signal.SIGTERM)
    child.end()
    return time.monotonic() - began


def lab(address: str) -> dict[str, Any]:
    """Return the learner's status of the client, or a default if the client does not exist."""
    client: dict[str, Any] = request_status(address, PATIENCE_S)["clients"].get("lab", {"version": -1, "pending": 0})
    return client


def observed(process: Child, segments: int) -> dict[str, int]:
    until(lambda: process.ask("keys")["observed"] >= segments, "the last segment")
    found: dict[str, int] = process.ask("keys")
    return found


@pytest.mark.parametrize(("update", "signals"), [("quick", 1), ("endless", 2), *([("endless", 1)] if SOAK else [])])
def test_sigterm_ends_a_learner_under_load(update: str, signals: int, tier: Tier, report: Report, spawn: Spawn) -> None:
    child, address = serve(spawn, slow_s=0.0 if update == "quick" else 600.0)
    with load(address):
        if update == "quick":
            until(lambda: lab(address)["version"] >= 3, "the third version")
        else:
            until(lambda: lab(address)["pending"] >= 1, "an update that does not end")
        took = terminate(child, signals)
    report(update=update, signals=signals, took_s=round(took, 3))
    if tier.long:
        assert took < GRACE_S + (LEARNER_S if signals == 1 else 0)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(("stopped", "signals"), [(False, 1), (True, 1), *([(True, 2)] if SOAK else [])])
def test_sigterm_ends_an_actor_under_load(
    stopped: bool, signals: int, tier: Tier, report: Report, spawn: Spawn, learner: StartLearner
) -> None:
    process, child = acting(spawn, learner, "--num-envs", "4")
    if stopped:
        process.signal(signal.SIGSTOP)
    took = terminate(child, signals)
    report(stopped=stopped, signals=signals, took_s=round(took, 3))
    process.signal(signal.SIGCONT)
    if tier.long:
        assert took < GRACE_S + (ACTOR_S if signals == 1 else 0)


def test_a_second_sigterm_while_a_command_leaves(spawn: Spawn, learner: StartLearner) -> None:
    _, child = acting(spawn, learner)
    child.signal(signal.SIGTERM)
    until(lambda: not handles_sigterm(child), "the end of its handlers, or its own", every_s=0.0)
    child.signal(signal.SIGTERM)
    child.end()


def handles_sigterm(child: Child) -> bool:
    if child.process.poll() is not None:
        return False
    caught = Path(f"/proc/{child.pid}/status").read_text().partition("SigCgt:")[2].split()
    return bool(caught) and bool(int(caught[0], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(("ending", "code"), [("nothing", 0), ("exit", 3), ("raise", 1)])
@pytest.mark.parametrize("learner_is", ["stopped", "there", "killed"] if SOAK else ["stopped"])
def test_a_host_ends_without_a_close(
    ending: str, code: int, learner_is: str, tier: Tier, report: Report, spawn: Spawn, learner: StartLearner
) -> None:
    process, address = learner(steps_per_update=64, rollout_length=1)
    guest = spawn("guest", {"agent": agent_options(address), "ending": ending})
    guest.hear()
    if learner_is == "stopped":
        process.signal(signal.SIGSTOP)
    elif learner_is == "killed":
        process.kill()
    assert guest.ask("in_background", 8)
    took = guest.end(code, expect="made to raise" if ending == "raise" else "")
    report(ending=ending, learner=learner_is, took_s=round(took, 3))
    if tier.long:
        assert took < EXIT_S
    if learner_is == "there":
        assert process.ask("status")["clients"]["lab"]["state"] == "running"


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(("ending", "code"), [("nothing", 0), ("exit", 3), ("raise", 1)])
def test_an_agent_that_was_not_closed_sends_its_finished_segments(
    ending: str, code: int, spawn: Spawn, learner: StartLearner
) -> None:
    process, address = learner(steps_per_update=64, rollout_length=1)
    options = agent_options(address, send_frequency=8192, linger_ms=3_600_000)
    guest = spawn("guest", {"agent": options, "ending": ending})
    guest.hear()
    guest.ask("play", 50)
    guest.end(code, expect="made to raise" if ending == "raise" else "")
    assert process.ask("status")["clients"]["lab"]["accepted"] == 50


@pytest.mark.usefixtures("form")
def test_an_agent_that_cannot_send_says_at_the_exit_what_is_lost(spawn: Spawn, learner: StartLearner) -> None:
    process, address = learner(steps_per_update=64, rollout_length=1)
    guest = spawn("guest", {"agent": agent_options(address, linger_ms=3_600_000), "ending": "nothing"})
    guest.hear()
    process.signal(signal.SIGSTOP)
    guest.ask("play", 50)
    guest.end(0, expect="was not closed; the process exits with 50 segments undelivered")
    process.signal(signal.SIGCONT)


def test_a_fork_while_an_agent_runs(tier: Tier, report: Report, spawn: Spawn, learner: StartLearner, form: str) -> None:
    """A child creates its own agent, or continues with its parent's, which becomes another actor there."""
    forks = tier.size(1, 50)
    process, address = learner(steps_per_update=4, rollout_length=1)
    guest = spawn("guest", {"agent": agent_options(address), "ending": "close"})
    parent = guest.hear()["actor_id"]
    slowest = 0.0
    for number in range(1, forks + 1):
        guest.ask("play", 10)  # segments in flight at the fork belong to the parent
        own = guest.ask("fork_with_its_own", 5)
        assert own["code"] == 0, guest.errors
        assert own["said"]["actor_id"] not in (parent, "")
        assert own["said"]["form"].startswith(form)
        assert own["said"]["accepted"] == own["said"]["submitted"] == 5
        guest.ask("play", 10)
        inherited = guest.ask("fork_with_inherited", 5)
        assert inherited["code"] == 0, guest.errors
        assert inherited["said"]["actor_id"] not in (parent, own["said"]["actor_id"], "")
        assert inherited["said"]["accepted"] == 5, inherited
        assert inherited["said"]["form"].startswith(form)
        slowest = max(slowest, inherited["said"]["close_s"])
        guest.ask("play", 10)
        guest.ask("flush")
        stats = guest.ask("stats")
        assert (stats["submitted"], stats["accepted"]) == (30 * number, 30 * number)
        assert stats["counters"].get("io_restarts", 0) == 0
    expected = forks * (30 + 5 + 5)
    assert observed(process, expected) == {"observed": expected, "different": expected}
    report(forks=2 * forks, slowest_close_s=round(slowest, 3), errors=guest.errors)
    if tier.long:
        assert slowest < EXIT_S


def test_a_client_is_founded_while_torch_loads(spawn: Spawn) -> None:
    child = spawn("slow_torch")
    found = child.hear()
    assert found == {"joined": True, "error": ""}
