"""Algorithms in a program that changes torch's default dtype and device: nothing depends on them."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rl4sys_zmq
from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.testing import check_algorithm
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, Space

torch = pytest.importorskip("torch")

SEES, ARM = BoxSpace((4,)), BoxSpace((3,), low=-1.0, high=2.0)
PICTURE = BoxSpace((1, 24, 24), "|u1", 0, 255)
ON = {"steps_per_update": 32, "rollout_length": 16}
OFF = {"learning_starts": 8, "batch_size": 8, "train_frequency": 8, "rollout_length": 8}
CNN = {"network": {"kind": "cnn", "channels": [4], "kernels": [8], "strides": [8], "hidden_sizes": [8]}}
GRU = {"network": {"kind": "gru", "units": 4}}
CASES: dict[str, tuple[str, Space, Space, dict[str, Any]]] = {
    "PPO": ("PPO", SEES, DiscreteSpace(3), ON),
    "PPO of several parts": ("PPO", SEES, DictSpace({"aim": ARM, "gear": DiscreteSpace(3)}), ON),
    "PPO with a gru": ("PPO", SEES, ARM, {**ON, **GRU}),
    "PPO with a cnn": ("PPO", PICTURE, ARM, {**ON, **CNN}),
    "RPO": ("RPO", SEES, ARM, {**ON, "num_minibatches": 2, "update_epochs": 2}),
    "A2C": ("A2C", SEES, ARM, ON),
    "IMPALA": ("IMPALA", SEES, DiscreteSpace(3), ON),
    "REINFORCE": ("REINFORCE", SEES, ARM, {"episodes_per_update": 2, "rollout_length": 16}),
    "DQN": ("DQN", SEES, DiscreteSpace(3), {**OFF, "dueling": True, "prioritized": True}),
    "DQN with quantiles": ("DQN", SEES, DiscreteSpace(3), {**OFF, "quantiles": 8}),
    "DQN with a gru": ("DQN", SEES, DiscreteSpace(3), {**OFF, **GRU}),
    "C51": ("C51", SEES, DiscreteSpace(3), OFF),
    "SAC": ("SAC", SEES, ARM, OFF),
    "SAC with a cnn": ("SAC", PICTURE, ARM, {**OFF, **CNN}),
    "discrete SAC": ("SAC", SEES, DiscreteSpace(3), OFF),
    "TD3": ("TD3", SEES, ARM, OFF),
    "BANDIT": ("BANDIT", SEES, DiscreteSpace(3), {}),
}


@pytest.fixture
def changed_defaults() -> Iterator[None]:
    """Let torch create tensors of float64 without memory, unless the code says something else."""
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("case", CASES)
def test_an_algorithm_keeps_the_contract_whatever_the_defaults_of_torch(case: str, changed_defaults: None) -> None:
    name, observations, actions, parameters = CASES[case]
    check_algorithm(ALGORITHMS.get(name), observation_space=observations, action_space=actions, parameters=parameters)


MAKERS = {
    "zeros",
    "ones",
    "empty",
    "full",
    "eye",
    "linspace",
    "logspace",
    "arange",
    "tensor",
    "rand",
    "randn",
    "randint",
    "randperm",
}
LAYERS = {"Linear", "Bilinear", "Conv1d", "Conv2d", "GRU", "GRUCell", "LSTM", "LSTMCell", "LayerNorm", "Embedding"}


def unsaid(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each call of torch that creates a tensor without a dtype or a device."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "nn" as module), attr=name), keywords=keywords):
                said = {keyword.arg for keyword in keywords}
                needed = {"dtype", "device"} if name in (MAKERS if module == "torch" else LAYERS) else set()
                if module == "torch" and name == "as_tensor":
                    needed = {"device"}
                if not needed <= said or (name == "Generator" and not node.args):
                    yield node.lineno, name


def test_every_tensor_of_the_package_is_created_with_a_dtype_and_a_device() -> None:
    root = Path(rl4sys_zmq.__file__).parent
    assert [(path.name, *fault) for path in root.rglob("*.py") for fault in unsaid(path.read_text())] == []
    assert list(unsaid("torch.zeros(3)\nnn.Linear(2, 3, dtype=x)\ntorch.Generator()")) == [
        (1, "zeros"),
        (2, "Linear"),
        (3, "Generator"),
    ]
