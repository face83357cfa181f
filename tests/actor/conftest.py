"""A learner that keeps the segments of its clients, and agents that join it."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySpec, Segment

OBS = BoxSpace((4,))
HEADS = {DiscreteSpace: "categorical", BoxSpace: "gaussian"}


class Keeper(FakeAlgorithm):
    """A fake algorithm for any spaces that keeps the segments that it observes, and never trains on them."""

    def __init__(self, spec: PolicySpec, rollout_length: int, kept: list[Segment]) -> None:
        super().__init__(spec, FakeParameters(steps_per_update=1 << 30, rollout_length=rollout_length))
        self.kept = kept

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        super().observe(segment, correct=correct)
        self.kept.append(segment)


class OffPolicyKeeper(Keeper):
    """A keeper that also observes overridden segments."""

    kind = "offpolicy"


class Bench:
    """One learner with its kept segments, and a factory of agents."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack, self.kept = stack, list[Segment]()
        for name, kind in (("KEEPER", Keeper), ("KEEPER_OFF", OffPolicyKeeper)):
            register_algorithm(name, self._factory(kind))
        self.learner = stack.enter_context(Learner(LearnerConfig(bind="inproc://*", run_dir=None)))

    def _factory(self, kind: type[Keeper]) -> Any:
        def make(observation_space: Any, action_space: Any, parameters: Any, seed: int) -> Keeper:
            squash, head = parameters.get("squash", "clip"), HEADS.get(type(action_space), "joint")
            spec = mlp_spec(observation_space, action_space, head, (8,), squash=squash)
            return kind(spec, parameters.get("rollout_length", 8), self.kept)

        return make

    def agent(self, **options: Any) -> RL4SysAgent:
        defaults: dict[str, Any] = {
            "client_id": "lab",
            "algorithm_name": "KEEPER",
            "observation_space": OBS,
            "action_space": DiscreteSpace(3),
            "train_server_address": self.learner.address,
            "seed": 7,
            "linger_ms": 0,
        }
        return self.stack.enter_context(RL4SysAgent(config=AgentConfig(**{**defaults, **options})))

    def segments(self, agent: RL4SysAgent, count: int | None = None) -> list[Segment]:
        """Deliver the agent's segments, and return this many, or all that it has submitted."""
        agent.flush(10.0)
        count = agent.stats()["submitted"] if count is None else count
        for _ in range(2000):
            client = self.learner.status()["clients"]["lab"]
            if len(self.kept) >= count:
                break
            assert client["state"] == "running", client["error"]
        assert len(self.kept) == count
        return self.kept


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack)


def obs(value: float) -> np.ndarray[Any, Any]:
    return np.full(4, value, dtype=np.float32)


def act(agent: RL4SysAgent, traj: Any, value: float, reward: float | None = 1.0) -> Any:
    """Make one step. It has no reward if `reward` is None."""
    traj, action = agent.request_for_action(traj, obs(value))
    agent.add_to_trajectory(traj, action)
    if reward is not None:
        action.update_reward(reward)
    return traj, action
