"""Measurement of the time from an update of the weights until every actor has them.

The learner is in this process, all actors are threads of one other. The time begins when the algorithm returns its weights, and
ends when the host of the last actor is notified.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor import RL4SysAgent
from rl4sys_zmq.capacity.harness import PATIENCE_S, UntrainedAlgorithm, child
from rl4sys_zmq.config import AgentConfig, WeightsConfig
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace, PolicySpec, Segment, Space

ALGORITHM = "WALKS"
STEP = 1e-3
"""The largest change of a weight in an update, which changes all of them. They begin with a standard deviation of 0.1."""


class _WalkingAlgorithm(UntrainedAlgorithm):
    """An algorithm that updates after each step, and changes its weights at random at each snapshot."""

    kind: ClassVar[str] = "onpolicy"
    rollout_length = 1

    def __init__(self, spec: PolicySpec, seed: int) -> None:
        super().__init__(spec)
        self.given_at: list[float] = []  # time of each snapshot, from `time.monotonic`
        self._pending = 0
        self._rng = np.random.default_rng(seed)
        self._weights = self._rng.normal(0.0, 0.1, spec.size).astype(np.float32)

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        self._pending += segment.steps

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        if not self._pending:
            return None
        self._pending = 0
        self.updates += 1
        return {"updates": float(self.updates)}

    def demand(self) -> int:
        return max(0, 1 - self._pending)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        self._weights += self._rng.uniform(-STEP, STEP, self._weights.size).astype(np.float32)
        self.given_at.append(time.monotonic())
        return self._spec.views(self._weights.copy())


def measure_fanout(kilobytes: int, actors: int, level: int, versions: int, seed: int) -> float:
    """Return the median time from an update until the last actor has the new weights, in milliseconds."""
    made: list[_WalkingAlgorithm] = []

    def build(observations: ObservationSpace, actions: Space, parameters: Mapping[str, object], _: int) -> _WalkingAlgorithm:
        made.append(_WalkingAlgorithm(_spec(kilobytes), seed))
        return made[-1]

    register_algorithm(ALGORITHM, build)
    config = LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, weights=WeightsConfig(level=level))
    with Learner(config) as learner, child(_follow, learner.address, actors, versions) as ear:
        assert ear.recv() == "ready"
        for version in range(1, versions + 1):
            assert ear.recv() == version  # all actors have it
        applied = np.array(ear.recv())
    updated = np.array(made[-1].given_at[1 : versions + 1])
    return 1e3 * float(np.median(applied.max(axis=0) - updated))


def policy_bytes(kilobytes: int) -> int:
    """Return the exact size of the weights of `measure_fanout` for a policy of about `kilobytes`."""
    return 4 * _spec(kilobytes).size


def _spec(kilobytes: int) -> PolicySpec:
    """Return the `PolicySpec` of a perceptron with two equal hidden layers, of about `kilobytes` in float32."""
    inputs, outputs = 8, 4
    width = round((-(inputs + outputs + 2) + ((inputs + outputs + 2) ** 2 + 4 * 250 * kilobytes) ** 0.5) / 2)
    return mlp_spec(BoxSpace((inputs,)), DiscreteSpace(outputs), "categorical", (width, width))


def _follow(pipe: Connection, address: str, actors: int, versions: int) -> None:
    """Run a thread for each actor, which records when each version of the weights arrives. The first triggers the updates."""
    spaces: dict[str, Any] = {"observation_space": BoxSpace((8,)), "action_space": DiscreteSpace(4)}
    config = AgentConfig(
        client_id="lab", train_server_address=address, algorithm_name=ALGORITHM, linger_ms=0, overflow="wait", **spaces
    )
    applied = [[0.0] * versions for _ in range(actors)]
    gates = [threading.Barrier(actors + 1) for _ in range(2)]

    def follow(index: int) -> None:
        with RL4SysAgent(config=config) as agent:
            gates[0].wait(PATIENCE_S)
            for version in range(1, versions + 1):
                if index == 0:
                    _ask(agent)
                agent.wait_version(version, PATIENCE_S)
                applied[index][version - 1] = time.monotonic()
                gates[version % 2].wait(PATIENCE_S)

    follow_versions(pipe, follow, actors, versions, gates)
    pipe.send(applied)


def _ask(agent: RL4SysAgent) -> None:
    """Send an episode of one step, which triggers one update of the algorithm."""
    traj, action = agent.request_for_action(None, np.zeros(8, np.float32))
    action.update_reward(0.0)
    agent.add_to_trajectory(traj, action)
    agent.mark_end_of_trajectory(traj, action)


def follow_versions(
    pipe: Connection, target: Callable[[int], None], actors: int, versions: int, gates: list[threading.Barrier]
) -> None:
    """Run a thread for each actor, and tell the parent process when all are ready and when all have a version.

    A thread waits at ``gates[0]`` before the first version, and after each version at ``gates[version % 2]``.
    """
    threads = [threading.Thread(target=target, args=(n,)) for n in range(actors)]
    for thread in threads:
        thread.start()
    gates[0].wait(PATIENCE_S)
    pipe.send("ready")
    for version in range(1, versions + 1):
        gates[version % 2].wait(PATIENCE_S)
        pipe.send(version)
    for thread in threads:
        thread.join()
