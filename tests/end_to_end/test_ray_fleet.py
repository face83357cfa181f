"""A fleet on the nodes of a Ray cluster, started by the command line. The nodes are processes of this machine."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.children import PYTHONPATH, is_there
from harness.ray_cluster import RayCluster
from kit import until

from rl4sys_zmq.ops.requests import request_status

from .engine_lab import PATIENCE_S

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'rl4sys-zmq[ray]'"),
]


@contextmanager
def command(folder: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command as a process. Its stdout and stderr go to files."""
    with (folder / f"{name}.out").open("w") as out, (folder / f"{name}.err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            stdout=out,
            stderr=err,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def actors(client: str) -> dict[int, int]:
    found = {}
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_text().split("\0")
            if "rl4sys_zmq.cli.actor" in words and client in words and "--num-actors" not in words:
                found[int(each.parent.name)] = int((each.parent / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def last_status(folder: Path, name: str) -> dict[str, Any]:
    lines = (folder / f"{name}.out").read_text().rpartition("\n")[0].splitlines()
    status: dict[str, Any] = json.loads(lines[-1]) if lines else {"joined": 0, "restarts": 0, "episodes": 0}
    return status


def fleet_of(address: str, cluster: str, client: str, count: int) -> list[str]:
    options = ["--learner", address, "--client-id", client, "--algorithm", "PPO", "--num-envs", "1", "--connect-timeout", "60"]
    fleet = ["--engine", "ray", "--ray-address", cluster, "--num-actors", str(count), "--json", "--grace", "30"]
    return ["rl4sys_zmq.cli.actor", "run", "--env", "CartPole-v1", *options, *fleet]


def test_a_fleet_on_a_cluster_loses_an_actor_and_a_node_and_ends(tmp_path: Path) -> None:
    """One test, because a cluster takes seconds and a gigabyte. Each part continues where the part before it ended."""
    for module in ("torch", "tensorboard", "rich", "gymnasium"):
        pytest.importorskip(module)
    luna = f"luna-{os.getpid()}"
    address = f"ipc://{tmp_path}/l"
    with (
        RayCluster(2, edge=1, cpus=2) as cluster,
        command(tmp_path, "learner", "rl4sys_zmq.cli.learner", "serve", "--bind", address),
    ):
        with command(tmp_path, "fleet", *fleet_of(address, cluster.address, luna, 2), "--actor-id", "pool", "-v") as fleet:

            def ready(restarts: int) -> bool:
                status = last_status(tmp_path, "fleet")
                assert fleet.poll() is None, (tmp_path / "fleet.err").read_text()
                return bool(status["joined"] == 2 and status["restarts"] >= restarts and status["episodes"] > 0)

            def said() -> str:
                return (tmp_path / "fleet.err").read_text()

            until(lambda: ready(0), "two actors have joined")
            first = actors(luna)
            assert len(first) == 2 and len(set(first.values())) == 2  # each in its own Ray actor
            assert "connected to the Ray cluster at" in said()

            # A process is killed and replaced.
            victim = min(first)
            os.kill(victim, signal.SIGKILL)
            until(lambda: ready(1), "the killed actor is replaced")
            assert "ended with exit code -9; it starts again in 0.5 s" in said() and victim not in actors(luna)

            # A node is lost, and its actors start on other nodes.
            places = dict(re.findall(r"actor (\d): it runs on \S+ node (\w+) of", said()))
            lost = next(node for node in places.values() if node in cluster.nodes)
            cluster.lose(lost)
            until(lambda: ready(2), "the actors of the lost node are replaced")
            after = dict(re.findall(r"actor (\d): it runs on \S+ node (\w+) of", said()))
            assert lost not in after.values()
            # What Ray reports first: the lost node, or the end of the process on it.
            assert "is lost: " in said() or said().count("ended with exit code -9") == 2

            # Ctrl-C drains all actors, and no process is left.
            fleet.send_signal(signal.SIGINT)
            assert fleet.wait(PATIENCE_S) == 130, said()
            assert "draining 2 actors, at most 30 s" in said() and "Traceback" not in said()
            until(lambda: not actors(luna), "all actors have ended")
            found = request_status(address, PATIENCE_S)["clients"][luna]["actors"]
            assert {"pool-0", "pool-1"} <= set(found)

        # More actors than CPUs: reported at once. When a fleet is killed, its actors end too.
        with command(tmp_path, "large", *fleet_of(address, cluster.address, luna, 5)) as large:
            until(lambda: "5 actors need a CPU each, and the Ray cluster has" in (tmp_path / "large.err").read_text(), "said")
            until(lambda: last_status(tmp_path, "large")["joined"] > 1, "some have joined")
            running = actors(luna)
            large.kill()
            until(lambda: not any(map(is_there, running)), "the actors end with their fleet")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--engine", "ray", "--ray-address", "127.0.0.1:1"], "the Ray cluster at 127.0.0.1:1 cannot be used: ConnectionRefused"),
        (["--engine", "ray", "--ray-address", "ray://x:1"], "ray:// is not supported"),
        (["--ray-address", "auto"], "--ray-address applies to --engine ray"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_named(tmp_path: Path, words: list[str], reason: str) -> None:
    run = ["rl4sys_zmq.cli.actor", "run", "--env", "CartPole-v1", "--client-id", "luna", "--num-actors", "1"]
    with command(tmp_path, "fleet", *run, *words) as fleet:
        assert fleet.wait(PATIENCE_S) in (1, 2)
        said = (tmp_path / "fleet.err").read_text()
        assert reason in said and "Traceback" not in said
