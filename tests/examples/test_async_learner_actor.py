"""Tests of `examples/async_learner_actor.py` as its users start it: SAC through a trainer, in threads and in processes."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit import free_port

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "async_learner_actor.py"
LIMIT_S = 100.0


def start(*words: object) -> subprocess.Popen[str]:
    command, environment = [sys.executable, str(EXAMPLE), *map(str, words)], {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment)


def test_threads_learn_a_little(monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    example = importlib.import_module("async_learner_actor")
    monkeypatch.setattr(example, "RECENT_EPISODES", 2)  # of 200 steps
    code, out, _ = call(example, "--max-seconds", LIMIT_S, "--target-return", -1000000)
    assert code == 0 and re.search(r"solved: \d+ steps.*evaluation -\d", out)


@pytest.mark.slow
def test_a_learner_and_an_actor_in_processes_of_their_own_solve_pendulum(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    learner = start("--learner", "--address", address, "--max-seconds", LIMIT_S, "--run-dir", tmp_path / "run")
    actor = start("--actor", "--address", address, "--max-seconds", LIMIT_S - 10, "--target-return", -200)
    try:
        said, _ = actor.communicate(timeout=LIMIT_S)
        assert actor.returncode == 0, said
        solved = re.search(r"solved: \d+ steps.*evaluation (-?[\d.]+)", said)
        assert solved, said
        assert float(solved[1]) >= -200.0
        assert learner.poll() is None
    finally:
        for process in (actor, learner):
            process.kill()
            process.communicate()


@pytest.mark.skipif(importlib.util.find_spec("mujoco") is not None, reason="mujoco is installed")
def test_an_environment_without_its_extra_names_it() -> None:
    with start("--env", "HalfCheetah-v5", "--max-seconds", 5) as both:
        said, _ = both.communicate(timeout=LIMIT_S)
    assert both.returncode != 0
    assert "rl4sys-zmq[mujoco]" in said
