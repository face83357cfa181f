"""The start of a client's algorithm in its learner thread."""

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit import assignment

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.training import building
from rl4sys_zmq.learner.training.train_loop import TrainLoop
from rl4sys_zmq.values import BoxSpace, DiscreteSpace
from rl4sys_zmq.wire.thread_messages import ChangeParameters

pytest.importorskip("torch")

from rl4sys_zmq.algorithms import make_algorithm

LIMIT_S = 60.0
CODE = f"""
import sys, threading
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from kit import assignment
from rl4sys_zmq.learner.training.building import build_algorithm

assert "torch" not in sys.modules
build_algorithm(assignment(sys.argv[1], torch_threads=3), None, threading.Event())
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


@pytest.mark.parametrize(("option", "expected"), [(0, 16), (7, 7)])
def test_the_option_publish_every_updates_stays_in_force_after_a_change_of_parameters(option: int, expected: int) -> None:
    given = {"samples_per_insert": 16.0, "hidden_sizes": [4]}
    loop: Any = object.__new__(TrainLoop)
    loop._algorithm = make_algorithm("DQN", BoxSpace((3,)), DiscreteSpace(2), given, 1)
    loop._algorithm.publish_every_updates = option
    loop._assign, loop._ranks = SimpleNamespace(publish_every_updates=option), None
    loop._handle(ChangeParameters({**given, "gradient_steps": 1, "batch_size": 256}))
    assert loop._algorithm.publish_every_updates == expected


@pytest.mark.parametrize("network", ["mlp", "gru"])
def test_a_replay_that_is_larger_than_the_memory_of_the_machine_is_refused_before_the_client_starts(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "available_bytes", lambda: 1_000_000)
    assign = assignment("DQN", parameters={"network": network})
    words = r"buffer_size: a full replay of 100,000 steps needs [\d,]+ bytes.* 1,000,000 bytes of memory"
    with pytest.raises(ConfigError, match=words):
        building.build_algorithm(assign, None, threading.Event())


def test_a_name_that_differs_between_libraries_is_a_warning_of_the_start(caplog: pytest.LogCaptureFixture) -> None:
    for like in ({}, {"like": "sb3"}, {"like": "rl4sys_zmq"}):
        assign = assignment("PPO", parameters={"vf_coef": 0.5, "hidden_sizes": [4], **like})
        building.build_algorithm(assign, None, threading.Event())
    (line,) = [record.getMessage() for record in caplog.records if "vf_coef" in record.getMessage()]
    assert line.startswith("client c: vf_coef: like: sb3: weight of the whole squared error") and "like: rl4sys_zmq" in line
