"""The bench command reports its measurements beside a baseline, with the machine. No test asserts a figure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rl4sys_zmq.bench import measurements
from rl4sys_zmq.bench.infer import PERCEPTRONS
from rl4sys_zmq.cli.bench import PARTS
from rl4sys_zmq.cli.learner import main


def test_every_question_belongs_to_one_part() -> None:
    assert sorted(name for names in PARTS.values() for name in names) == sorted(measurements.QUESTIONS)


def test_the_fan_out_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "CASES", ((4, 2),))
    monkeypatch.setattr(measurements.BenchOptions, "__init__", _small(measurements.BenchOptions.__init__))
    done = CliRunner().invoke(main, ["bench", "--what", "fanout", "--pairs", "1", "--json", str(tmp_path / "found.json")])
    assert done.exit_code == 0, done.output
    assert "4 kB to 2 actors, level 0, ms" in done.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["results"]["fanout"]) == 2
    for case in found["results"]["fanout"].values():
        assert case["ours"] > 0 and case["baseline"] > 0 and len(case["pairs"]) == 1
    assert found["commit"] and found["machine"]["cores"]


def _small(init: Any) -> Callable[..., Any]:
    return lambda self, **given: init(self, **{**given, "versions": 3})


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


def test_a_file_that_cannot_be_written_is_refused_before_the_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl4sys_zmq.cli.bench.measure", lambda *_: pytest.fail("it measures"))
    (tmp_path / "file").touch()
    done = CliRunner().invoke(main, ["bench", "--json", str(tmp_path / "file" / "found.json")])
    assert done.exit_code == 2 and "found.json cannot be written" in done.stderr


def test_a_part_that_is_not_there() -> None:
    done = CliRunner().invoke(main, ["bench", "--what", "nothing"])
    assert done.exit_code == 2


def test_a_step_with_a_recurrent_policy_is_measured() -> None:
    said: list[str] = []
    record = measurements.measure(["recurrent"], measurements.BenchOptions(pairs=1, steps=50), said.append)
    found = record["results"]["recurrent"]["median_us"]
    assert found["ours"] > 0 and found["baseline"] > 0 and any("GRU of 64 units" in line for line in said)
