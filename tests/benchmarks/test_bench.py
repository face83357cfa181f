"""The arithmetic of benchmarks. No test asserts a measured figure."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import peers
from bench.guard import regressions
from bench.pairs import PairedFigures, measure_pairs, spread
from rl4sys_zmq.capacity.machine import machine_record

RESULTS = Path(__file__).parents[2] / "benchmarks/results"


def test_pairs_are_measured_in_turn_and_compared_pair_by_pair() -> None:
    order: list[str] = []
    figures = iter([0.0, 0.0, 2.0, 1.0, 3.0, 9.0, 8.0, 2.0])

    def measure(name: str) -> float:
        order.append(name)
        return next(figures)

    pairs = measure_pairs(lambda: measure("ours"), lambda: measure("baseline"), 3)
    assert order == ["ours", "baseline", "ours", "baseline", "baseline", "ours", "ours", "baseline"]
    assert pairs == PairedFigures((2.0, 9.0, 8.0), (1.0, 3.0, 2.0))
    assert (pairs.ratios, pairs.differences) == ((2.0, 3.0, 4.0), (1.0, 6.0, 6.0))
    record = pairs.record()
    assert (record["ratio"], record["ratio_spread"], record["ours"]) == (3.0, [2.0, 4.0], 8.0)
    assert spread([3.0, 1.0, 2.0]).text(1) == "2.0 [1.0, 3.0]"


def test_a_record_says_where_and_what() -> None:
    record = machine_record()
    assert record["machine"]["cores"] and record["versions"]["numpy"]
    assert record["commit"] == "unknown" or len(record["commit"]) == 40


def test_a_record_has_no_path_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/rl4sys-learner", "capacity", "--constants", "/tmp/some/file.json"])
    assert machine_record()["command"] == "rl4sys-learner capacity --constants file.json"
    monkeypatch.setattr(sys, "argv", ["benchmarks/lag.py", "--json", "results/lag.json"])
    assert machine_record()["command"] == "python benchmarks/lag.py --json results/lag.json"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_committed_record_has_no_path_of_the_machine(path: Path) -> None:
    assert not re.search(r'"(?:[^"]* )?/[^"]*"', path.read_text())


def figures(ratio: float, *, better: str = "lower") -> dict[str, object]:
    return {"ours": 1.0, "baseline": 1.0, "ratio": ratio, "ratio_spread": [0.9 * ratio, 1.1 * ratio], "better": better}


def test_the_guard_compares_ratios_and_knows_what_is_better() -> None:
    earlier = {
        "step": {"tight": {"median_us": figures(1.3)}},
        "ingress": {"P1": figures(0.5, better="higher")},
        "weights": {"own": [{"pair": "own", "dtype": "fp32", "level": 1, "ratio": 1.5, "baseline": 1.25}]},
    }
    assert regressions(earlier, earlier) == []
    now: dict[str, Any] = {
        "step": {"tight": {"median_us": {**figures(1.75), "ours": 100.0}}},
        "ingress": {"P1": figures(0.37, better="higher")},
        "weights": {"own": [{"pair": "own", "dtype": "fp32", "level": 1, "ratio": 1.25, "baseline": 1.25}]},
    }
    assert regressions(earlier, now) == []  # within 1.25 times the worst pair
    now["step"]["tight"]["median_us"] = figures(1.8)
    now["ingress"]["P1"] = figures(0.35, better="higher")
    now["weights"] = {}
    words = regressions(earlier, now)
    assert [w.partition(":")[0] for w in words] == ["step/tight/median_us", "ingress/P1", "weights/own/fp32 level 1"]
    assert "not measured" in words[2]


def test_a_peer_that_cannot_run_says_what_would_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    with pytest.raises(peers.PeerMissing, match="a clone of the repository"):
        peers.run_peer("sb3_ppo")
    (tmp_path / "broken.py").write_text("import surely_not_installed")
    with pytest.raises(peers.PeerMissing, match=r"surely_not_installed.*make peers"):
        peers.run_peer("broken")
    (tmp_path / "works.py").write_text("import sys; print('noise'); print('{\"got\": \"' + sys.argv[1] + '\"}')")
    assert peers.run_peer("works", 3) == {"got": "3"}
