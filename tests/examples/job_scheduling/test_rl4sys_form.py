"""A configuration in RL4Sys's form trains on the environment, with observations as one row of numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from job_scheduling import rl4sys_form

FILE: dict[str, Any] = {
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


def test_it_trains(tmp_path: Path, call: Any) -> None:
    (tmp_path / "jobs.json").write_text(json.dumps(FILE))
    code, out, _ = call(rl4sys_form, tmp_path / "jobs.json", "--epochs", 3, "--length", 60)
    lines = out.splitlines()
    assert code == 0 and [line.split(":")[0] for line in lines[:-1]] == ["epoch 0", "epoch 1", "epoch 2"]
    assert "in the first epoch to" in lines[-1]


def test_a_file_for_other_observations_is_refused(tmp_path: Path, call: Any) -> None:
    parameters = {**FILE["algorithm_parameters"], "input_size": 8}
    (tmp_path / "jobs.json").write_text(json.dumps({**FILE, "algorithm_parameters": parameters}))
    code, _, err = call(rl4sys_form, tmp_path / "jobs.json", "--epochs", 3, "--length", 60)
    assert code == 1 and "expected input_size 1024 and act_dim 128" in err
