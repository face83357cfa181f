"""The loggers for W&B and MLflow: a learner that starts again, a changed parameter, a client that is forgotten."""

from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.learner.run.run_loggers import RunInfo

pytestmark = pytest.mark.filterwarnings("ignore")


def play(logger: Any, folder: Path, learning_rate: float, step: int) -> None:
    """Make the calls of one life of a learner, in which a parameter changes at the end."""
    logger.open(RunInfo(run_id="1a2b", name="plant", run_dir=folder, config={"bind": "x"}, commit="c0ffee"))
    logger.event("actor_joined", {"client_id": "Luna"}, 90.0)  # before its run
    parameters = {"learning_rate": learning_rate, "sizes": [64, 64], "clip": None}
    logger.event("client_ready", {"client_id": "Luna", "steps": step, "algorithm": "PPO", "parameters": parameters}, 100.0)
    logger.scalars("Luna", step + 10, {"losses/policy_loss": step / 100}, 101.0)
    logger.event("parameters_changed", {"client_id": "Luna", "changes": {"learning_rate": [learning_rate, 0.5]}}, 102.0)
    logger.event("learner_started", {"version": "1"}, 103.0)
    logger.event("client_forgotten" if step else "gap", {"client_id": "Luna"}, 104.0)
    logger.close()


def test_an_mlflow_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking", exc_type=ImportError)
    from rl4sys_zmq.loggers.mlflow_runs import MlflowRuns

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "own name")
    for learning_rate, step in ((0.1, 0), (0.2, 50)):
        play(MlflowRuns(), tmp_path, learning_rate, step)
    client = tracking.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("own name").experiment_id])
    assert run.info.run_name == "plant/Luna" and run.info.status == "FINISHED"
    assert run.data.params == {"learning_rate": "0.1", "sizes": "[64, 64]", "clip": "null", "algorithm": "PPO"}
    assert run.data.tags["changed.learning_rate"] == "0.5" and run.data.tags["events/client_forgotten"] == "{}"
    points = client.get_metric_history(run.info.run_id, "losses/policy_loss")
    assert [(point.step, point.value, point.timestamp) for point in points] == [(10, 0.0, 101_000), (60, 0.5, 101_000)]


def test_a_wandb_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    from rl4sys_zmq.loggers.wandb_runs import WandbRuns

    monkeypatch.setenv("WANDB_MODE", "offline")
    made: list[Any] = []
    begin = WandbRuns._begin

    def noted(self: WandbRuns, *arguments: str) -> Any:
        made.append(begin(self, *arguments))
        return made[-1]

    monkeypatch.setattr(WandbRuns, "_begin", noted)
    try:
        for learning_rate, step in ((0.1, 0), (0.2, 50)):
            play(WandbRuns(), tmp_path, learning_rate, step)
    finally:
        wandb.teardown()
    first, second = made
    assert first.id == second.id and {run.name for run in made} == {"plant/Luna"}
    assert {key: second.config[key] for key in ("learning_rate", "sizes", "clip")} == {
        "learning_rate": 0.5,
        "sizes": [64, 64],
        "clip": None,
    }
    assert second.config["commit"] == "c0ffee" and second.project == "rl4sys"
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2
