"""The capacity command reports the sources of its numbers, the first limit, and the changes that would help."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.capacity import measure as measuring
from rl4sys_zmq.capacity.constants import RECORDED, MeasuredConstants, write_constants
from rl4sys_zmq.capacity.harness import SMALL
from rl4sys_zmq.capacity.machine import machine_record
from rl4sys_zmq.capacity.resources import HOW_TO
from rl4sys_zmq.cli.learner import main

from .conftest import invoke

LOAD = ("--actors", "100", "--steps-per-s", "50", "--model-bytes", "300kB")


@pytest.fixture(autouse=True)
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def run(*arguments: str, code: int = 0) -> str:
    done = invoke(main, "capacity", *arguments)
    assert done.exit_code == code, done.output
    return done.output


def test_without_a_measurement_it_says_so() -> None:
    output = run(*LOAD)
    assert "recorded on another machine" in output and "--measure" in output
    assert "first limit: " in output


def test_with_a_measurement_it_says_of_what(caches: Path) -> None:
    path = caches / "rl4sys_zmq" / "capacity.json"
    machine = machine_record()
    write_constants(path, MeasuredConstants(constants=RECORDED, machine=machine))
    output = run(*LOAD)
    assert f"measured {machine['time']}" in output and "measure again" not in output
    machine["machine"]["cores"] = 1024
    machine["versions"]["rl4sys-zmq"] = "0.0.1"
    write_constants(path, MeasuredConstants(constants=RECORDED, machine=machine))
    output = run(*LOAD)
    assert output.count("measure again with --measure") == 2
    path.write_text("{")
    assert "is not JSON" in run(*LOAD, code=2)


def test_json_has_everything() -> None:
    found: Any = json.loads(run(*LOAD, "--bandwidth", "1M", "--algorithm", "DQN", "--json"))
    loads = {row["name"]: row["share"] for row in found["resources"]}
    assert found["first_limit"] == max(loads, key=lambda name: loads[name])
    assert found["workload"]["training"]["replay_steps"] == 100_000
    assert set(found["how_to"]) == set(HOW_TO)
    assert all(proposal["resource"] in loads for proposal in found["proposals"])


def test_a_proposal_says_how_to_set_it_up() -> None:
    output = run(*LOAD, "--bandwidth", "200M", "--publish-per-s", "2")
    assert "relays with" in output and "rl4sys-learner relay: " in output and "learners: N" not in output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--actors", "10"), "give --actors, --steps-per-s and --model-bytes"),
        ((), "give --actors, --steps-per-s and --model-bytes"),
        ((*LOAD, "--epochs", "3"), "give --algorithm too"),
        ((*LOAD, "--algorithm", "DQN", "--epochs", "3"), "DQN has no epochs"),
        ((*LOAD, "--clients", "101"), "101 clients share 100 actors"),
        ((*LOAD, "--model-bytes", "big"), "is not a size"),
        ((*LOAD, "--constants", "nowhere.json"), "cannot be read"),
        ((*LOAD, "--steps-per-s", "inf"), "is not a finite number"),
        *(((*LOAD, option, "0"), "expected a") for option in ("--memory", "--bandwidth", "--journal-max")),
    ],
)
def test_what_it_cannot_use(arguments: tuple[str, ...], expected: str) -> None:
    assert expected in run(*arguments, code=2)


def test_constants_are_measured_and_kept(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "INGRESS_CASES", ((SMALL, 1, 4),))
    monkeypatch.setattr(measuring, "DURABLE_CASES", ((SMALL, 8, 1),))
    monkeypatch.setattr(measuring, "FANOUT_CASES", ((4, 2),))
    monkeypatch.setattr(measuring, "TRAINING_CASES", ((8, 64), (64, 256)))
    monkeypatch.setattr(measuring.measure_constants, "__kwdefaults__", {"seconds": 1.0, "versions": 3})
    output = run("--measure", *LOAD)
    assert "constants written to" in output and "first limit: " in output
    constants = json.loads((caches / "rl4sys_zmq" / "capacity.json").read_text())["constants"]
    assert constants["ingress"]["message_s"] + constants["ingress"]["segment_s"] > 0
    assert constants["gradient_s"] + constants["gradient_unit_s"] > 0
    assert constants["commit_s"] > 0 and constants["diff_ratio"] > 1
