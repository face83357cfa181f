"""The figures of the processes and the machine: of the learner, its worker processes, and actors that report theirs."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.children import PYTHONPATH
from kit import until

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner import Learner
from rl4sys_zmq.learner.run.log_files import read_log

from .conftest import Lab
from .engine_lab import PATIENCE_S, worker_options

pytest.importorskip("psutil")

ACTOR = """
import sys
from kit import open_agent, play
with open_agent(sys.argv[1], "lab", actor_id="reporter", algorithm_name="IMPORTABLE", report_system=True) as agent:
    play(agent, 20)
    agent.flush(60.0)
    print(agent.stats()["form"], flush=True)
    sys.stdin.read()
"""


def system_of(learner: Learner, role: str) -> list[dict[str, Any]]:
    return [record for record in learner.status()["system"] if record["role"] == role]


def test_the_learner_its_workers_and_actors_that_allow_it_have_figures(ipc_lab: Lab, tmp_path: Path) -> None:
    learner = ipc_lab.learner(**worker_options(tmp_path), system_every_s=0.05)
    program, env = [sys.executable, "-c", ACTOR, learner.address], {**os.environ, "PYTHONPATH": PYTHONPATH}
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as actor:
        assert actor.stdin is not None and actor.stdout is not None
        assert actor.stdout.readline() == "pure: the compiled form has no support for report_system\n"
        (reported,) = until(lambda: system_of(learner, "actor"), "the actor's report")
        (worker,) = until(lambda: system_of(learner, "worker"), "the worker's figures")
        (own,) = until(lambda: system_of(learner, "learner"), "the learner's figures")
        actor.stdin.close()
    assert (own["pid"], own["client_id"], own["name"]) == (os.getpid(), "", "")
    assert (worker["pid"], worker["client_id"]) == (learner.status()["clients"]["lab"]["worker"]["pid"], "lab")
    assert (reported["pid"], reported["client_id"], reported["name"]) == (actor.pid, "lab", "reporter")
    for record in (own, worker, reported):
        assert record["rss_bytes"] > 1 << 20 and record["threads"] >= 1 and record["cpu"] >= 0
        assert 0 < record["host_memory_free_bytes"] < record["host_memory_bytes"] and 0 <= record["host_cpu"] <= 1
        assert record["disk_free_bytes"] > 0 and record["host"]
    learner.forget("lab", timeout_s=PATIENCE_S)
    until(lambda: not system_of(learner, "worker"), "a worker that has ended to have no figures")
    learner.raise_if_dead()
    learner.close()
    logged = [record for record in read_log(tmp_path / "run") if record["event"] == "system"]
    assert {record["role"] for record in logged} == {"learner", "worker", "actor"}
    assert any({**record, "t": 0} == {**reported, "t": 0} for record in logged)


def test_a_learner_without_psutil_says_so_once(
    inproc_lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with caplog.at_level(logging.WARNING):
        learner = inproc_lab.learner(system_every_s=0.01)
        agent = inproc_lab.agent(learner)
        inproc_lab.train(agent, 20, 1)
        until(lambda: "psutil" in caplog.text, "the line in the log")
    assert caplog.text.count("records no figures of its machine") == 1 and learner.status()["system"] == []
    with pytest.raises(ConfigError, match="pip install psutil"):
        inproc_lab.agent(learner, report_system=True)


def test_a_learner_can_do_without_figures(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner(system_every_s=0)
    inproc_lab.train(inproc_lab.agent(learner), 20, 1)
    assert learner.status()["system"] == []
