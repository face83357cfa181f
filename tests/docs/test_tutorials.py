"""The tutorials run unchanged, with real processes: each file is written, each command is executed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

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
