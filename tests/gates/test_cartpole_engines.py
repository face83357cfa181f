"""Eight clients learn CartPole in processes or on Ray nodes, while workers or a node, and then their learner, are lost.

No acknowledged segment is lost, and none is trained on twice: `RECORD_PPO` keeps in its state the segments that it trained on.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness.ray_cluster import RayCluster

from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.ops.requests import request_status

from .conftest import SCALE, Report, Tier
from .kill_lab import Lab
from .test_kills import only_long

pytest.importorskip("torch")
pytest.importorskip("gymnasium")
pytestmark = pytest.mark.timeout(3_600)

CLIENTS, NODES, TARGET = 8, 3, 475.0
FIRST_LOSS, SECOND_LOSS = 120.0, 250.0
"""Mean returns over all clients at which workers are lost, and then the learner."""

PRESET = ALGORITHMS.get("PPO").presets["CartPole-v1"]
LONGEST_S = 1_300.0 * SCALE


class Run:
    """A learner with eight clients."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.clients = lab, [f"cart{i}" for i in range(CLIENTS)]
        self.recovery_s: dict[str, list[float]] = {}
        self.reached: dict[str, float] = dict.fromkeys(self.clients, 0.0)
        self.actors = [
            lab.actor(
                f"a{i}",
                client,
                rate=1000.0,
                env="CartPole-v1",
                algorithm={"algorithm": "RECORD_PPO", "parameters": dict(PRESET.parameters)},
                overflow="wait",
            )
            for i, client in enumerate(self.clients)
        ]
        for actor in self.actors:
            actor.start()

    def status(self) -> dict[str, Any]:
        """Return the status of the clients by name. It is empty while the learner does not answer."""
        try:
            return dict(request_status(self.lab.address, 10.0)["clients"])
        except RL4SysError:
            return {}

    def trains(self) -> bool:
        now = self.status()
        return len(now) == CLIENTS and all(client["state"] == "running" for client in now.values())

    def until_reached(self, goal: float, deadline: float, of: Callable[[Iterable[float]], float] = statistics.mean) -> None:
        """Wait until the mean (or `of`) of the clients' best mean returns reaches the goal, at most until the deadline."""

        def done() -> bool:
            self.lab.loop.wait(0.5)
            for name, client in self.status().items():
                if client["mean_return"] is not None and client["episodes"] >= 20:
                    self.reached[name] = max(self.reached[name], client["mean_return"])
            return of(self.reached.values()) >= goal or time.monotonic() > deadline

        self.lab.loop.until(done, LONGEST_S + 60.0, f"a mean return of {goal:g}")

    def lose(self, what: str, loss: Callable[[dict[str, Any]], list[str]]) -> None:
        """Cause a loss, and wait until the affected clients train again."""
        before = self.status()
        began = time.monotonic()
        struck = loss(before)
        noticed_s: list[float] = []

        def recovered() -> bool:
            self.lab.loop.wait(0.1)
            now = self.status()
            if not noticed_s and any(client["state"] != "running" for client in now.values()):
                noticed_s.append(round(time.monotonic() - began, 1))
            return len(now) == CLIENTS and all(
                now[name]["state"] == "running"
                and now[name]["generation"] > before[name]["generation"]
                and now[name]["verdicts"]["trained"] > before[name]["verdicts"]["trained"]
                for name in struck
            )

        self.lab.loop.until(recovered, 180.0, f"training after the loss of {what}")
        self.recovery_s[f"{what}: {len(struck)} clients"] = [*noticed_s, round(time.monotonic() - began, 1)]


@pytest.mark.parametrize("engine", ["process", "ray"])
def test_eight_clients_learn_cartpole_through_losses(engine: str, folder: Path, seed: int, tier: Tier, report: Report) -> None:
    only_long(tier)
    with ExitStack() as stack:
        config: dict[str, Any] = {"engine": engine, "plugins": ["harness.recorded_ppo"], "checkpoint_every_s": 2.0}
        cluster: RayCluster | None = None
        if engine == "ray":
            if importlib.util.find_spec("ray") is None:
                pytest.skip("ray is not installed: pip install 'rl4sys-zmq[ray]'")
            cluster = stack.enter_context(RayCluster(NODES, edge=CLIENTS // (NODES - 1)))
            config |= {"ray_address": cluster.address, "resources": {"cpus": 0.1, "custom": {"edge": 1}}}
        options: dict[str, Any] = {"pacing_lag": PRESET.pacing_lag, "max_policy_lag": 1000, "torch_threads": 1}
        lab = stack.enter_context(Lab(folder / engine, seed, torch=False, **config, **options))
        lab.serving(60.0)
        began = time.monotonic()
        deadline = began + LONGEST_S
        run = Run(lab)
        lab.loop.until(run.trains, 180.0, "eight clients that train")
        started_s = time.monotonic() - began

        def lose_workers(status: dict[str, Any]) -> list[str]:
            if cluster is not None:
                nodes = [status[name]["worker"]["node"] for name in run.clients]
                cluster.lose(lost := max(sorted(set(nodes)), key=nodes.count))
                return [name for name in run.clients if status[name]["worker"]["node"] == lost]
            struck = run.clients[:NODES]
            for name in struck:
                os.kill(status[name]["worker"]["pid"], signal.SIGKILL)
            return struck

        def lose_learner(status: dict[str, Any]) -> list[str]:
            lab.learner.kill()
            lab.serving(60.0)
            return run.clients

        run.until_reached(FIRST_LOSS, deadline)
        run.lose("a node" if cluster else "three workers", lose_workers)
        run.until_reached(SECOND_LOSS, deadline)
        run.lose("the learner", lose_learner)
        run.until_reached(TARGET, deadline, min)
        trained_s = time.monotonic() - began
        status = lab.finish(*run.actors, timeout_s=120.0)
        outcome = lab.outcome()
        report(
            engine=engine,
            started_s=round(started_s, 1),
            trained_s=round(trained_s, 1),
            reached={name: round(value, 1) for name, value in run.reached.items()},
            steps=sum(client["steps"] for client in status["clients"].values()),
            recovery_s=run.recovery_s,
            outcome=str(outcome),
        )
        outcome.check()
        assert outcome.lost == outcome.duplicate == outcome.unacked == () and not any(outcome.counted.values())
        for client in status["clients"].values():
            assert (client["rolled_back"], client["gap"], client["pending"]) == (0, 0, 0)
            assert client["accepted"] == client["verdicts"]["trained"]
        assert min(run.reached.values()) >= TARGET, run.reached
