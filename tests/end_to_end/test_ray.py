"""The engine ray with real clusters: lost nodes, stopped workers, the end of a driver and of a learner, missing resources."""

import importlib.util
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.children import PYTHONPATH, is_there
from harness.ray_cluster import RayCluster
from kit import until

from rl4sys_zmq.errors import ConfigError, RL4SysError, TransportError
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.ops.report import report_lines
from rl4sys_zmq.ops.requests import request_status

from .conftest import Lab, play
from .engine_lab import PATIENCE_S, PLUGIN, balanced, client_of, trained, worker_options

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'rl4sys-zmq[ray]'"),
]

SOAK = bool(os.environ.get("RL4SYS_SOAK"))
RESOURCES = {"cpus": 0.25, "custom": {"edge": 1}}
Options = Callable[..., dict[str, Any]]


@pytest.fixture
def lab(ipc_lab: Lab) -> Lab:
    return ipc_lab


@pytest.fixture
def options(tmp_path: Path) -> Options:
    def make(**given: Any) -> dict[str, Any]:
        return {**worker_options(tmp_path, "ray"), **given}

    return make


def worker_other_than(learner: Learner, agent: Any, pid: int) -> dict[str, Any]:
    """Return the client's status, once a process other than `pid` trains it and the agent has its policy."""

    def ready() -> dict[str, Any] | None:
        client = client_of(learner)
        found = client["state"] == "running" and client["worker"].get("pid") not in (None, pid)
        return client if found and agent.generation == client["generation"] else None

    return until(ready, "another worker")


def child_of(pid: int, name: str) -> int:
    def find() -> int:
        for each in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(each.read_text().rpartition(")")[2].split()[1])
                if parent == pid and name in (each.parent / "cmdline").read_text():
                    return int(each.parent.name)
            except (FileNotFoundError, ProcessLookupError):
                continue
        return 0

    return until(find, f"{name} runs")


