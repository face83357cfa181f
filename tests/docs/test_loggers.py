"""The page about loggers: each of its sections runs as typed, and each place has what the learner's own log has."""

import importlib.util
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.learner.run.log_files import read_log

from .player import ROOT, play

pytestmark = pytest.mark.timeout(300)
BLOCK, HEAD = 1 << 15, struct.Struct("<IHB")


@pytest.fixture
def section(tmp_path: Path) -> Any:
    for package in ("torch", "gymnasium", "yaml", "tensorboard", "rich"):
        pytest.importorskip(package)

    def run(title: str) -> tuple[Path, list[dict[str, Any]]]:
        """Play a section of the page, and return its folder and the metrics in the learner's log."""
        page = tmp_path / "page.md"
        page.write_text((ROOT / "docs/howto/loggers.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0])
        folder = play(page, tmp_path).folder
        log = (folder / "learner.log").read_text()
        assert "logger" not in log, log
        events = list(read_log(folder / "runs/learner"))
        assert any(event["event"] == "metrics" and event["episodes"] for event in events)
        return folder, events

    return run


def returns_in(events: list[dict[str, Any]]) -> list[tuple[int, float]]:
    metrics = [event for event in events if event["event"] == "metrics"]
    return [(int(step), total) for event in metrics for step, total, _ in event["episodes"]]


def parameters_in(events: list[dict[str, Any]]) -> dict[str, Any]:
    (ready,) = (event for event in events if event["event"] == "client_ready")
    return dict(ready["parameters"])


def wandb_records(path: Path) -> Iterator[Any]:
    """Yield the records of an offline run: W&B's messages, in blocks of 32 KiB as LevelDB writes them."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    data, at, parts = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while at + HEAD.size <= len(data):
        left = BLOCK - at % BLOCK
        _, size, kind = HEAD.unpack_from(data, at) if left >= HEAD.size else (0, 0, 0)
        if not kind:
            at += left
            continue
        at += HEAD.size
        parts, at = parts + data[at : at + size], at + size
        if kind in (1, 4):  # whole, or the last part
            yield messages.Record.FromString(parts)
            parts = b""


def values_of(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.mark.filterwarnings("ignore")
def test_wandb_has_the_figures_parameters_events_and_the_policy(section: Any) -> None:
    pytest.importorskip("wandb")
    folder, events = section("W&B")
    (file,) = (folder / "runs/learner/wandb").glob("offline-run-*/*.wandb")
    history: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    artefacts, run = [], None
    for record in wandb_records(file):
        match record.WhichOneof("record_type"):
            case "run":
                run = record.run
                config |= values_of(run.config.update)
            case "config":
                config |= values_of(record.config.update)
            case "history":
                history.append(values_of(record.history.item))
            case "summary":
                summary |= values_of(record.summary.update)
            case "artifact":
                artefacts.append(record.artifact)
    assert run is not None and run.display_name == "learner/Pole" and run.run_group == "learner"
    tag = "charts/episodic_return"
    assert [(row["steps"], row[tag]) for row in history if tag in row] == returns_in(events)
    losses = [event["scalars"]["losses/policy_loss"] for event in events if "losses/policy_loss" in event.get("scalars", {})]
    assert losses and [row["losses/policy_loss"] for row in history if "losses/policy_loss" in row] == losses
    parameters = parameters_in(events)
    assert {name: config[name] for name in parameters} == parameters
    document = json.loads((folder / "runs/learner/config.json").read_text())
    assert config["commit"] == document["_comment_run"]["commit"] and config["learner"]["loggers"] == ["tensorboard", "wandb"]
    assert json.loads(summary["events/client_ready.last"])["algorithm"] == "PPO"
    (policy,) = artefacts
    assert {"final", "latest"} <= set(policy.aliases) and policy.type == "model"
    assert "spec.json" in {entry.path for entry in policy.manifest.contents} or policy.manifest.manifest_file_path


READ = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient()
(run,) = client.search_runs([client.get_experiment_by_name("rl4sys").experiment_id])
read = lambda key: [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, key)]
print(json.dumps({
    "name": run.info.run_name, "status": run.info.status, "params": run.data.params, "tags": run.data.tags,
    "returns": read("charts/episodic_return"),
    "files": sorted(file.path for folder in ("", "final") for file in client.list_artifacts(run.info.run_id, folder)),
}))
"""


def test_mlflow_has_the_figures_parameters_events_and_the_policy(section: Any) -> None:
    found = importlib.util.find_spec("mlflow")
    if found is None or subprocess.run([sys.executable, "-c", "import mlflow.tracking"], capture_output=True).returncode:
        pytest.skip("MLflow is not installed, or has another protobuf")
    folder, events = section("MLflow")
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"file:{folder}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    run = json.loads(subprocess.run([sys.executable, "-c", READ], env=environment, check=True, capture_output=True).stdout)
    assert run["name"] == "learner/Pole" and run["status"] == "FINISHED"
    assert sorted(map(tuple, run["returns"])) == sorted(returns_in(events))
    assert json.loads(run["tags"]["events/client_ready"])["algorithm"] == "PPO"
    parameters = {key: value if isinstance(value, str) else json.dumps(value) for key, value in parameters_in(events).items()}
    assert run["params"] == {"algorithm": "PPO", **parameters}
    commit = json.loads((folder / "runs/learner/config.json").read_text())["_comment_run"]["commit"]
    assert run["tags"]["mlflow.source.git.commit"] == commit
    assert {"learner.json", "final/spec.json", "final/policy.safetensors"} <= set(run["files"])
    assert not (folder / "runs/learner/tensorboard").exists()


def test_a_logger_of_the_readers_own_gets_the_same_as_the_log(section: Any) -> None:
    folder, events = section("Your own")
    (file,) = folder.glob("learner-*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    tag = "charts/episodic_return"
    assert [(line["step"], line[tag]) for line in lines if tag in line] == returns_in(events)
    # Those of the start precede the opening of the log, and go to no logger.
    told = [line["event"] for line in lines if "event" in line]
    assert told == [event["event"] for event in events if event["event"] not in ("metrics", "learner_started")]
    assert list((folder / "runs/learner/tensorboard/Pole").iterdir())
