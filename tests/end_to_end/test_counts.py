"""Counts of episodes. No episode is lost or counted twice when the learner or a learner thread restarts."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.learner import Learner, register_algorithm
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore, read_manifest
from rl4sys_zmq.learner.run.log_files import read_log
from rl4sys_zmq.ops.curves import read_curves
from rl4sys_zmq.ops.report import report_lines
from rl4sys_zmq.testing import FakeAlgorithm

from .conftest import Lab
from .engine_lab import client_when

PATIENCE_S = 30.0
register_algorithm("EPISODES", FakeAlgorithm.factory(steps_per_update=8, rollout_length=16))
register_algorithm("EPISODES_OFF", FakeAlgorithm.factory("offpolicy", steps_per_update=8, rollout_length=16))


def start(lab: Lab, run_dir: Path | None) -> Learner:
    return lab.learner(run_dir=run_dir, checkpoint_every_s=3600.0)


def client_with(learner: Learner, **wanted: Any) -> dict[str, Any]:
    """Return the client's status, once the client runs and has the `wanted` values."""
    ready = {"state": "running", "resuming": False, **wanted}
    return client_when(learner, lambda client: all(client.get(name) == value for name, value in ready.items()))


def play(lab: Lab, learner: Learner, rewards: list[float], algorithm: str) -> None:
    agent = lab.agent(learner, algorithm_name=algorithm, actor_id="a1", overflow="drop_oldest")
    for reward in rewards:
        lab.episode(agent, 3, reward)
        agent.flush(PATIENCE_S)  # one message for each episode
    stats = agent.stats()
    assert stats["episodes"] == len(rewards)
    assert stats["mean_return"] == pytest.approx(3 * sum(rewards) / len(rewards))
    agent.close()


@pytest.mark.parametrize("algorithm", ["EPISODES", "EPISODES_OFF"])
def test_a_service_without_episodes_has_a_mean_reward(inproc_lab: Lab, tmp_path: Path, algorithm: str) -> None:
    learner = start(inproc_lab, tmp_path / "run")
    agent = inproc_lab.agent(learner, algorithm_name=algorithm, max_traj_length=12)
    traj = None
    for step in range(49):  # the steps before the last segment is open
        traj, action = agent.request_for_action(traj, np.zeros(4, np.float32))
        agent.add_to_trajectory(traj, action)
        action.update_reward(step % 4)
    agent.flush(PATIENCE_S)
    client = client_with(learner, steps=48, mean_reward=1.5)
    assert (client["episodes"], client["mean_return"]) == (0, None)
    assert "return -  reward/step 1.5  episodes 0" in "\n".join(report_lines(learner.status(), time.time()))
    learner.close()
    last = [event for event in read_log(tmp_path / "run") if event["event"] == "metrics"][-1]
    assert last["scalars"]["charts/mean_reward"] == 1.5


@pytest.mark.parametrize("algorithm", ["EPISODES", "EPISODES_OFF"])
def test_episodes_and_returns_survive_a_restart(inproc_lab: Lab, tmp_path: Path, algorithm: str) -> None:
    lab, run = inproc_lab, tmp_path / "run"
    first = start(lab, run)
    play(lab, first, [1.0, 2.0, 3.0, 4.0, 5.0], algorithm)  # on-policy: three make an update, and two wait for the next
    before = client_with(first, episodes=5)
    assert before["mean_return"] == 9.0 and before["mean_length"] == 3.0
    first.close()
    (manifest,) = map(read_manifest, CheckpointStore(run / "checkpoints" / "lab").newest())
    assert manifest.episodes == (5 if algorithm == "EPISODES_OFF" else 3)
    assert manifest.steps == 3 * manifest.episodes == 3 * len(manifest.recent)
    assert sum(mark.next_seq for mark in manifest.marks) == manifest.episodes

    second = start(lab, run)
    after = client_with(second, episodes=5)
    assert (after["mean_return"], after["mean_length"], after["steps"]) == (9.0, 3.0, 15)
    play(lab, second, [6.0], algorithm)
    assert client_with(second, episodes=6)["mean_return"] == 10.5

    second.restart("lab")  # returns to the checkpoint, and receives the later segments again
    assert client_with(second, restarts=1, episodes=6)["mean_return"] == 10.5
    second.close()
    ready = [event for event in read_log(run) if event["event"] == "client_ready"]
    assert [event["episodes"] for event in ready] == [0, manifest.episodes, manifest.episodes]
    (curve,) = read_curves(run)
    assert curve.returns.tolist() == [3.0, 6.0, 9.0, 12.0, 15.0, 18.0]
    assert curve.steps.tolist() == [3, 6, 9, 12, 15, 18]


def test_a_client_without_files_counts_from_zero_after_a_restart(inproc_lab: Lab) -> None:
    learner = start(inproc_lab, None)
    play(inproc_lab, learner, [1.0, 2.0, 3.0], "EPISODES")
    client_with(learner, episodes=3)
    learner.restart("lab")
    assert client_with(learner, restarts=1)["episodes"] == 0
