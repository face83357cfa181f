"""Tests of `examples/async_learner_actor.py` as its users start it: SAC through a trainer, in threads and in processes."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "async_learner_actor.py"
LIMIT_S = 100.0


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLE), *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=_env())


def _env() -> dict[str, str]:

    return {**os.environ, "PYTHONPATH": str(ROOT)}


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def test_threads_learn_a_little(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("async_learner_actor", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, example)
    spec.loader.exec_module(example)
    monkeypatch.setattr(example, "RECENT_EPISODES", 2)  # of 200 steps
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--max-seconds", str(LIMIT_S), "--target-return", "-1000000"])
    assert example.main() == 0
    assert re.search(r"solved: \d+ steps.*evaluation -\d", capsys.readouterr().out)


@pytest.mark.slow
def test_a_learner_and_an_actor_in_processes_of_their_own_solve_pendulum(tmp_path: Path) -> None:
    address = free_address()
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


def test_an_environment_without_its_extra_names_it() -> None:
    try:
        import mujoco  # noqa: F401
    except ImportError:
        pass
    else:
        pytest.skip("mujoco is installed")
    with start("--env", "HalfCheetah-v5", "--max-seconds", 5) as both:
        said, _ = both.communicate(timeout=LIMIT_S)
    assert both.returncode != 0
    assert "rl4sys-zmq[mujoco]" in said