def test_a_cluster_loses_nodes_workers_drivers_and_learners(
    lab: Lab, options: Options, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """One test, because a cluster takes seconds and a gigabyte. Each part continues where the part before it ended."""
    caplog.set_level(logging.INFO)
    with RayCluster(2, edge=2) as cluster:
        given = options(ray_address=cluster.address, resources=RESOURCES)

        # Resources that no node has: refused at once, with the resources that the cluster has.
        clients = {"lab": {"resources": {"custom": {"edge": 3}}}}
        with pytest.raises(ConfigError, match=r"clients.lab.resources: no node .* \{CPU: 1, edge: 3\}; there is .*edge: 2"):
            Learner(LearnerConfig(**{**given, "clients": clients})).start()

        learner = lab.learner(**given)
        agent = lab.agent(learner, algorithm_name="IMPORTABLE")
        play(agent, 6)
        first = trained(learner, 6)
        assert first["worker"]["engine"] == "ray" and first["worker"]["node"] in cluster.nodes  # not on the head
        assert f"driver process {child_of(os.getpid(), 'ray_driver')} on node" in caplog.text
        assert f"client lab, generation {first['generation']}, is trained by process {first['worker']['pid']}" in caplog.text

        # A node is lost. Its worker is replaced on the other node, and continues from the gateway's checkpoint.
        learner.save(timeout_s=PATIENCE_S)
        cluster.lose(first["worker"]["node"])
        second = worker_other_than(learner, agent, first["worker"]["pid"])
        assert second["worker"]["node"] in set(cluster.nodes) - {first["worker"]["node"]}
        assert second["generation"] > first["generation"] and second["restarts"] == 1
        play(agent, 6)
        balanced(trained(learner, 12), 12)
        text = "\n".join(report_lines(learner.status(), time.time()))
        assert re.search(rf"engine ray, process {second['worker']['pid']} on \S+, node {second['worker']['node'][:8]}", text)

        # A stopped worker continues after its replacement. It changes nothing, and ends.
        stopped = second["worker"]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        play(agent, 4)
        learner.restart("lab")
        third = worker_other_than(learner, agent, stopped)
        if is_there(stopped):
            os.kill(stopped, signal.SIGCONT)
        until(lambda: not is_there(stopped), "the stopped worker ends")
        play(agent, 2)
        balanced(trained(learner, 18), 18)

        # The driver is killed, and its worker ends too. Another driver connects.
        learner.save(timeout_s=PATIENCE_S)
        driver = child_of(os.getpid(), "ray_driver")
        os.kill(driver, signal.SIGKILL)
        fourth = worker_other_than(learner, agent, third["worker"]["pid"])
        assert child_of(os.getpid(), "ray_driver") != driver and "SIGKILL" in fourth["worker"]["last_crash"]
        until(lambda: not is_there(third["worker"]["pid"]), "Ray ends the worker of the driver")
        play(agent, 2)
        balanced(trained(learner, 20), 20)

        # An actor of a client without an entry in the configuration gets the refusal itself.
        with pytest.raises(RL4SysError, match="unknown algorithm"):
            lab.agent(learner, "other", algorithm_name="UNKNOWN_TO_ALL")

        agent.close()
        learner.close()
        assert not is_there(fourth["worker"]["pid"])
        found = CheckpointStore(given["run_dir"] / "checkpoints" / "lab").load()
        assert found is not None and found[0].verdicts["trained"] == 20
        killed_learner(lab, {**given, "bind": f"ipc://{tmp_path}/k"}, cluster)


def killed_learner(lab: Lab, given: dict[str, Any], cluster: RayCluster) -> None:
    """The learner's process is killed while its worker runs. The worker ends by itself, and the next learner continues."""
    arguments = ["--bind", given["bind"], "--run-dir", str(given["run_dir"]), "--engine", "ray", "--plugin", PLUGIN]
    with serving(*arguments, "--ray-address", cluster.address) as serve:
        agent = lab.agent(given["bind"], algorithm_name="IMPORTABLE", connect_timeout_s=PATIENCE_S)
        play(agent, 4)
        agent.flush(PATIENCE_S)
        until(lambda: request_status(given["bind"], PATIENCE_S)["clients"]["lab"]["verdicts"]["trained"] == 24, "training")
        pid = request_status(given["bind"], PATIENCE_S)["clients"]["lab"]["worker"]["pid"]
        serve.kill()
        until(lambda: not is_there(pid), "the worker has ended")
    learner = lab.learner(**given)
    balanced(trained(learner, 24), 24)
    agent.close()
    learner.close()


class serving:
    """A ``rl4sys-learner serve`` process. Its output goes to a pipe."""

    def __init__(self, *arguments: str, cwd: Path | None = None, **environment: str) -> None:
        code = "import sys\nfrom rl4sys_zmq.cli import learner, serve\nserve.warm_up = lambda name: None\nlearner.main()"
        self._command = [sys.executable, "-c", code, "serve", *arguments]
        self._cwd, self._env = cwd, {**os.environ, "PYTHONPATH": PYTHONPATH, **environment}

    def __enter__(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            self._command, cwd=self._cwd, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize(
    "signum",
    [
        signal.SIGINT,
        pytest.param(signal.SIGKILL, marks=pytest.mark.skipif(not SOAK, reason="the long tier alone: RL4SYS_SOAK=1")),
    ],
)
def test_a_local_ray_ends_with_its_learner(lab: Lab, tmp_path: Path, signum: signal.Signals) -> None:
    """The learner starts Ray. No process of Ray is left after the learner, and a plug-in is found in the working directory."""
    (tmp_path / "lonely_plugin.py").write_text(f"import {PLUGIN}\n")
    address = f"ipc://{tmp_path}/l"
    arguments = ["--bind", address, "--run-dir", "run", "--engine", "ray", "--plugin", "lonely_plugin"]
    with serving(*arguments, cwd=tmp_path) as serve:
        agent = lab.agent(address, algorithm_name="IMPORTABLE", connect_timeout_s=PATIENCE_S)
        play(agent, 4)
        agent.flush(PATIENCE_S)
        until(lambda: request_status(address, PATIENCE_S)["clients"]["lab"]["verdicts"]["trained"] == 4, "training")
        driver = child_of(serve.pid, "ray_driver")
        ours = [request_status(address, PATIENCE_S)["clients"]["lab"]["worker"]["pid"], driver, *children(driver)]
        agent.close()
        serve.send_signal(signum)
        said, _ = serve.communicate(timeout=PATIENCE_S)
        assert serve.returncode == (130 if signum == signal.SIGINT else -signum)
        assert "Traceback" not in said and "raylet" not in said
    until(lambda: not any(map(is_there, ours)), "Ray has ended")
    assert len(ours) >= 4  # the worker, the driver, the raylet, and the head
    if signum == signal.SIGINT:
        found = CheckpointStore(tmp_path / "run" / "checkpoints" / "lab").load()
        assert found is not None and found[0].verdicts["trained"] == 4


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:1", "the Ray cluster at 127.0.0.1:1 cannot be used: ConnectionRefusedError"),
        ("auto", "the Ray cluster at auto cannot be used: ConnectionError"),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_named(
    options: Options, address: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # For "auto", Ray looks in this folder and at all processes. The clusters of other tests must not be found.
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)
    with pytest.raises(TransportError, match=re.escape(reason)), Learner(LearnerConfig(**options(ray_address=address))):
        pytest.fail("it has started")
