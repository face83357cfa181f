"""The table of learning: equal greedy episodes on both sides, rows with their commit, and a page that agrees with the record."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("torch")

from bench import greedy  # noqa: E402
from rl4sys_zmq.algorithms import make_algorithm  # noqa: E402
from rl4sys_zmq.policies.folder import PolicyOrigin, StoredPolicy, encode_policy, write_policy  # noqa: E402
from rl4sys_zmq.values import PolicySnapshot, observation_space_from, space_from  # noqa: E402
from rl4sys_zmq.weights import digest  # noqa: E402

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/learning.md").read_text()
PAIR = "ppo-pendulum"


def script(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"script_{Path(path).stem}", ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


learning = script("benchmarks/learning.py")


@pytest.mark.parametrize(
    ("env_id", "algorithm", "tolerance"),
    [
        ("CartPole-v1", "PPO", 0.0),
        ("LunarLander-v3", "PPO", 0.0),
        ("LunarLander-v3", "DQN", 0.0),
        ("MountainCarContinuous-v0", "SAC", 1e-3),
    ],
)
def test_one_policy_has_the_same_greedy_returns_on_both_sides(
    env_id: str, algorithm: str, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actions of numbers are rounded in another order, so returns of continuous actions are equal but for rounding."""
    pytest.importorskip("sb3_contrib", reason="the extra sb3 is not installed")
    peer = script("benchmarks/peers/sb3.py")
    with gymnasium.make(env_id) as env:
        spaces = observation_space_from(env.observation_space), space_from(env.action_space)
    adapter: Any = make_algorithm(f"sb3:{algorithm}", *spaces, {}, 3)
    spec = adapter.spec()
    weights = spec.flatten(adapter.snapshot())
    snapshot = PolicySnapshot(1, 1, digest(*weights), *weights)
    origin = PolicyOrigin(
        client_id="learning", algorithm_name=algorithm, updates=0, steps=0, saved_unix_s=0.0, episodes=0, mean_return=None
    )
    stored = StoredPolicy(spec=spec, snapshot=snapshot, origin=origin)
    write_policy(tmp_path / "policy", encode_policy(stored))
    monkeypatch.setattr(greedy, "newest_policy", lambda *_: (tmp_path / "policy", stored))

    ours = greedy.greedy_returns(env_id, tmp_path, "learning", episodes=5, first_seed=1000)
    theirs = peer.greedy(adapter._model, env_id, 5, 1000)
    assert len(set(theirs)) > 1 and ours == pytest.approx(theirs, rel=0.0, abs=tolerance)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Stand-ins for the trainings, which note their side and seed."""
    done: list[tuple[str, int]] = []

    def stand_in(side: str) -> Any:
        def run(case: Any, seed: int) -> dict[str, Any]:
            done.append((side, seed))
            return {"training": [1.0, 2.0, 3.0], "greedy": 4.0, "greedy_episodes": learning.EPISODES, "seconds": 5.0}

        return run

    monkeypatch.setattr(learning, "ours", stand_in("ours"))
    monkeypatch.setattr(learning, "theirs", stand_in("sb3"))
    monkeypatch.setattr(learning, "random_return", lambda _: -100.0)
    return done


def run_learning(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["learning", *map(str, words)])
    learning.main()


def test_a_row_is_not_repeated_and_carries_its_commit(
    trained: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "--cases", PAIR, "--json", tmp_path / "rows.json", "--seeds"
    run_learning(monkeypatch, *words, 1)
    run_learning(monkeypatch, *words, 1, 2)
    assert trained == [("ours", 1), ("sb3", 1), ("ours", 2), ("sb3", 2)]
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(rows) == 4 and all(row["commit"] == learning.machine_record()["commit"] for row in rows)


def test_rows_of_earlier_commits_are_trained_again(
    trained: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    commits = []
    for _ in range(3):
        git("commit", "--quiet", "--allow-empty", "--message", "one")
        commits.append(git("rev-parse", "HEAD"))
    monkeypatch.setattr(learning, "FILE", tmp_path / "rows.json")
    row = {"case": PAIR, "side": "ours", "training": [0.0, 0.0, 0.0]}
    rows = [{**row, "seed": 1, "commit": commits[0]}, {**row, "seed": 2, "commit": commits[1]}, {**row, "seed": 3}]
    (tmp_path / "rows.json").write_text(json.dumps({"random": {}, "rows": rows}))

    words = "--cases", PAIR, "--sides", "ours", "--seeds", 1, 2, 3, "--json", tmp_path / "rows.json", "--since"
    monkeypatch.setattr(learning, "machine_record", lambda: {"commit": commits[2]})
    run_learning(monkeypatch, *words, commits[1])
    assert trained == [("ours", 1), ("ours", 3)]
    found = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert {(row["seed"], row["commit"], row["training"][0]) for row in found} == {
        (1, commits[2], 1.0), (2, commits[1], 0.0), (3, commits[2], 1.0)
    }  # fmt: skip
    run_learning(monkeypatch, *words, commits[1])
    assert len(trained) == 2
    with pytest.raises(SystemExit, match="--since no-commit: "):
        run_learning(monkeypatch, *words, "no-commit")


def test_only_returns_of_equal_episodes_stand_side_by_side_without_a_mark() -> None:
    old, new = {"training": [0.0] * 3, "greedy": 30.0}, {"training": [0.0] * 3, "greedy": 40.0, "greedy_episodes": 50}
    assert learning.side_cells([old, old], compared=True)[1] == r"30\*"
    assert learning.side_cells([old, old], compared=False)[1] == "30"
    assert learning.side_cells([old, new], compared=True)[1] == "40"


def test_the_page_has_the_table_of_the_record() -> None:
    """After a training: ``python benchmarks/learning.py --page``."""
    _, _, rest = PAGE.partition(learning.START)
    assert rest.partition(learning.END)[0] == learning.table(learning.read(learning.FILE)) + "\n"


def test_other_pages_have_the_figures_of_the_table() -> None:
    lines = learning.table(learning.read(learning.FILE)).splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    ratio = r"\d+\.\d\d \[\d+\.\d\d, \d+\.\d\d\]"
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for found in re.findall(rf"{ratio} / {ratio} / {ratio}", page.read_text()):
            assert found in [row[-2] for row in cells], page
