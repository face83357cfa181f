"""The start of a client's algorithm in its learner thread."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytest.importorskip("torch")

LIMIT_S = 60.0
CODE = """
import sys, threading
from rl4sys_zmq.learner.building import build_algorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, space_to_json
from rl4sys_zmq.wire.messages import AssignClient

spaces = space_to_json(BoxSpace((3,))), space_to_json(DiscreteSpace(2))
assign = AssignClient(
    "c", bytes(8), 7, sys.argv[1], {}, *spaces, seed=3, max_policy_lag=-1, on_lag="drop", pacing_lag=-1, publish_every_updates=0,
    max_parameters=10**7, checkpoints="", checkpoint_every_s=10.0, journal_id=1, torch_threads=3,
)
assert "torch" not in sys.modules
build_algorithm(assign, None, threading.Event())
import torch

print("threads", torch.get_num_threads())
"""


@pytest.mark.parametrize(("name", "library"), [("PPO", "torch"), ("sb3:TRPO", "sb3_contrib"), ("torchrl:IQL", "torchrl")])
def test_torch_computes_with_the_threads_that_the_configuration_gives(name: str, library: str) -> None:
    """Otherwise two threads of torch wait for each other on a busy machine, which makes small networks several times slower."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    done = subprocess.run([sys.executable, "-c", CODE, name], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.stdout.split() == ["threads", "3"], (done.stdout, done.stderr)
