"""Each on-policy algorithm trains through a learner and an actor that waits for credit."""

from __future__ import annotations

from typing import Any

import pytest

from rl4sys_zmq.values import BoxSpace, DiscreteSpace

pytest.importorskip("torch")

CASES: dict[str, tuple[Any, dict[str, Any], int]] = {
    # actions, parameters, pacing_lag
    "A2C": (DiscreteSpace(2), {"steps_per_update": 20}, 0),
    "A3C": (DiscreteSpace(2), {"steps_per_update": 20}, 8),
    "IMPALA": (DiscreteSpace(2), {"steps_per_update": 32, "rollout_length": 8}, 1),
    "REINFORCE": (DiscreteSpace(2), {"traj_per_epoch": 2}, 0),
    "RPO": (BoxSpace((2,), low=-1.0, high=1.0), {"num_steps": 32, "num_minibatches": 2}, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_it_trains_with_a_learner(inproc_lab: Any, name: str) -> None:
    actions, parameters, pacing_lag = CASES[name]
    learner = inproc_lab.learner(torch_threads=1)
    given = {"algorithm_name": name, "algorithm_parameters": {**parameters, "hidden_sizes": [8]}, "action_space": actions}
    agent = inproc_lab.agent(learner, overflow="wait", **given)
    while agent.version < 4:
        inproc_lab.episode(agent, 12)
    agent.flush(20.0)
    client = learner.status()["clients"]["lab"]
    assert client["state"] == "running" and client["pacing_lag"] == pacing_lag and client["version"] >= 4
    assert client["verdicts"].get("quarantined", 0) == 0 and client["verdicts"]["trained"] > 0
    assert sum(client["policy_lags"].values()) == client["steps"]
