"""The arithmetic of benchmarks; what they measure is asserted nowhere."""

from __future__ import annotations

from rl4sys_zmq.bench.machine import machine_record
from rl4sys_zmq.bench.pairs import Pairs, measure_pairs, spread


def test_pairs_are_measured_in_turn_and_compared_pair_by_pair() -> None:
    order: list[str] = []
    figures = iter([0.0, 0.0, 2.0, 1.0, 3.0, 9.0, 8.0, 2.0])

    def measure(name: str) -> float:
        order.append(name)
        return next(figures)

    pairs = measure_pairs(lambda: measure("ours"), lambda: measure("baseline"), 3)
    assert order == ["ours", "baseline", "ours", "baseline", "baseline", "ours", "ours", "baseline"]
    assert pairs == Pairs((2.0, 9.0, 8.0), (1.0, 3.0, 2.0))
    assert (pairs.ratios, pairs.differences) == ((2.0, 3.0, 4.0), (1.0, 6.0, 6.0))
    record = pairs.record()
    assert (record["ratio"], record["ratio_spread"], record["ours"]) == (3.0, [2.0, 4.0], 8.0)
    assert spread([3.0, 1.0, 2.0]).text(1) == "2.0 [1.0, 3.0]"


def test_a_record_says_where_and_what() -> None:
    record = machine_record()
    assert record["machine"]["cores"] and record["versions"]["numpy"]
    assert record["commit"] == "unknown" or len(record["commit"]) == 40
