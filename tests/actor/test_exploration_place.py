"""The place of an actor on the ladder of epsilons depends only on its name, and is the same at each start."""

from math import exp

import numpy as np
import pytest

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.actor.components import exploration_place
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.values import BoxSpace, DiscreteSpace


def test_places_depend_on_the_name_and_are_spread_evenly() -> None:
    places = np.sort([exploration_place(f"actor-{i}") for i in range(1000)])
    assert places.min() >= 0.0 and places.max() < 1.0
    assert np.abs(places - np.arange(1000) / 1000).max() < 0.06
    assert exploration_place("arm-7") == exploration_place("arm-7") != exploration_place("arm-8")


def test_actors_of_one_policy_explore_by_their_own_epsilon() -> None:
    pytest.importorskip("torch")
    parameters = {"epsilon": 0.4, "epsilon_min": 0.4, "epsilon_ladder": 7.0, "hidden_sizes": [4]}
    found: dict[str, float] = {}
    with Learner(LearnerConfig(bind="inproc://*", run_dir=None)) as learner:
        for name in ("arm-7", "arm-8", "arm-7"):
            config = AgentConfig(
                client_id="ladder",
                algorithm_name="DQN",
                algorithm_parameters=parameters,
                observation_space=BoxSpace((3,)),
                action_space=DiscreteSpace(2),
                train_server_address=learner.address,
                actor_id=name,
                explore=False,
            )
            with RL4SysAgent(config=config) as agent:
                _, action = agent.request_for_action(None, np.ones(3, np.float32))
                chance = 2 * (1 - exp(action.log_prob))
            assert found.setdefault(name, chance) == chance
    for name, chance in found.items():
        assert chance == pytest.approx(0.4 ** (1 + 7 * exploration_place(name)), rel=1e-4)
