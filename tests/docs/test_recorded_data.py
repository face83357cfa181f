"""The program of docs/howto/libraries.md trains on recorded data to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kit import python_blocks

from rl4sys_zmq.replay.demonstrations import Demonstration, write_demonstrations
from rl4sys_zmq.values import BoxSpace

PAGE = Path(__file__).parents[2] / "docs/howto/libraries.md"
LIMIT_S = 100.0
STEPS = 100


@pytest.mark.timeout(LIMIT_S + 20)
def test_the_program_trains_to_its_end(tmp_path: Path) -> None:
    pytest.importorskip("torchrl")
    rng = np.random.default_rng(1)
    episode = Demonstration(
        [rng.uniform(-1, 1, (STEPS + 1, 3)).astype(np.float32)],
        rng.uniform(-1.9, 1.9, (STEPS, 1)).astype(np.float32),
        rng.uniform(-1, 0, STEPS).astype(np.float32),
        terminated=False,
    )
    write_demonstrations(tmp_path / "pendulum.npz", BoxSpace((3,)), BoxSpace((1,), low=-2.0, high=2.0), [episode] * 3)
    (program,) = python_blocks(PAGE)
    assert "UNITS = 50" in program and '"gradient_steps": 100' in program
    program = program.replace("UNITS = 50", "UNITS = 3").replace('"gradient_steps": 100', '"gradient_steps": 2')  # only shorter
    (tmp_path / "offline.py").write_text(program)
    output = subprocess.check_output([sys.executable, "offline.py"], cwd=tmp_path, text=True, timeout=LIMIT_S)
    assert output.splitlines()[-1] == "3 of 3 units"
    assert list((tmp_path / "run" / "checkpoints" / "offline").iterdir())
