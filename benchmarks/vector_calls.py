"""A vector of remote environments: one call for all of a server's, or one for each, at the same time?

Alternating pairs over tcp, with a server in a process of its own; prints the rounds per second of both and the median ratio::

    python benchmarks/vector_calls.py

With CartPole (some 20 us a step), and with environments that wait for 5 and 80 ms in each step.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np

from rl4sys_zmq.serving import GymEnvServer, RemoteVectorEnv
from rl4sys_zmq.serving.remote_env import LeasedEnvClient

COUNT, PAIRS, SECONDS = 4, 5, 0.6


class Waiting(gymnasium.Env[Any, Any]):
    """A step takes a while and no processor."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Nothing to begin."""
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Waits."""
        time.sleep(self.seconds)
        return np.zeros(4, np.float32), 0.0, False, False, {}


def serve(seconds: float, pipe: Connection) -> None:
    env = partial(Waiting, seconds) if seconds else "CartPole-v1"
    with GymEnvServer(env, 2 * COUNT, bind=0) as server:
        server.start()
        pipe.send(server.address)
        pipe.recv()


def one_call(envs: RemoteVectorEnv) -> float:
    actions, rounds, began = np.zeros(COUNT, int), 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        envs.step(actions)
        rounds += 1
    return rounds / (time.perf_counter() - began)


def a_call_each(tenants: list[LeasedEnvClient]) -> float:
    anew, rounds, began = [True] * COUNT, 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        futures = [t.submit("step", {"actions": [np.int64(0)], "anew": [again]}) for t, again in zip(tenants, anew, strict=True)]
        answers = [future.result()[0] for future in futures]
        anew = [bool(terminated or truncated) for _, _, terminated, truncated, _ in answers]
        rounds += 1
    return rounds / (time.perf_counter() - began)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    for seconds in (0.0, 0.005, 0.08):
        ours, theirs = context.Pipe()
        server = context.Process(target=serve, args=(seconds, theirs))
        server.start()
        address = ours.recv()
        envs = RemoteVectorEnv(address, COUNT)
        envs.reset(seed=0)
        tenants = [LeasedEnvClient(address, count=1, index=None, timeout_s=10.0) for _ in range(COUNT)]
        for tenant in tenants:
            tenant.reset({"only": [True], "seeds": ["0"], "options": None})
        pairs = [(one_call(envs), a_call_each(tenants)) for _ in range(PAIRS)]
        what = f"{seconds * 1000:g} ms a step" if seconds else "CartPole"
        for name, column in zip(("one call", "a call each"), zip(*pairs, strict=True), strict=True):
            print(f"{what:14}  {name:12} {' '.join(f'{rate:8.0f}' for rate in column)} rounds/s")
        print(f"{what:14}  ratio {statistics.median(a / b for a, b in pairs):.2f}", flush=True)
        envs.close()
        for tenant in tenants:
            tenant.close()
        ours.send("end")
        server.join()


if __name__ == "__main__":
    main()
