"""Tests of the log of refused actors: each reason is logged once, and the log and its memory are bounded."""

from typing import Any

import pytest

from rl4sys_zmq.errors import RefusalReason
from rl4sys_zmq.learner.gateway.admission import MAX_KNOWN, MAX_LINES, WINDOW_S, RefusalLog
from rl4sys_zmq.learner.run.recorder import NullEventSink
from rl4sys_zmq.wire.messages import Hello


class Events(NullEventSink):
    def __init__(self) -> None:
        self.noted: list[dict[str, Any]] = []

    def event(self, name: str, /, **fields: Any) -> None:
        assert name == "hello_refused"
        self.noted.append(fields)


def hello(actor_id: str = "a", client_id: str = "lab") -> Hello:
    return Hello(client_id, actor_id, 1, 0, 0, 0)


def test_each_reason_of_an_actor_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    events = Events()
    refusals = RefusalLog(events)
    for now in range(3):
        refusals.note(hello(), RefusalReason.CONFIG, "no algorithm 'PPP'", "algorithm_name", now)
    refusals.note(hello(), RefusalReason.MISMATCH, "gamma differs", "algorithm_parameters.gamma", 3.0)
    refusals.note(hello("b"), RefusalReason.CONFIG, "no algorithm 'PPP'", "algorithm_name", 3.0)
    assert [record.getMessage() for record in caplog.records] == [
        "client 'lab': actor 'a' is refused (config): no algorithm 'PPP'",
        "client 'lab': actor 'a' is refused (mismatch): gamma differs",
        "client 'lab': actor 'b' is refused (config): no algorithm 'PPP'",
    ]
    first = {"client_id": "lab", "actor_id": "a", "code": "config", "field": "algorithm_name", "reason": "no algorithm 'PPP'"}
    assert events.noted[0] == first and len(events.noted) == 3


def test_what_ends_by_itself_is_not_logged() -> None:
    events = Events()
    for code in (RefusalReason.STARTING, RefusalReason.CONFLICT, RefusalReason.FAILED):
        RefusalLog(events).note(hello(), code, "wait", "", 0.0)
    assert events.noted == []


def test_invented_names_neither_flood_the_log_nor_fill_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    events = Events()
    refusals = RefusalLog(events)
    for number in range(1000):
        refusals.note(hello(f"{number}" + "x" * 10_000), RefusalReason.CONFIG, "no\nforged line" + "y" * 10_000, "", 0.0)
    assert len(events.noted) == MAX_LINES
    assert all("\n" not in record.getMessage() and len(record.getMessage()) < 1000 for record in caplog.records)
    refusals.note(hello(), RefusalReason.CONFIG, "later", "", WINDOW_S)
    assert caplog.records[-1].getMessage().endswith(f"later ({1000 - MAX_LINES} further refusals were not logged)")
    for number in range(2 * MAX_KNOWN):
        refusals.note(hello(f"{number}"), RefusalReason.CONFIG, "no", "", WINDOW_S * (number + 2))
    assert len(refusals._known) == MAX_KNOWN
