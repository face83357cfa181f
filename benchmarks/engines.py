"""Four clients with networks of about 1 M parameters, trained in threads and in processes of their own, in alternation.

python benchmarks/engines.py --pairs 3 --seconds 20 --json benchmarks/results/engines.json

For each engine: updates per second of all clients, and the time of a status request to the gateway (median and 99th percentile),
which shows how long the gateway thread waits for a core and for Python's global interpreter lock.
"""

from __future__ import annotations

import argparse
import json
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.bench.processes import child
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.ops.status import request_status
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

CLIENTS = tuple(f"client{number}" for number in range(4))
EPISODE_STEPS = 64
WARM_UP_UPDATES = 2
PAUSE_S = 0.02
START_S = 120.0
PARAMETERS = {"hidden_sizes": [1024, 1024], "steps_per_update": 512, "epochs": 2, "minibatch_size": 128}


def act(pipe: Connection, address: str) -> None:
    """Send random episodes of all clients as fast as the learner takes them, until the pipe has a message."""
    rng = np.random.default_rng(1)
    agents = [
        RL4SysAgent(
            config=AgentConfig(
                client_id=client,
                train_server_address=address,
                algorithm_name="PPO",
                algorithm_parameters=PARAMETERS,
                observation_space=BoxSpace((8,)),
                action_space=DiscreteSpace(4),
                overflow="drop_oldest",
                connect_timeout_s=START_S,
            )
        )
        for client in CLIENTS
    ]
    try:
        while not pipe.poll():
            for agent in agents:
                if agent.stats()["credit_steps"] >= EPISODE_STEPS:
                    _play(agent, rng)
            time.sleep(PAUSE_S)
    finally:
        for agent in agents:
            agent.close(0.0)


def _play(agent: RL4SysAgent, rng: np.random.Generator) -> None:
    trajectory: Any = None
    action: Any = None
    for observation in rng.standard_normal((EPISODE_STEPS, 8), dtype=np.float32):
        trajectory, action = agent.request_for_action(trajectory, observation)
        action.update_reward(1.0)
        agent.add_to_trajectory(trajectory, action)
    agent.mark_end_of_trajectory(trajectory, action)


def updates(address: str) -> dict[str, int]:
    """Return the number of updates of each client."""
    return {name: client["updates"] for name, client in request_status(address, START_S)["clients"].items()}


def measure(engine: str, seconds: float) -> dict[str, float]:
    """Train all clients with one engine, and return the measured figures."""
    config = LearnerConfig(bind="ipc://*", run_dir=None, engine=engine, torch_threads=1, shutdown_timeout_s=20.0)
    with Learner(config) as learner, child(act, learner.address) as pipe:
        deadline = time.monotonic() + START_S
        while len(now := updates(learner.address)) < len(CLIENTS) or min(now.values()) < WARM_UP_UPDATES:
            if time.monotonic() > deadline:
                raise SystemExit(f"the clients have not started within {START_S:g} s: {now}")
            time.sleep(0.2)
        began, before, waits = time.monotonic(), sum(now.values()), []
        while time.monotonic() - began < seconds:
            asked = time.monotonic()
            now = updates(learner.address)
            waits.append(time.monotonic() - asked)
            time.sleep(PAUSE_S)
        took, done = time.monotonic() - began, sum(now.values()) - before
        pipe.send("stop")
    p50, p99 = np.percentile(waits, [50, 99]) * 1000
    return {"updates_per_s": round(done / took, 2), "status_p50_ms": round(float(p50), 2), "status_p99_ms": round(float(p99), 2)}


def main() -> None:
    """Measure both engines in alternation, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3, help="number of runs of each engine")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each run")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    given = parser.parse_args()
    results: list[dict[str, Any]] = []
    for _ in range(given.pairs):
        for engine in ("thread", "process"):
            results.append({"engine": engine, **measure(engine, given.seconds)})
            print(results[-1], flush=True)
    for engine in ("thread", "process"):
        rates = [result["updates_per_s"] for result in results if result["engine"] == engine]
        print(f"{engine}: median {np.median(rates):.2f} updates/s of {len(CLIENTS)} clients")
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
