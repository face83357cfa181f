"""The commands of ``docs/howto/deploy.md`` run unchanged, with real processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.policies import PolicyOrigin, StoredPolicy
from rl4sys_zmq.policies.graphs.export import encode_onnx
from rl4sys_zmq.policies.initial_weights import read_weights
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot

from .player import ROOT, play

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

PAGE = ROOT / "docs/howto/deploy.md"


@pytest.mark.timeout(300)
def test_a_policy_goes_into_production(tmp_path: Path) -> None:
    played = play(PAGE, tmp_path)
    exported = re.search(
        r"^client pole, PPO, version (\d+), saved .* ago \([\d,]+ steps, .* training episodes", played.output, re.M
    )
    assert exported and int(exported[1]) >= 1
    assert "policy/policy.safetensors" in played.output
    assert re.search(r"^mean return [\d.]+ \(95 % interval [\d.]+ to [\d.]+\)", played.output, re.M)
    assert f"acting with version {exported[1]} of client pole" in played.output
    steps = re.search(r"the episode had (\d+) steps", played.output)
    assert steps and int(steps[1]) >= 8


def blocks() -> list[str]:
    return re.findall(r"^```python\n(import .*?)^```", PAGE.read_text(), re.M | re.S)


def test_the_graph_runs_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    spec = mlp_spec(BoxSpace((4,)), DiscreteSpace(2), "categorical")
    flat = np.zeros(spec.size, np.float32)
    origin = PolicyOrigin(client_id="pole", algorithm_name="PPO", updates=1, steps=1, saved_unix_s=1.0)
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy/policy.onnx").write_bytes(encode_onnx(StoredPolicy(spec, PolicySnapshot(1, 1, 0, flat), origin)))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(next(block for block in blocks() if "onnxruntime" in block), names)
    assert (names["logits"].shape, names["action"].tolist()) == ((1, 2), [0])


def test_a_state_dict_is_converted_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    torch.save(net.state_dict(), "policy.pt")
    exec(next(block for block in blocks() if "torch.load" in block), {})
    spec = mlp_spec(BoxSpace((4,)), DiscreteSpace(2), "categorical", hidden_sizes=(5,))
    weights = read_weights(Path("policy.safetensors"), spec)
    np.testing.assert_array_equal(weights["layers.1.weight"], net[2].weight.detach().numpy())
