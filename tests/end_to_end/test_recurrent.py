"""A recurrent policy from the actor to the learner."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import drained, play, play_batch

from rl4sys_zmq import FrozenAgent
from rl4sys_zmq.algorithms.onpolicy.ppo import PPO
from rl4sys_zmq.policies.layer_policy import STATE
from rl4sys_zmq.values import Segment

from .conftest import Lab

PARAMETERS: dict[str, Any] = {
    "network": {"kind": "gru", "units": 8, "hidden_sizes": [6]},
    "steps_per_update": 32,
    "rollout_length": 4,
    "normalise_observations": False,
    "normalise_rewards": False,
}
RECURRENT: dict[str, Any] = {"algorithm_name": "PPO", "algorithm_parameters": PARAMETERS}
REPLAY: dict[str, Any] = {
    "algorithm_name": "DQN",
    "algorithm_parameters": {
        "network": {"kind": "gru", "units": 8, "hidden_sizes": [6]}, "rollout_length": 4, "sequence_length": 2, "burn_in": 2,
        "learning_starts": 4, "train_frequency": 4, "batch_size": 4, "prioritised": True,
        "publish_every_updates": 1,
    },
}  # fmt: skip


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the columns and metrics of each update of PPO in this process."""
    found: list[Any] = []
    prepare = PPO._prepare

    def recording(self: PPO, *given: Any) -> Any:
        found.append(prepare(self, *given))
        return found[-1]

    monkeypatch.setattr(PPO, "_prepare", recording)
    return found


def random_episode(agent: Any, steps: int, rng: np.random.Generator) -> None:
    play(agent, rng.normal(size=(steps, 4)).astype(np.float32))


def test_the_learner_computes_the_log_probabilities_of_the_actor(lab: Lab, prepared: list[Any]) -> None:
    learner = lab.learner()
    agent, rng = lab.agent(learner, **RECURRENT), np.random.default_rng(0)
    for steps in (10, 7, 6, 9):
        random_episode(agent, steps, rng)
    drained(learner, agent)
    columns, metrics = prepared[0]
    assert metrics["losses/ratio_first"] < 1e-5
    assert sorted(columns.sequences.lengths) == [1, 2, 2, 3, 4, 4, 4, 4, 4, 4]
    assert int(columns.sequences.states.any(1).sum()) == 6, "the states at the starts of later segments of the four episodes"
    assert learner.status()["clients"]["lab"]["verdicts"]["trained"] == 10


def test_the_environments_of_a_batch_have_a_state_each(inproc_lab: Lab, prepared: list[Any]) -> None:
    learner = inproc_lab.learner()
    agent, rng = inproc_lab.agent(learner, **RECURRENT), np.random.default_rng(0)
    play_batch(agent, rng.normal(size=(11, 3, 4)).astype(np.float32))
    drained(learner, agent)
    assert prepared[0][1]["losses/ratio_first"] < 1e-5


def test_a_replay_trains_on_the_states_that_the_actor_had(lab: Lab, observed: list[Segment]) -> None:
    learner = lab.learner()
    agent, rng = lab.agent(learner, **REPLAY), np.random.default_rng(0)
    for steps in (10, 7, 6, 9):
        random_episode(agent, steps, rng)
    drained(learner, agent)
    agent.wait_version(1, timeout_s=20.0)
    assert sorted(segment.steps for segment in observed) == [1, 2, 2, 3, 4, 4, 4, 4, 4, 4]
    assert [bool(segment.initial[STATE].any()) for segment in observed] == [segment.segment_index > 0 for segment in observed]
    client = learner.status()["clients"]["lab"]
    assert client["verdicts"]["trained"] == 10 and not client["error"]


def test_a_new_version_goes_on_from_the_state_of_the_old_one(inproc_lab: Lab, prepared: list[Any]) -> None:
    learner = inproc_lab.learner()
    agent, rng = inproc_lab.agent(learner, **RECURRENT), np.random.default_rng(0)
    traj, action = agent.request_for_action(None, np.ones(4, np.float32))
    agent.add_to_trajectory(traj, action)
    state = action.state  # type: ignore[attr-defined]
    for _ in range(4):
        random_episode(agent, 8, rng)
    drained(learner, agent)
    agent.wait_version(1, timeout_s=20.0)
    traj, action = agent.request_for_action(traj, np.ones(4, np.float32))
    assert agent.version >= 1 and action.before is state  # type: ignore[attr-defined]


@pytest.mark.parametrize("algorithm", [RECURRENT, REPLAY])
def test_an_exported_policy_acts_with_its_state(algorithm: dict[str, Any], inproc_lab: Lab, tmp_path: Path) -> None:
    learner = inproc_lab.learner(run_dir=tmp_path / "run")
    live = inproc_lab.agent(learner, explore=False, **algorithm)
    observations = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    learner.save(timeout_s=20.0)
    [checkpoint] = (tmp_path / "run/checkpoints/lab").glob("[0-9]*")
    with FrozenAgent(checkpoint) as frozen:
        one: Any = None
        other: Any = None
        for observation in observations:
            one, a = live.request_for_action(one, observation)
            live.add_to_trajectory(one, a)
            other, b = frozen.request_for_action(other, observation)
            frozen.add_to_trajectory(other, b)
            assert a.act == b.act and a.log_prob == b.log_prob
