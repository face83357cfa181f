"""The benchmarks report their measurements beside a baseline, with the machine. No test asserts a figure."""

import json
from pathlib import Path

import pytest

from bench import measurements
from bench.capacity import SETUPS, measure_setup, predicted_rate
from bench.infer import PERCEPTRONS
from rl4sys_zmq.capacity.constants import RECORDED


def test_the_fan_out_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "CASES", ((4, 2),))
    said: list[str] = []
    options = measurements.BenchOptions(pairs=1, versions=3)
    measurements.measure(["fanout"], options, said.append, tmp_path / "found.json")
    assert any("4 kB to 2 actors, level 0, ms" in line for line in said)
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["results"]["fanout"]) == 2
    for case in found["results"]["fanout"].values():
        assert case["ours"] > 0 and case["baseline"] > 0 and len(case["pairs"]) == 1
    assert found["commit"] and found["machine"]["cores"]


def test_ingress_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cases in {"P1_CASES": ((4, 1),), "LARGE": (), "DURABLE_BATCHES": (4,)}.items():
        monkeypatch.setattr(measurements, name, cases)
    options = measurements.BenchOptions(pairs=1, seconds=0.5, folder=tmp_path)
    said: list[str] = []
    record = measurements.measure(["ingress", "durable"], options, said.append)
    found = [*record["results"]["ingress"].values(), *record["results"]["durable"].values()]
    assert len(found) == 2
    assert all(case["ours"] > 0 and case["baseline"] > 0 and case["better"] == "higher" for case in found)
    assert sum("M steps/s" in line for line in said) == 2


def test_remote_inference_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "PERCEPTRONS", PERCEPTRONS[:1])
    monkeypatch.setattr(measurements, "DEVICES", ())
    monkeypatch.setattr(measurements, "INFER_PAUSES_S", (0.001,))
    said: list[str] = []
    record = measurements.measure(["infer"], measurements.BenchOptions(pairs=1, seconds=0.1), said.append)
    trip, calls = record["results"]["infer"].values()
    assert all(case["ours"] > 0 and case["baseline"] > 0 for case in (trip, calls))
    assert (trip["better"], calls["better"]) == ("lower", "higher")
    assert sum("64-64" in line for line in said) == 2


def test_a_step_with_a_recurrent_policy_is_measured() -> None:
    said: list[str] = []
    record = measurements.measure(["recurrent"], measurements.BenchOptions(pairs=1, steps=50), said.append)
    found = record["results"]["recurrent"]["median_us"]
    assert found["ours"] > 0 and found["baseline"] > 0 and any("GRU of 64 units" in line for line in said)


def test_a_set_up_is_predicted_and_run() -> None:
    for setup in SETUPS:
        assert predicted_rate(setup, RECORDED) > 0
    found = measure_setup(SETUPS[2], RECORDED, seconds=0.3, versions=3)
    assert found.measured > 0 and found.ratio == found.predicted / found.measured
