"""A configuration in RL4Sys's form trains on the environment, with observations as one row of numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from job_scheduling import rl4sys_form

FILE = {
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


def run(monkeypatch: pytest.MonkeyPatch, path: Path, document: object) -> int:
    path.write_text(json.dumps(document))
    monkeypatch.setattr(sys, "argv", ["rl4sys_form", str(path), "--epochs", "3", "--length", "60"])
    return rl4sys_form.main()


def test_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, tmp_path / "jobs.json", FILE) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == ["epoch 0", "epoch 1", "epoch 2"]
    assert "in the first epoch to" in lines[-1]


def test_a_file_for_other_observations_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = {**FILE["algorithm_parameters"], "input_size": 8}  # type: ignore[dict-item]
    assert run(monkeypatch, tmp_path / "jobs.json", {**FILE, "algorithm_parameters": parameters}) == 1
    assert "expected input_size 1024 and act_dim 128" in capsys.readouterr().err
