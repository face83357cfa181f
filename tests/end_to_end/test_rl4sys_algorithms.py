"""RL4Sys's eleven algorithms train from the blocks of its own ``config.json``, with clients that use RL4Sys's own files."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.rl4sys_blocks import BLOCKS, FLAT
from kit import until

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.algorithms import make_algorithm
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.errors import ConfigError, HandshakeRefused
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

from .conftest import Lab
from .engine_lab import client_of

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(300)

CONTINUOUS = ("DDPG", "RPO", "TD3")
SOONER: dict[str, dict[str, Any]] = {
    "C51": {"learning_starts": 128, "train_q_iters": 5},
    "DDPG": {"train_iters": 1, "publish_every_updates": 8},
    "SAC": {"learning_starts": 128, "train_iters": 10},
    "TD3": {"learning_starts": 128},
}
"""The parameters that the client's own file sets here, with small networks, so that two updates take little time."""


PACING = {"A2C": 0, "A3C": 8, "REINFORCE": 0, "RPO": 0}
"""The default of `pacing_lag` of on-policy algorithms."""


def global_file(folder: Path) -> Path:
    path = folder / "config.json"
    tensorboard = {"tensorboard_writer": {"scalar_tags": "AverageEpRet;LossPi;LossV", "max_count_per_scalar": 10000}}
    content = {
        "default_algorithm": "PPO",
        "algorithms": BLOCKS,
        "model_paths": {"_comment1": "relative", "load_model": "models/", "save_model": "models/"},
        "server": {"training_server": "localhost:50051"},
        "tensorboard": tensorboard,
    }
    path.write_text(json.dumps(content))
    return path


def client_file(folder: Path, name: str, address: str) -> Path:
    path = folder / f"{name}_conf.json"
    content: dict[str, Any] = {
        "client_id": name.lower(),
        "algorithm_name": name,
        "algorithm_parameters": {"input_size": 3, "act_dim": 2, **SOONER.get(name, {})},
        "network_architecture": {"hidden_sizes": [16, 16]},
        "act_limit": 1.0,
        "max_traj_length": 1000,
        "train_server_address": address,
        "send_frequency": 10,
    }
    if name in CONTINUOUS:
        content["continuous"] = True
    path.write_text(json.dumps(content))
    return path


def train(agent: RL4SysAgent, versions: int, steps: int) -> None:
    """Run RL4Sys's loop on random observations, in episodes of `steps` steps, until the agent has `versions` newer versions."""
    rng = np.random.default_rng(0)
    start = agent.version
    while agent.version < start + versions:
        traj: Any = None
        action: Any = None
        for _ in range(steps):
            traj, action = agent.request_for_action(traj, rng.normal(size=3).astype(np.float32))
            action.update_reward(float(np.sum(action.act)))
            agent.add_to_trajectory(traj, action)
        agent.mark_end_of_trajectory(traj, action)


@pytest.mark.parametrize("name", BLOCKS)
def test_it_trains_from_rl4syss_block(inproc_lab: Lab, tmp_path: Path, name: str) -> None:
    library = name == "TRPO"
    if library and importlib.util.find_spec("sb3_contrib") is None:
        pytest.skip("the extra sb3 is not installed")
    options = {"run_dir": None, "torch_threads": 1, "shutdown_timeout_s": 30.0, "engine": "process" if library else "thread"}
    config = LearnerConfig.load(global_file(tmp_path), bind=inproc_lab.new_address(), **options)
    learner = inproc_lab.stack.enter_context(Learner(config))
    read = AgentConfig.load(client_file(tmp_path, name, learner.address), overflow="wait", connect_timeout_s=120.0)
    assert isinstance(read.action_space, DiscreteSpace) is (name not in CONTINUOUS)
    agent = inproc_lab.stack.enter_context(RL4SysAgent(config=read))
    train(agent, versions=2, steps=8 if name == "SAC" else 64)
    agent.flush(60.0)
    client = until(lambda: (c := client_of(learner, name.lower()))["updates"] >= 2 and c, "two updates")
    assert client["state"] == "running" and client["algorithm"] == ("sb3:TRPO" if library else name)
    assert client["pacing_lag"] == PACING.get(name, client["pacing_lag"])
    assert sum(client["policy_lags"].values()) == client["steps"]
    assert not client["verdicts"].get("quarantined") and not client["verdicts"].get("refused")
    given = {key: value for key, value in BLOCKS[name].items() if key not in FLAT and key not in ("type", "seed")}
    assert config.algorithms["sb3:TRPO" if library else name].items() >= given.items()


def test_the_actors_keys_of_the_blocks_are_named_as_ignored(tmp_path: Path) -> None:
    ignored = LearnerConfig.load(global_file(tmp_path)).ignored
    assert set(ignored) == {"model_paths", "tensorboard", *(f"algorithms.*.{key}" for key in (*FLAT, "type"))}


def test_trpo_without_its_engine_is_refused_with_the_remedy(inproc_lab: Lab, tmp_path: Path) -> None:
    learner = inproc_lab.learner()
    with pytest.raises(HandshakeRefused, match=r"sb3:TRPO.*set engine: process"):
        RL4SysAgent(config=AgentConfig.load(client_file(tmp_path, "TRPO", learner.address)))


def test_trpo_without_its_extra_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rl4sys_zmq.algorithms.libraries.sb3", None)
    with pytest.raises(ConfigError, match=r"sb3:TRPO cannot be loaded .*pip install 'rl4sys-zmq\[sb3\]'"):
        make_algorithm("TRPO", BoxSpace((3,)), DiscreteSpace(2), {}, 0)
