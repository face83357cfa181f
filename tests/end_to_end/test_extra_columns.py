"""A plug-in policy with extra columns: from the actor over real sockets to the algorithm, and through the journal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import drained, play, play_batch

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.learner.run.deadletters import list_letters
from rl4sys_zmq.ops.requests import request_status
from rl4sys_zmq.testing import FakeParameters, check_algorithm, check_policy
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

from .conftest import Lab
from .engine_lab import serving
from .memory import COLUMNS, WIDTH, Memory, made, make_memory, memory_spec

JOURNALED: dict[str, Any] = {"fsync": "always", "checkpoint_every_s": 1e6, "plugins": ["end_to_end.memory"]}
SPEC = memory_spec(BoxSpace((WIDTH,)), DiscreteSpace(2))


def episode(agent: Any, steps: int, seed: int) -> None:
    play(agent, np.random.default_rng(seed).normal(size=(steps, WIDTH)).astype(np.float32))


def test_the_plug_in_keeps_the_contracts() -> None:
    check_policy(SPEC)
    check_algorithm(make_memory, observation_space=SPEC.observation_space, action_space=SPEC.action_space)


def test_extra_columns_arrive_with_their_segments(lab: Lab) -> None:
    learner = lab.learner()
    agent = lab.agent(learner, algorithm_name="MEMORY")
    assert agent.spec.columns == COLUMNS
    for number, steps in enumerate((3, 12, 5, 7)):
        episode(agent, steps, number)
    client = drained(learner, agent)
    assert client["verdicts"]["trained"] == client["accepted"] == 1 + 3 + 1 + 2
    assert client["verdicts"]["quarantined"] == client["verdicts"]["refused"] == 0
    found = made[-1].found
    assert {segment.segment_index for segment in found} == {0, 1, 2}
    assert all(segment.extras["tick"].dtype == np.int64 for segment in found)
    assert any(segment.initial["state"].any() for segment in found)


def test_a_batch_of_trajectories_has_a_state_each(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, algorithm_name="MEMORY")
    play_batch(agent, np.random.default_rng(0).normal(size=(12, 3, WIDTH)).astype(np.float32))
    client = drained(learner, agent)
    assert client["verdicts"]["trained"] == client["accepted"] == 9
    assert sum(segment.steps for segment in made[-1].found) == 36


def test_the_actions_of_a_trajectory_have_the_extra_columns(inproc_lab: Lab) -> None:
    agent = inproc_lab.agent(inproc_lab.learner(), algorithm_name="MEMORY")
    traj: Any = None
    for _ in range(3):
        traj, action = agent.request_for_action(traj, np.ones(WIDTH, np.float32))
        agent.add_to_trajectory(traj, action)
    assert action.data.keys() == {"logp_a", "state", "hidden", "tick"}
    copies = traj.actions[:-1]
    assert traj.actions[-1] is action and [int(copy.data["tick"]) for copy in copies] == [0, 1]
    assert copies[0].data.keys() == {"logp_a", "hidden", "tick"}, "the state is recorded once for each segment"


@pytest.mark.parametrize("compression", ["off", "zstd"])
def test_a_killed_learner_reads_extra_columns_from_its_journal(inproc_lab: Lab, tmp_path: Path, compression: str) -> None:
    run_dir = tmp_path / "run"
    with serving("tcp://127.0.0.1:0", run_dir=str(run_dir), **JOURNALED) as (process, address):
        agent = inproc_lab.agent(address, algorithm_name="MEMORY", compression=compression)
        for number in range(6):
            episode(agent, 6, number)
        agent.flush(20.0)
        accepted = request_status(address, 10.0)["clients"]["lab"]["accepted"]
        process.kill()  # there is no checkpoint so far: the next learner reads all segments from the journal
        process.wait(10)
    assert accepted == 12
    agent.close(0.0)
    with Learner(LearnerConfig(bind="inproc://again", run_dir=run_dir)) as learner:
        learner.wait(client_id="lab", version=0, timeout_s=20.0)
        client = drained(learner)
        assert client["accepted"] == client["verdicts"]["trained"] == 12
        assert len(made[-1].found) == 12
    assert list_letters(run_dir / "dead") == []


class Other(Memory):
    """The same algorithm in a later version of its program: its policy records fewer columns."""

    def spec(self) -> Any:
        spec = super().spec()
        return type(spec)(spec.observation_space, spec.action_space, spec.kind, tensors=spec.tensors, columns=spec.columns[:2])


def test_segments_of_an_earlier_policy_in_the_journal_are_quarantined(
    inproc_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> Learner:
        return inproc_lab.learner(run_dir=tmp_path / "run", checkpoint_every_s=1e6)

    cls: Any = Memory

    def factory(observation_space: Any, action_space: Any, parameters: Any, seed: int) -> Any:
        given: dict[str, int] = {"steps_per_update": 1000, "rollout_length": 5}
        return cls(memory_spec(observation_space, action_space), FakeParameters(**given), seed)

    register_algorithm("CHANGES", factory)
    first = start()
    agent = inproc_lab.agent(first, algorithm_name="CHANGES")
    for number in range(3):
        episode(agent, 4, number)
    agent.flush(20.0)
    agent.close()
    first.close()
    cls = Other
    second = start()
    second.wait(client_id="lab", version=0, timeout_s=20.0)
    assert drained(second)["verdicts"]["quarantined"] == 3
    second.close()
    letters = list_letters(tmp_path / "run" / "dead")
    assert len(letters) == 3
    assert all("the columns are o<f4:4" in letter.reason for letter in letters)


def test_values_out_of_bounds_are_quarantined(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, algorithm_name="MEMORY")
    traj, acted = agent.request_for_action(None, np.ones(WIDTH, np.float32))
    action: Any = acted
    for column, value in (("hidden", np.nan), ("state", 1e20), ("hidden", np.inf)):
        action.columns = {**action.columns, column: np.full(WIDTH, value, np.float32)}
        agent.add_to_trajectory(traj, action)
        action.update_reward(1.0)
        agent.mark_end_of_trajectory(traj, action)
        traj, action = agent.request_for_action(None, np.ones(WIDTH, np.float32))
    assert drained(learner, agent)["verdicts"]["quarantined"] == 3


def test_remote_inference_is_refused_in_one_line(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner(inference="auto")
    with pytest.raises(ConfigError, match="kind 'memory' has extra columns, which only a policy in the actor records") as caught:
        inproc_lab.agent(learner, algorithm_name="MEMORY", inference="remote")
    assert caught.value.key == "inference"
    assert "\n" not in str(caught.value)
