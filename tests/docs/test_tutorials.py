"""The tutorials and the page about deployment run unchanged: each file is written, each command is executed."""

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import python_blocks

from rl4sys_zmq.policies import PolicyOrigin, StoredPolicy
from rl4sys_zmq.policies.graphs.export import encode_onnx
from rl4sys_zmq.policies.initial_weights import read_weights
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot

from .player import BLOCK, ROOT, Played, play

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

pytestmark = pytest.mark.timeout(300)

TUTORIALS = ROOT / "docs/tutorials"


def accounts(played: Played) -> list[dict[str, int]]:
    """Return the counters of the learner's conservation law from each status in the output."""
    return [
        {name: int(number.replace(",", "")) for name, number in re.findall(r"(\w+) ([\d,]+)", line)}
        for line in re.findall(r"accepted [\d,]+.*", played.output)
    ]


def test_first_policy(tmp_path: Path) -> None:
    played = play(TUTORIALS / "first_policy.md", tmp_path, {"--episodes 300": "--episodes 150"})
    assert "target reached" in played.output
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    steps = re.search(r"policy version (\d+) kept the pole up for (\d+) steps", played.output)
    assert steps and int(steps[1]) >= 1 and int(steps[2]) > 8
    assert list((tmp_path / "runs/first/checkpoints/first").iterdir())


def test_embed(tmp_path: Path) -> None:
    played = play(TUTORIALS / "embed.md", tmp_path)
    times = [float(t) for t in re.findall(r"episode \d+: ([\d.]+) s a job", played.output)]
    assert len(times) == 11
    assert min(times[5:10]) < times[0]
    assert times[10] < times[0], "without a learner it acts with the cached policy"
    waited, alone = re.findall(r"(\d+) segments finished, (\d+) dropped here, (\d+) accepted", played.output)
    assert waited[0] == waited[2] and waited[1] == "0"
    assert alone[2] == "0" and int(alone[0]) > 0


def test_trainer(tmp_path: Path) -> None:
    played = play(TUTORIALS / "trainer.md", tmp_path)
    rewards = [float(r) for r in re.findall(r"mean reward (-[\d.]+)", played.output)]
    assert rewards[0] < -3 < -1 < rewards[-1]
    found = re.search(r"weights after (\d+) rounds: \[ ?([-\d. ]+)\]", played.output)
    assert found and int(found[1]) >= 140
    assert [float(w) for w in found[2].split()] == pytest.approx([2.0, -1.0, 0.5], abs=0.3)


def test_production(tmp_path: Path) -> None:
    shorter = {"--episodes 200": "--episodes 40", "--episodes 100": "--episodes 20"}
    played = play(TUTORIALS / "production.md", tmp_path, shorter)
    first, second = [a for a in accounts(played) if "trained" in a]
    assert second["accepted"] > first["accepted"] > 0
    for account in (first, second):
        parts = ("trained", "stale", "quarantined", "pending", "rolled_back")
        assert account["accepted"] == sum(account[part] for part in parts)
    assert set(tomllib.loads((tmp_path / "keys/users.toml").read_text())) == {"ops"}


def test_every_block_of_the_tutorials_is_run() -> None:
    for document in TUTORIALS.glob("*.md"):
        text = document.read_text()
        blocks = re.findall(r"^```(\w+)\n", text, re.MULTILINE)
        assert len(blocks) == len(BLOCK.findall(text)), f"{document.name} has a block that no test runs"
        for language, block in BLOCK.findall(text):
            assert language == "sh" or re.match(r"# \w+\.py\n", block), f"{document.name} has Python without a file name"


DEPLOY = ROOT / "docs/howto/deploy.md"


def test_a_policy_goes_into_production(tmp_path: Path) -> None:
    played = play(DEPLOY, tmp_path)
    exported = re.search(
        r"^client pole, PPO, version (\d+), saved .* ago \([\d,]+ steps, .* training episodes", played.output, re.M
    )
    assert exported and int(exported[1]) >= 1
    assert "policy/policy.safetensors" in played.output
    assert re.search(r"^mean return [\d.]+ \(95 % interval [\d.]+ to [\d.]+\)", played.output, re.M)
    assert f"acting with version {exported[1]} of client pole" in played.output
    steps = re.search(r"the episode had (\d+) steps", played.output)
    assert steps and int(steps[1]) >= 8


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
    exec(next(block for block in python_blocks(DEPLOY) if "onnxruntime" in block), names)
    assert (names["logits"].shape, names["action"].tolist()) == ((1, 2), [0])


def test_a_state_dict_is_converted_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    torch.save(net.state_dict(), "policy.pt")
    exec(next(block for block in python_blocks(DEPLOY) if "torch.load" in block), {})
    spec = mlp_spec(BoxSpace((4,)), DiscreteSpace(2), "categorical", hidden_sizes=(5,))
    weights = read_weights(Path("policy.safetensors"), spec)
    np.testing.assert_array_equal(weights["layers.1.weight"], net[2].weight.detach().numpy())
