"""Tests of torch modules of a user as networks: the graph that actors get, training, and refused modules."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl4sys_zmq.algorithms import make_algorithm, planned_policy
from rl4sys_zmq.algorithms.action_distributions import Categorical
from rl4sys_zmq.algorithms.networks import NETWORKS, ReplayShape, register_network
from rl4sys_zmq.algorithms.networks.module import module_network
from rl4sys_zmq.algorithms.networks.module_export import export_module
from rl4sys_zmq.algorithms.networks.module_networks import ModuleNetworks
from rl4sys_zmq.config.options import integer, option
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.testing import check_policy
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

from .test_resume import flat_of, segments, updates

pytest.importorskip("onnx")
OBSERVED, ACTED, CONTINUOUS = BoxSpace((3,)), DiscreteSpace(4, 1), BoxSpace((2,), low=-1.0, high=1.0)
PAGE = Path(__file__).parents[2] / "docs/reference/networks.md"


@dataclass(frozen=True, kw_only=True)
class Options:
    width: int = option(integer(1), 8, doc="units of the hidden layers")


class Residual(nn.Module):
    """A network with a skip connection: it adds the output of its second layer to that of its first layer."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, width), nn.Linear(width, width), nn.Linear(width, outputs)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        last: Tensor = self.last(hidden + nn.functional.gelu(self.second(self.norm(hidden))))
        return last


def residual(options: Options, space: BoxSpace, outputs: int) -> nn.Module:
    return Residual(options.width, outputs)


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(NETWORKS, "_entries", {})
    register_network(module_network("residual", Options, residual, summary="A residual network."))
    yield


def test_an_actor_computes_what_the_module_does() -> None:
    pytest.importorskip("onnxruntime")
    algorithm = make_algorithm("PPO", OBSERVED, ACTED, {"network": {"kind": "residual", "width": 6}}, 1)
    spec = algorithm.spec()
    assert [tensor.shape for tensor in spec.tensors][:2] == [(6, 3), (6,)]
    network = ModuleNetworks(residual, Options(width=6), OBSERVED, ReplayShape(outputs=(4, 1)))

    def log_probs(views: Any, observed: Any, raw: Any) -> Any:
        network.flat[network.parts[0]] = torch.from_numpy(np.concatenate([view.ravel() for view in views.values()]))
        with torch.no_grad():
            outputs = network.one(0, torch.from_numpy(observed))
        return Categorical(outputs).log_probs(torch.from_numpy(raw - ACTED.start)).numpy()

    check_policy(spec, algorithm.snapshot(), log_probs=log_probs)


@pytest.mark.parametrize("actions", [ACTED, CONTINUOUS], ids=str)
def test_training_goes_on_to_the_last_bit(actions: Any) -> None:
    given = {"network": "residual", "steps_per_update": 48}
    state = torch.random.get_rng_state()
    through, same, resumed = (make_algorithm("PPO", OBSERVED, actions, given, seed) for seed in (3, 3, 4))
    assert torch.equal(state, torch.random.get_rng_state())
    assert np.array_equal(flat_of(through), flat_of(same)) and not np.array_equal(flat_of(through), flat_of(resumed))
    source = segments(actions, 11)
    updates(through, source, 2)
    resumed.load(through.state())
    further = [next(source) for _ in range(12)]
    assert updates(through, iter(further), 3) == updates(resumed, iter(further), 3)


def refused(problem: str, build: Any, space: Any = OBSERVED) -> None:
    register_network(module_network("bad", Options, build))
    with pytest.raises(ConfigError, match=problem):
        planned_policy("PPO", space, ACTED, {"network": "bad"})


def test_a_module_with_buffers_is_refused() -> None:
    refused("buffer 'running_mean'", lambda options, space, outputs: nn.BatchNorm1d(3))


def test_a_module_with_dropout_is_refused() -> None:
    """Actors act without dropout, so the ratio of the probabilities would not be 1 before the first step."""

    def dropping(p: float) -> Any:
        return lambda options, space, outputs: nn.Sequential(nn.Linear(3, 8), nn.Dropout(p), nn.Linear(8, outputs))

    refused("dropout layer '1', but actors act without dropout", dropping(0.5))
    register_network(module_network("inactive", Options, dropping(0.0)))
    assert planned_policy("PPO", OBSERVED, ACTED, {"network": "inactive"}) is not None


def test_a_module_trains_in_evaluation_mode() -> None:
    """A dropout within the module's own code has no effect either."""

    class Dropping(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(super().forward(x), 0.5, self.training)

    def build(options: Options, space: BoxSpace, outputs: int) -> nn.Module:
        return Dropping(3, outputs)

    register_network(module_network("dropping", Options, build))
    network = ModuleNetworks(build, Options(), OBSERVED, ReplayShape(outputs=(4, 1)))
    network.initialise(torch.Generator().manual_seed(1), (0.01, 1.0))
    with torch.no_grad():
        outputs = [network.one(0, torch.ones(1, 3)) for _ in range(8)]
    assert all(torch.equal(outputs[0], other) for other in outputs)


def test_a_module_without_parameters_is_refused() -> None:
    refused("has no parameters", lambda options, space, outputs: nn.Identity())


def test_a_module_that_cannot_be_exported_is_refused() -> None:
    class Sorted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.sort(dim=1).values)

    refused("unknown operator 'TopK'|cannot export", lambda options, space, outputs: Sorted(3, outputs))


def test_a_module_of_another_size_is_refused() -> None:
    pytest.importorskip("onnxruntime")
    from rl4sys_zmq.policies import require_policy

    register_network(module_network("wide", Options, lambda options, space, outputs: nn.Linear(3, outputs + 1)))
    spec = planned_policy("PPO", OBSERVED, ACTED, {"network": "wide"})
    check = require_policy("onnx").check
    assert spec is not None and check is not None
    with pytest.raises(ConfigError, match=r"shape \(2, 5\) for 2 observations; expected \(2, 4\)|cannot run"):
        check(spec)


def test_another_space_is_refused() -> None:
    refused("needs a Box of observations", residual, DiscreteSpace(3))


def test_without_onnx_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    export_module.cache_clear()
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"pip install 'rl4sys-zmq\[export\]'"):
        planned_policy("PPO", OBSERVED, ACTED, {"network": {"kind": "residual", "width": 5}})


def test_the_page_shows_a_module() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    [block] = [block for block in blocks if "module_network" in block]
    exec(compile(block, str(PAGE), "exec"), {"__name__": __name__})
    spec = planned_policy("PPO", OBSERVED, ACTED, {"network": {"kind": "skip", "width": 4}})
    assert spec is not None and spec.kind == "onnx"
