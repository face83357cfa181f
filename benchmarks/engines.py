"""Four clients, trained in threads and in processes of their own, in turn, with small and with large networks.

    python benchmarks/engines.py --pairs 5 --seconds 20 --json benchmarks/results/engines.json

For each engine: the updates per second of all clients; the time from the end of an episode of a fifth, light client to the
acknowledgement of its segment; and the time of a status request. The latter two show how long the gateway thread (the learner's
network thread) waits for a core and for Python's global interpreter lock.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bench.pairs import spread
from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.capacity.harness import child
from rl4sys_zmq.capacity.machine import machine_record
from rl4sys_zmq.config import ClientConfig
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.ops.requests import request_status
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

CLIENTS = tuple(f"client{number}" for number in range(4))
EPISODE_STEPS = 64
WAITING_SEGMENTS = 4
WARM_UP_UPDATES = 2
PAUSE_S = 0.02
START_S = 120.0
CASES = {64: 50, 700: 2}
"""The width of the two hidden layers of the clients, and the epochs of an update, so that an update takes about as long."""
PARAMETERS = {"steps_per_update": 512, "minibatch_size": 128}
PROBE = "probe"
PROBE_PARAMETERS = {"hidden_sizes": [16], "learning_starts": 1_000_000_000}
PROBE_STEPS = 8
PROBE_TIMEOUT_S = 30.0


def act(pipe: Connection, address: str, hidden: int) -> None:
    """Send random episodes of all clients as fast as the learner takes them, until the pipe has a message."""
    rng = np.random.default_rng(1)
    agents = [
        RL4SysAgent(
            config=AgentConfig(
                client_id=client,
                train_server_address=address,
                algorithm_name="PPO",
                algorithm_parameters={**PARAMETERS, "hidden_sizes": [hidden, hidden], "update_epochs": CASES[hidden]},
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
                if agent.stats()["in_actor"] < WAITING_SEGMENTS:
                    _play(agent, rng, EPISODE_STEPS)
            time.sleep(PAUSE_S)
    finally:
        for agent in agents:
            agent.close(0.0)


def _play(agent: RL4SysAgent, rng: np.random.Generator, steps: int) -> None:
    trajectory: Any = None
    action: Any = None
    for observation in rng.standard_normal((steps, 8), dtype=np.float32):
        trajectory, action = agent.request_for_action(trajectory, observation)
        action.update_reward(1.0)
        agent.add_to_trajectory(trajectory, action)
    agent.mark_end_of_trajectory(trajectory, action)


def probe(pipe: Connection, address: str) -> None:
    """Send short episodes one after the other, and time each from its end to its acknowledgement, until the pipe has a message.

    A first message begins the measurement. The answer is the list of times, in milliseconds.
    """
    rng = np.random.default_rng(2)
    times: list[float] = []
    config = AgentConfig(
        client_id=PROBE,
        train_server_address=address,
        algorithm_name="DQN",
        algorithm_parameters=PROBE_PARAMETERS,
        observation_space=BoxSpace((8,)),
        action_space=DiscreteSpace(4),
        connect_timeout_s=START_S,
    )
    with RL4SysAgent(config=config) as agent:
        began = False
        while True:
            if pipe.poll():
                if began:
                    break
                began, times = bool(pipe.recv()), []
            sent = agent.stats()["accepted"] + 1
            _play(agent, rng, PROBE_STEPS)
            ended = time.monotonic()
            while agent.stats()["accepted"] < sent and time.monotonic() - ended < PROBE_TIMEOUT_S:
                time.sleep(0.0005)
            times.append((time.monotonic() - ended) * 1000)
            time.sleep(PAUSE_S)
    pipe.send(times)


def updates(address: str) -> dict[str, int]:
    """Return the number of updates of each heavy client that has started."""
    clients = request_status(address, START_S)["clients"]
    return {name: clients[name]["updates"] for name in CLIENTS if name in clients}


def measure(engine: str, hidden: int, seconds: float) -> dict[str, float]:
    """Train all clients, with two hidden layers of `hidden` units, by one engine. Return the measured figures."""
    entries = {name: ClientConfig(engine=engine) for name in CLIENTS}
    config = LearnerConfig(
        bind="ipc://*", run_dir=None, clients=entries, engine="thread", torch_threads=1, shutdown_timeout_s=20.0
    )
    with Learner(config) as learner, child(act, learner.address, hidden) as acting, child(probe, learner.address) as probing:
        deadline = time.monotonic() + START_S
        while len(now := updates(learner.address)) < len(CLIENTS) or min(now.values()) < WARM_UP_UPDATES:
            if time.monotonic() > deadline:
                raise SystemExit(f"the clients have not started within {START_S:g} s: {now}")
            time.sleep(0.2)
        probing.send(True)
        began, before, waits = time.monotonic(), sum(now.values()), []
        while time.monotonic() - began < seconds:
            asked = time.monotonic()
            now = updates(learner.address)
            waits.append((time.monotonic() - asked) * 1000)
            time.sleep(PAUSE_S)
        took, done = time.monotonic() - began, sum(now.values()) - before
        probing.send(False)
        acks = probing.recv()
        acting.send(False)
    figures = {"updates_per_s": done / took}
    for name, times in (("ack", acks), ("status", waits)):
        figures |= {f"{name}_p50_ms": float(np.median(times)), f"{name}_p99_ms": float(np.percentile(times, 99))}
    return {name: round(value, 3) for name, value in figures.items()}


def main() -> None:
    """Measure both engines in turn, and print the figures and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="number of runs of each engine")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each run")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    given = parser.parse_args()
    rows: dict[str, Any] = {}
    for hidden in CASES:
        runs: dict[str, list[dict[str, float]]] = {"thread": [], "process": []}
        for _ in range(given.pairs):
            for engine, results in runs.items():
                results.append(measure(engine, hidden, given.seconds))
                print(f"{hidden}-{hidden}", engine, results[-1], flush=True)
        rows[str(hidden)] = compare(runs)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({**machine_record(), "seconds": given.seconds, "hidden": rows}, indent=2) + "\n")


def compare(runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Print each figure of both engines and their ratios, and return them."""
    found = {}
    for name in runs["thread"][0]:
        thread, process = ([result[name] for result in results] for results in runs.values())
        ratio = spread([b / a for a, b in zip(thread, process, strict=True)])
        found[name] = {"thread": asdict(spread(thread)), "process": asdict(spread(process)), "process_to_thread": asdict(ratio)}
        print(f"{name}: thread {spread(thread).text()}, process {spread(process).text()}, ratio {ratio.text()}")
    return found


if __name__ == "__main__":
    main()
