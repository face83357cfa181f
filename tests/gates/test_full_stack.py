"""All faults together: keys, a bad network, and a learner that is killed every ten seconds."""

import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness.keys import KeyRing
from kit import until

from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.testing import ChaosProxy, NetworkFaults

from .conftest import Child, Report, Spawn, Tier, check_law, check_learner_law
from .kill_lab import free_port

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

ACTORS = 2
RATE = 1500.0
"""Steps per second and actor: enough to learn in a minute, and slow enough for several kills meanwhile."""

KILL_EVERY_S = 10.0
BAD_NETWORK = NetworkFaults(latency_s=0.002, cut_probability=0.0005, reset=True, corrupt_probability=0.0005)


class Stack:
    """A learner process, its actors, and optionally a bad network between them."""

    def __init__(self, spawn: Spawn, folder: Path, rng: random.Random, steps: int, *, bad: bool, stack: ExitStack) -> None:
        folder.mkdir()
        self.spawn = spawn
        hosts = ("127.0.0.1", "127.0.0.2")
        router = free_port(rng, *hosts)
        while (pub := free_port(rng, *hosts)) == router:
            pass
        preset = ALGORITHMS.get("PPO").presets["CartPole-v1"]
        keys = KeyRing(folder / "keys")
        for index in range(ACTORS):
            keys.allow(f"actor-{index}", ids=["cart"])
        keys.write()
        config = {
            "pub": f"tcp://127.0.0.1:{pub}",
            "run_dir": str(folder / "run"),
            "keys": str(keys.folder),
            "checkpoint_every_s": 1.0,
            "seed": rng.randrange(1 << 30),
            "pacing_lag": preset.pacing_lag,
        }
        self.options = {"bind": f"tcp://127.0.0.1:{router}", "torch": True, "config": config}
        host = "127.0.0.1"
        self.proxies: list[ChaosProxy] = []
        if bad:
            host = "127.0.0.2"
            for port in (router, pub):
                proxy = ChaosProxy(
                    f"tcp://127.0.0.1:{port}", seed=rng.randrange(1 << 30), listen=(host, port), faults=BAD_NETWORK
                )
                self.proxies.append(stack.enter_context(proxy))
        self.learner = self.start_learner()
        self.actors = [
            spawn(
                "cartpole_actor",
                {
                    "rate": RATE,
                    "steps": steps // ACTORS,
                    "seed": 1000 * index,
                    "config": {
                        "client_id": "cart",
                        "algorithm_name": "PPO",
                        "algorithm_parameters": dict(preset.parameters),
                        "train_server_address": f"tcp://{host}:{router}",
                        "keys": str(keys.file(f"actor-{index}")),
                        "spool": str(folder / f"spool-{index}"),
                        "connect_timeout_s": 60.0,
                        "seed": index,
                        "linger_ms": 20,
                    },
                },
            )
            for index in range(ACTORS)
        ]
        for actor in self.actors:
            actor.hear()

    def start_learner(self) -> Child:
        learner: Child = self.spawn("learner", self.options)
        learner.hear()
        return learner

    def client(self) -> dict[str, Any]:
        return dict(self.learner.ask("status")["clients"]["cart"])

    def settled(self) -> dict[str, Any]:
        def look() -> dict[str, Any]:
            client = self.client()
            return client if client["state"] == "running" and not client["resuming"] else {}

        return until(look, "a learner that has caught up")

    def restart_learner(self) -> dict[str, Any]:
        """Kill the learner and start it again. Return the client's status after it has resumed."""
        self.learner.kill()
        self.learner = self.start_learner()
        return self.settled()


def check_nothing_lost(client: dict[str, Any]) -> None:
    check_learner_law(client)
    assert client["rolled_back"] == client["gap"] == 0, client


def train(stack: Stack, *, kill_every_s: float | None, least_kills: int = 0) -> dict[str, Any]:
    kills, restart_s, next_kill = 0, [], time.monotonic() + (kill_every_s or 0.0)
    pending_at_restart: list[int] = []

    def done() -> bool:
        nonlocal kills, next_kill
        if kill_every_s is not None and time.monotonic() >= next_kill:
            began = time.monotonic()
            client = stack.restart_learner()
            restart_s.append(time.monotonic() - began)
            check_nothing_lost(client)
            pending_at_restart.append(client["pending"])
            kills += 1
            next_kill = time.monotonic() + kill_every_s
        states = [actor.ask("status") for actor in stack.actors]
        assert not any(s["error"] for s in states), [s["error"] for s in states]
        return all(s["done"] for s in states) and kills >= least_kills

    until(done, "all steps", timeout_s=900.0, every_s=0.2)
    for proxy in stack.proxies:
        proxy.faults = NetworkFaults()
    finals = [actor.ask("finish", 60.0, timeout_s=90.0) for actor in stack.actors]
    for final in finals:
        check_law(final["stats"])
        assert final["stats"]["in_actor"] == final["stats"]["dropped_at_source"] == final["stats"]["in_doubt"] == 0, final[
            "stats"
        ]
    client = stack.learner.ask("drain", 60.0, timeout_s=90.0)["clients"]["cart"]
    check_nothing_lost(client)
    assert client["pending"] == 0
    assert client["accepted"] == sum(f["stats"]["accepted"] for f in finals)
    returns = [r for f in finals for r in f["returns"]]
    return {
        "mean_return": round(sum(returns) / len(returns), 1),
        "steps": sum(f["steps"] for f in finals),
        "version": client["version"],
        "kills": kills,
        "restart_s": [round(s, 1) for s in restart_s],
        "pending_at_restart": pending_at_restart,
        "accepted": client["accepted"],
        "verdicts": client["verdicts"],
        "cuts": sum(p.counters.get("cuts") for p in stack.proxies),
        "corrupted": sum(p.counters.get("corrupted") for p in stack.proxies),
    }


@pytest.mark.timeout(1800)
def test_cartpole_is_learned_through_everything(tier: Tier, seed: int, report: Report, spawn: Spawn, tmp_path: Path) -> None:
    rng = random.Random(seed)
    steps = tier.size(4_000, 160_000, least=20_000)
    with ExitStack() as proxies:
        stack = Stack(spawn, tmp_path / "bad", rng, steps, bad=True, stack=proxies)
        faulty = train(stack, kill_every_s=KILL_EVERY_S if tier.long else 2.0, least_kills=1)
    assert faulty["steps"] >= steps
    if not tier.long:
        report(**faulty)
        return
    with ExitStack() as none:
        clean = train(Stack(spawn, tmp_path / "clean", rng, steps, bad=False, stack=none), kill_every_s=None)
    report(clean=clean, faulty=faulty)
    assert faulty["kills"] >= 3
    assert faulty["mean_return"] >= 0.95 * clean["mean_return"], (faulty["mean_return"], clean["mean_return"])
