"""The report line of an actor."""

import json
from typing import Any

import pytest

from rl4sys_zmq.fleet import ActorReport

from .conftest import report_of

REPORT = report_of()


def test_a_report_survives_its_line() -> None:
    assert ActorReport.parse(REPORT.to_json().encode()) == REPORT
    assert "\n" not in REPORT.to_json()


@pytest.mark.parametrize(
    "change", [{"steps": "10"}, {"done": 1}, {"mean_return": "high"}, {"actor_id": 3}, {"more": 1}, {"steps": None}]
)
def test_a_line_that_only_resembles_a_report_is_none(change: dict[str, Any]) -> None:
    assert ActorReport.parse(json.dumps({**json.loads(REPORT.to_json()), **change}).encode()) is None


@pytest.mark.parametrize("line", [b"", b"hello", b"{", b"{}", b"[1]", b"{\xff", b'{"a": ' * 5000, b"{" + b" " * 20_000 + b"}"])
def test_other_lines_are_none(line: bytes) -> None:
    assert ActorReport.parse(line) is None
