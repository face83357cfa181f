"""A learner evaluates the versions that it publishes, keeps the best one, and still knows it after a restart."""

from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.actor import FrozenAgent
from rl4sys_zmq.config import ClientConfig, EvaluationConfig
from rl4sys_zmq.policies import read_policy

from .conftest import Lab
from .engine_lab import client_when

pytest.importorskip("gymnasium")

PATIENCE_S = 120.0
EVALUATION = EvaluationConfig(env={"id": "CartPole-v1", "max_episode_steps": 10}, every_versions=1, episodes=2)


def test_versions_are_evaluated_and_the_best_one_survives_a_restart(inproc_lab: Lab, tmp_path: Path) -> None:
    options: dict[str, Any] = {"clients": {"lab": ClientConfig(evaluation=EVALUATION)}, "run_dir": tmp_path / "run"}
    learner = inproc_lab.learner(**options)
    agent = inproc_lab.agent(learner, overflow="wait")
    first = client_when(learner, lambda client: "eval/mean_return" in client["scalars"])
    assert first["scalars"]["eval/mean_return"] == first["evaluator"]["mean_return"] > 0
    Lab.episode(agent, 64)
    client = client_when(learner, lambda client: client["version"] >= 4 and client["evaluator"]["version"] == client["version"])
    best = client["evaluator"]["best"]
    assert read_policy(best).snapshot.version == client["evaluator"]["best_version"]
    with FrozenAgent(best) as frozen:
        assert frozen.origin.client_id == "lab"
    agent.close()
    learner.close()
    again = inproc_lab.learner(**options)
    later = client_when(again, lambda client: client["evaluator"].get("evaluations", 0) >= 1)
    assert later["evaluator"]["best_return"] >= client["evaluator"]["best_return"]
    again.close()
    log = "".join(path.read_text() for path in (tmp_path / "run").glob("log*.jsonl"))
    assert '"best_policy"' in log and '"eval/mean_return"' in log


def test_an_environment_that_does_not_fit_is_an_alarm_and_training_continues(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner(clients={"lab": ClientConfig(evaluation=EvaluationConfig(env="Pendulum-v1"))})
    agent = inproc_lab.agent(learner, overflow="wait")
    client = client_when(learner, lambda client: "evaluation_failed" in client["alarms"])
    assert "Pendulum-v1" in client["alarms"]["evaluation_failed"]["text"]
    assert client["alarms"]["evaluation_failed"]["text"] == client["evaluator"]["error"]
    Lab.episode(agent, 32)
    assert client_when(learner, lambda client: client["version"] >= 1, PATIENCE_S)["state"] == "running"
