"""Tests of the file of the constants: each user has one, it is private and replaced as a whole, and damage is detected."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.capacity.constants import RECORDED, MeasuredConstants, constants_path, read_constants, write_constants
from rl4sys_zmq.errors import ConfigError

MACHINE = {"time": "2026-01-01T00:00:00+00:00", "machine": {"cpu": "a processor", "cores": 2}, "versions": {"numpy": "2"}}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "caches" / "rl4sys_zmq" / "capacity.json"
    write_constants(path, MeasuredConstants(constants=RECORDED, machine=MACHINE))
    write_constants(path, MeasuredConstants(constants=RECORDED, machine=MACHINE))
    assert read_constants(path) == MeasuredConstants(constants=RECORDED, machine=MACHINE)
    assert [p.name for p in path.parent.iterdir()] == ["capacity.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_each_user_has_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert constants_path() == tmp_path / "rl4sys_zmq" / "capacity.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert constants_path() == tmp_path / ".cache" / "rl4sys_zmq" / "capacity.json"


def _change(key: str, value: Any) -> Any:
    def change(document: Any) -> Any:
        inner = document
        *parents, last = key.split(".")
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
        return document

    return change


@pytest.mark.parametrize(
    "change",
    [
        _change("format", 2),
        _change("constants.commit_s", "soon"),
        _change("constants.commit_s", -1.0),
        _change("constants.commit_s", float("nan")),
        _change("constants.commit_s", True),
        _change("constants.ingress", {}),
        _change("constants.durable", {"normal": {}}),
        _change("constants", []),
        _change("machine", 5),
        lambda document: [document],
    ],
)
def test_a_damaged_file_is_refused_with_a_remedy(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "capacity.json"
    write_constants(path, MeasuredConstants(constants=RECORDED, machine=MACHINE))
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ConfigError, match="--measure again"):
        read_constants(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "capacity.json"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_constants(path)
    path.write_bytes(b"\xff not json")
    with pytest.raises(ConfigError, match="not JSON"):
        read_constants(path)
    path.write_bytes(b" " * (1 << 20) + b" ")
    with pytest.raises(ConfigError, match="more than"):
        read_constants(path)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_constants(path / "below", MeasuredConstants(constants=RECORDED))
