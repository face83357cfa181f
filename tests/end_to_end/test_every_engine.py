"""Properties of each engine with a process per client, on the learner's machine and on another one."""

import logging
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from harness.children import PYTHONPATH, is_there
from harness.engine_plugin import DEADLY, TALKATIVE
from harness.remote_engine import ELSEWHERE
from kit import until

from rl4sys_zmq.errors import ClientFailed
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.ops.report import report_lines
from rl4sys_zmq.ops.requests import request_status

from .conftest import Lab, play
from .engine_lab import PATIENCE_S, balanced, client_of, trained, worker_options

pytestmark = pytest.mark.timeout(240)

PLUGINS: dict[str, tuple[str, ...]] = {"process": (), ELSEWHERE: ("harness.remote_engine",)}


@pytest.fixture(params=list(PLUGINS))
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return worker_options(tmp_path, request.param, *PLUGINS[request.param])


def test_a_killed_worker_is_replaced_and_its_successor_has_the_checkpoint(ipc_lab: Lab, options: dict[str, Any]) -> None:
    learner = ipc_lab.learner(**options)
    agent = ipc_lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 6)
    before = trained(learner, 6)
    assert before["worker"]["engine"] == options["engine"] and is_there(before["worker"]["pid"])
    learner.save(timeout_s=PATIENCE_S)
    os.kill(before["worker"]["pid"], signal.SIGKILL)
    until(lambda: client_of(learner)["restarts"] == 1 and client_of(learner)["state"] == "running", "another worker")
    play(agent, 6)
    after = trained(learner, 12)
    balanced(after, 12)
    assert after["generation"] > before["generation"] and after["version"] > before["version"]
    assert after["checkpoint"]["number"] >= 1 and "worker_crashed" in after["alarms"]
    assert "SIGKILL" in after["worker"]["last_crash"] and after["worker"]["crashes"] == 1
    text = "\n".join(report_lines(learner.status(), time.time()))
    assert f"engine {options['engine']}, process {after['worker']['pid']}" in text and "1 restarts" in text
    assert "!! 1 crashes" in text
    agent.close()
    learner.close()
    assert not is_there(after["worker"]["pid"])
    found = CheckpointStore(options["run_dir"] / "checkpoints" / "lab").load()
    assert found is not None and found[0].verdicts["trained"] == 12


def test_an_error_of_the_algorithm_fails_its_client_with_the_text(ipc_lab: Lab, options: dict[str, Any]) -> None:
    learner = ipc_lab.learner(**options)
    agent = ipc_lab.agent(learner, algorithm_name="IMPORTABLE", algorithm_parameters={"fail_after_updates": 0})
    with pytest.raises(ClientFailed, match="the fake algorithm fails"):
        while True:
            play(agent, 1)
            learner.wait(client_id="lab", version=1, timeout_s=0.2) if client_of(learner)["state"] == "failed" else None
    assert client_of(learner)["restarts"] == 0


def test_an_abort_in_one_client_costs_the_others_nothing(ipc_lab: Lab, options: dict[str, Any]) -> None:
    """The record of the segment in training survives the worker, which aborts inside `observe`."""
    clients = {"well": {"engine": "thread"}, "sick": {"engine": options["engine"]}}
    learner = ipc_lab.learner(**{**options, "engine": "thread", "clients": clients})
    well = ipc_lab.agent(learner, "well", algorithm_name="IMPORTABLE")
    sick = ipc_lab.agent(learner, "sick", algorithm_name="MORTAL_OFF", queue_items=1000)
    play(sick, 3)
    trained(learner, 3, "sick")
    play(sick, 1, DEADLY)
    play(sick, 2)
    played = 0

    def quarantined() -> bool:
        nonlocal played
        played += 1
        play(well, 1)
        client = client_of(learner, "sick")
        return bool(client["state"] == "running" and client["verdicts"]["quarantined"] == 1)

    until(quarantined, "the deadly segment is quarantined")
    found = trained(learner, 5, "sick")
    assert found["verdicts"]["trained"] == 5 and found["verdicts"]["quarantined"] == 1 and found["rolled_back"] == 0
    assert "SIGABRT" in found["worker"]["last_crash"] and found["restarts"] == found["worker"]["crashes"] >= 3
    play(well, played % 2)  # a full batch
    other = trained(learner, played, "well")
    balanced(other, other["accepted"])
    assert other["worker"] == {"engine": "thread", "devices": ["cpu"]} and other["restarts"] == 0 and not other["alarms"]


def test_the_log_of_a_worker_reaches_the_learners(
    ipc_lab: Lab, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    learner = ipc_lab.learner(**options)
    agent = ipc_lab.agent(learner, algorithm_name="MORTAL_OFF")
    play(agent, 1, TALKATIVE)
    client = trained(learner, 1)
    pid = client["worker"]["pid"]
    name = f"process {pid}" if options["engine"] == "process" else f"worker of client lab on {platform.node()} (pid {pid})"
    until(lambda: f"{name}: a talkative segment" in caplog.messages, "the line")
    if options["engine"] == "process":
        assert any(re.fullmatch(f"{name}: \U0001f600+", line) for line in caplog.messages), "a long line is cut"
    assert any("a name that is no name" in line for line in caplog.messages)
    assert all((record.name + record.getMessage()).encode() for record in caplog.records), "other handlers can encode it"
    assert client["restarts"] == 0 and client["verdicts"]["quarantined"] == 0, "a wrong call of a logger does no harm"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_the_workers_end_with_their_learner_and_the_next_one_resumes(
    ipc_lab: Lab, options: dict[str, Any], signum: signal.Signals
) -> None:
    """After SIGTERM the workers save a last checkpoint and end. After SIGKILL of the learner they end by themselves."""
    arguments = ["serve", "--bind", options["bind"], "--run-dir", str(options["run_dir"]), "--engine", options["engine"]]
    code = "import sys\nfrom rl4sys_zmq.cli import learner, serve\nserve.warm_up = lambda name: None\nlearner.main()"
    plugins = [text for name in options["plugins"] for text in ("--plugin", name)]
    command = [sys.executable, "-c", code, *arguments, *plugins]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": PYTHONPATH}, stdout=subprocess.DEVNULL) as serve:
        try:
            agent = ipc_lab.agent(options["bind"], algorithm_name="IMPORTABLE", connect_timeout_s=PATIENCE_S)
            play(agent, 8)
            agent.flush(PATIENCE_S)
            until(lambda: request_status(options["bind"], PATIENCE_S)["clients"]["lab"]["verdicts"]["trained"] == 8, "training")
            pid = request_status(options["bind"], PATIENCE_S)["clients"]["lab"]["worker"]["pid"]
            agent.close()
            serve.send_signal(signum)
            assert serve.wait(PATIENCE_S) == (0 if signum == signal.SIGTERM else -signum)
            until(lambda: not is_there(pid), "the worker has ended")
        finally:
            serve.kill()
    if signum == signal.SIGTERM:
        found = CheckpointStore(options["run_dir"] / "checkpoints" / "lab").load()
        assert found is not None and found[0].verdicts["trained"] == 8
    learner = ipc_lab.learner(**options)
    balanced(trained(learner, 8), 8)
