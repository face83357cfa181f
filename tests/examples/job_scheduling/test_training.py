"""A short training through the learner, also in RL4Sys's form, and the comparison with the classic schedulers."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit import until

pytest.importorskip("torch")
pytest.importorskip("gymnasium")
pytest.importorskip("tensorboard")
pytest.importorskip("safetensors")

from job_scheduling import evaluate, rl4sys_form, study, train
from job_scheduling.environment import Scheduling
from job_scheduling.lublin import generate
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner import Learner

from .traces import write_swf

SETTINGS = train.Settings(
    steps=256,
    every_versions=1,
    episodes=2,
    rules=Scheduling(length=48, backfilling=True),
    parameters=(
        ("network", {"kind": "job_scorer", "hidden_sizes": [8], "value_units": 8}),
        ("steps_per_update", 64),
        ("rollout_length", 16),
        ("minibatch_size", 32),
    ),
)


def train_with_threads(settings: train.Settings, run_dir: Path) -> dict[str, Any]:
    """Train with actors in threads until a version has been evaluated. Return the status of the client."""
    stop = threading.Event()
    with Learner(train.learner_config(settings, run_dir)) as learner:
        actors = [threading.Thread(target=train.act, args=(learner.address, settings, number, stop)) for number in range(2)]
        for actor in actors:
            actor.start()
        try:
            learner.wait(client_id=train.CLIENT, version=3, timeout_s=60.0)
            until(lambda: learner.status()["clients"][train.CLIENT]["evaluator"].get("evaluations"), learner.status)
        finally:
            stop.set()
            for actor in actors:
                actor.join(60.0)
        status: dict[str, Any] = learner.status()["clients"][train.CLIENT]
        learner.save(timeout_s=30.0)
    return status


def test_a_scheduler_is_trained_and_compared(tmp_path: Path, call: Any) -> None:
    pytest.importorskip("matplotlib")
    trace = write_swf(tmp_path / "jobs.swf", generate(300, 256, 3, 1.5))
    run_dir = tmp_path / "run"
    status = train_with_threads(replace(SETTINGS, trace=trace, train_windows=3), run_dir)
    assert status["verdicts"]["quarantined"] == status["verdicts"]["refused"] == 0
    line = train.report_line(1.0, status)
    assert "decisions" in line and "held out" in line
    common = ["--length", 48, "--generated", 2, "--trace", trace, "--windows", 3, 5, "--backfilling"]
    files = ["--json", tmp_path / "figures.json", "--plot", tmp_path / "boxes.png"]
    code, out, _ = call(evaluate, run_dir, *common, *files)
    assert code == 0 and "| jobs 3 to 5 |" in out
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert list(figures) == ["jobs 3 to 5", "load 0.9", "load 1.1"]
    assert all(len(values) == 2 for values in figures["load 0.9"].values())
    assert list(figures["load 0.9"])[-1] == "policy"
    assert (tmp_path / "boxes.png").read_bytes().startswith(b"\x89PNG")


def test_the_classic_schedulers_are_compared_alone(tmp_path: Path, call: Any) -> None:
    code, out, _ = call(evaluate, "--length", 40, "--generated", 1, "--loads", 1.0, "--objective", "waiting_time")
    assert code == 0 and "| load 1 |" in out
    assert call(evaluate, "--loads")[0] == 1
    assert call(evaluate, tmp_path / "none", "--loads", 1.0)[0] == 1


def test_a_trace_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    trace = write_swf(tmp_path / "jobs.swf", generate(300, 256, 3, 1.5))
    with pytest.raises(ConfigError, match="outside the trace"):
        train.workloads(replace(SETTINGS, trace=trace, train_windows=7))
    assert len(train.workloads(SETTINGS)) == len(train.LOADS)


def test_a_study_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    pytest.importorskip("matplotlib")
    trained = list[tuple[int, bool]]()

    def train_or_stop(settings: train.Settings, run_dir: Path) -> int:
        if len(trained) == 1:
            trained.append((0, False))
            raise KeyboardInterrupt
        trained.append((settings.seed, settings.rules.backfilling))
        small = replace(SETTINGS, seed=settings.seed, rules=replace(settings.rules, length=48))
        return int(train_with_threads(small, run_dir)["steps"])

    monkeypatch.setattr(study, "train", train_or_stop)
    words = [tmp_path / "study", "--forms", "backfilling", "--length", 48, "--generated", 2, "--loads", 1.0, "--seeds", 1, 2]
    words += ["--plot", tmp_path / "curves.png"]
    assert call(study, *words)[0] == 130
    assert list(json.loads((tmp_path / "study" / study.RESULTS).read_text())["backfilling"]["runs"]) == ["1"]
    code, out, _ = call(study, *words)
    assert code == 0 and "| backfilling | load 1, 2 windows |" in out
    assert trained == [(1, True), (0, False), (2, True)]
    results = json.loads((tmp_path / "study" / study.RESULTS).read_text())
    run = results["backfilling"]["runs"]["2"]
    assert run["decisions"] > 0 and run["curve"] and len(run["policy"]["load 1"]) == 2
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_of_a_study() -> None:
    classic = {"F1": [100.0, 300.0], "SJF": [250.0, 250.0], "planned": [100.0, 200.0]}
    runs = {"1": {"policy": {"load 1": [150.0, 150.0]}}, "2": {"policy": {"load 1": [220.0, 200.0]}}}
    last = study.table({"plain": {"classic": {"load 1": classic}, "runs": runs}}).splitlines()[-1]
    assert last == "| plain | load 1, 2 windows | F1 200.0 | 150.0 | 150.0, 210.0 | 25.0, -5.0 % | 10.0 % |"


RL4SYS_FILE: dict[str, Any] = {
    "client_id": "scheduler_of_old",
    "algorithm_name": "PPO",
    "algorithm_parameters": {
        "batch_size": 256,
        "act_dim": 128,
        "seed": 1,
        "traj_per_epoch": 256,
        "clip_ratio": 0.2,
        "gamma": 1.0,
        "lam": 0.97,
        "pi_lr": 3e-4,
        "vf_lr": 1e-3,
        "train_pi_iters": 4,
        "train_v_iters": 4,
        "target_kl": 0.01,
        "input_size": 1024,
        "ent_coef": 0,
        "max_grad_norm": 0.0,
    },
    "act_limit": 1.0,
    "max_traj_length": 256,
    "type": "onpolicy",
    "train_server_address": "localhost:50051",
    "send_frequency": 10,
}
"""The keys of RL4Sys's own file for job scheduling, with smaller epochs."""


def test_a_configuration_in_rl4syss_form_trains(tmp_path: Path, call: Any) -> None:
    (tmp_path / "jobs.json").write_text(json.dumps(RL4SYS_FILE))
    code, out, _ = call(rl4sys_form, tmp_path / "jobs.json", "--epochs", 3, "--length", 60)
    lines = out.splitlines()
    assert code == 0 and [line.split(":")[0] for line in lines[:-1]] == ["epoch 0", "epoch 1", "epoch 2"]
    assert "in the first epoch to" in lines[-1]


def test_a_file_for_other_observations_is_refused(tmp_path: Path, call: Any) -> None:
    parameters = {**RL4SYS_FILE["algorithm_parameters"], "input_size": 8}
    (tmp_path / "jobs.json").write_text(json.dumps({**RL4SYS_FILE, "algorithm_parameters": parameters}))
    code, _, err = call(rl4sys_form, tmp_path / "jobs.json", "--epochs", 3, "--length", 60)
    assert code == 1 and "expected input_size 1024 and act_dim 128" in err
