"""The code blocks of how-to pages without their own tests run unchanged, with stand-ins for the reader's names."""

import itertools
import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kit import python_blocks

from rl4sys_zmq import FrozenAgent, RL4SysAgent
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.replay.demonstrations import Demonstration, write_demonstrations
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import BoxSpace

from .player import ROOT, free_port

HOWTO = ROOT / "docs/howto"


def configuration(folder: Path, name: str, address: str, **options: Any) -> None:
    spaces = {"input_size": 2, "act_dim": 3}
    defaults = {"client_id": "page", "algorithm_name": "HOWTO", "train_server_address": address, "connect_timeout_s": 30}
    (folder / name).write_text(json.dumps({**defaults, **spaces, **options}))


@pytest.fixture
def learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    register_algorithm("HOWTO", FakeAlgorithm.factory(steps_per_update=8))
    with Learner(LearnerConfig(bind=f"ipc://{tmp_path}/learner", run_dir=None, shutdown_timeout_s=30.0)) as learner:
        yield learner


class Plant:
    """A plant that fails at every fifth step."""

    def __init__(self) -> None:
        self.steps = itertools.count(1)
        self.step = 0

    def reading(self) -> list[float]:
        return [0.5, -0.5]

    def apply(self, act: Any) -> float:
        assert int(act) in (0, 1, 2)
        self.step = next(self.steps)
        return 1.0

    def is_safe(self, act: Any) -> bool:
        return self.step % 2 == 1

    def failed(self) -> bool:
        return self.step % 5 == 0


class Done(Exception):
    """The exception that ends an endless loop of the page."""


class World:
    def __init__(self, steps: int) -> None:
        self.left = steps

    def reset(self) -> Any:
        return np.zeros(2, np.float32)

    def step(self, act: Any) -> tuple[Any, float, bool]:
        self.left -= 1
        if self.left < 0:
            raise Done
        return np.ones(2, np.float32), 1.0, self.left % 4 == 0


def test_embed(learner: Learner, tmp_path: Path) -> None:
    loop, guarded, alone, batch = python_blocks(HOWTO / "embed.md")
    configuration(tmp_path, "plant.json", learner.address)
    names: dict[str, Any] = {}
    exec(loop, names)
    turns = iter(range(25))
    names["control_loop"](Plant(), lambda: next(turns, None) is not None)
    exec(guarded, names)
    turns = iter(range(25))
    with RL4SysAgent(conf_path=str(tmp_path / "plant.json")) as agent:
        names["guarded_loop"](agent, Plant(), lambda: next(turns, None) is not None, lambda: 2)
        assert agent.stats()["counters"]["overridden_steps"] == 13
    exec(alone, names)
    with names["start_alone"](f"ipc://{tmp_path}/nobody", lambda observation, mask: 2) as agent:
        assert agent.request_for_action(None, [0.5, -0.5])[1].act == 2 and agent.version == -1
    exec(batch, names)
    with RL4SysAgent(conf_path=str(tmp_path / "plant.json")) as agent:
        with pytest.raises(Done):
            names["simulate"](agent, [World(12), World(12)])
        assert agent.stats()["submitted"] >= 4


def test_inference(learner: Learner, tmp_path: Path) -> None:
    acting, serving = python_blocks(HOWTO / "inference.md")
    configuration(tmp_path, "luna_conf.json", learner.address, inference="auto", inference_timeout_s=10)
    names: dict[str, Any] = {"RL4SysAgent": RL4SysAgent, "traj": None, "observation": [0.0, 1.0]}
    exec(acting, names)
    assert int(names["action"].act) in (0, 1, 2)

    names = {
        "predict": lambda payload: {"words": len(payload["audio"])},
        "forward": lambda payload: {"act": payload["obs"] * 2},
        "samples": np.zeros(7, np.float32),
        "observation": np.ones(3, np.float32),
    }
    exec(re.sub(r"\b6379\b", str(free_port()), serving).replace("timeout_s=0.5", "timeout_s=30"), names)
    try:
        assert names["res"] == {"words": 7}
        assert names["future"].result(30)["act"].tolist() == [2.0, 2.0, 2.0]
    finally:
        names["client"].close()
        names["server"].stop()


def test_action() -> None:
    pytest.importorskip("PIL")
    (block,) = python_blocks(HOWTO / "action.md")
    block = re.sub(r"\b(6379|6380)\b", lambda _: str(free_port()), block).replace("10.0.0.5", "127.0.0.1")
    setup, robot, decisions = re.split(r"^# beside the robot|^# where the decisions are made", block, flags=re.MULTILINE)
    ended, shown = threading.Event(), threading.Event()
    moves: list[Any] = []

    class Running:
        def __bool__(self) -> bool:
            return not ended.wait(0.01)

    image = np.zeros((64, 64, 3), np.uint8)
    names: dict[str, Any] = {
        "read": lambda key: image if key == "cam1" else np.zeros(6),
        "arm": SimpleNamespace(move=moves.append),
        "camera": SimpleNamespace(read=lambda: image),
        "running": Running(),
        "show": lambda observation: shown.set(),
        "policy": lambda observation: observation["joints"] + 1.0,
    }
    exec(setup, names)
    with ThreadPoolExecutor(1) as pool:
        serves = pool.submit(exec, robot, names)
        try:
            exec(decisions.replace("    answer", "    assert shown.wait(30)\n    answer"), {**names, "shown": shown}, names)
        finally:
            ended.set()
        serves.result(30)
    assert names["answer"] == {"status": "done"}
    assert [move.tolist() for move in moves] == [[1.0] * 6]


@pytest.mark.timeout(120)
def test_the_program_with_recorded_data_trains_to_its_end(tmp_path: Path) -> None:
    pytest.importorskip("torchrl")
    rng = np.random.default_rng(1)
    episode = Demonstration(
        [rng.uniform(-1, 1, (101, 3)).astype(np.float32)],
        rng.uniform(-1.9, 1.9, (100, 1)).astype(np.float32),
        rng.uniform(-1, 0, 100).astype(np.float32),
        terminated=False,
    )
    write_demonstrations(tmp_path / "pendulum.npz", BoxSpace((3,)), BoxSpace((1,), low=-2.0, high=2.0), [episode] * 3)
    (program,) = python_blocks(HOWTO / "libraries.md")
    assert "UNITS = 50" in program and '"gradient_steps": 100' in program
    program = program.replace("UNITS = 50", "UNITS = 3").replace('"gradient_steps": 100', '"gradient_steps": 2')  # only shorter
    (tmp_path / "offline.py").write_text(program)
    output = subprocess.check_output([sys.executable, "offline.py"], cwd=tmp_path, text=True, timeout=100.0)
    assert output.splitlines()[-1] == "3 of 3 units"
    assert list((tmp_path / "run" / "checkpoints" / "offline").iterdir())


def test_the_program_that_trains_in_one_call_and_its_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = pytest.importorskip("optuna")
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(optuna.logging.get_logger("optuna"), "disabled", True)
    names: dict[str, Any] = {}
    for block in python_blocks(HOWTO / "train.md"):
        for words, instead in (("50_000", "2_000"), ("20_000", "3_000"), ("10_000", "1_500"), ("n_trials=20", "n_trials=3")):
            block = block.replace(words, instead)  # only shorter
        exec(block, names)
    assert names["result"].status["steps"] == 2_000
    assert FrozenAgent(tmp_path / "policies/pole").origin.client_id == "CartPole-v1"
    assert set(names["study"].best_params) == {"learning_rate", "gamma"} and len(names["study"].trials) == 3
