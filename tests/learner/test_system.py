"""The table of the newest figures of processes, with a clock of the test."""

from types import SimpleNamespace
from typing import Any

import pytest

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.learner.gateway.system import MOST_PROCESSES, SystemTable
from rl4sys_zmq.machine import MAX_HOST
from rl4sys_zmq.security.access import User
from rl4sys_zmq.security.authorizer import Authorizer
from rl4sys_zmq.wire.messages import ActorReport


class Lab:
    """A table whose events go to a list, and whose clock is `now`."""

    def __init__(self) -> None:
        self.now, self.events, self.counters = 0.0, list[dict[str, Any]](), Counters()
        sink: Any = SimpleNamespace(event=lambda name, /, **fields: self.events.append({"event": name, **fields}))
        clocks: Any = SimpleNamespace(monotonic=lambda: self.now, unix=lambda: 1000.0 + self.now)
        self.table = SystemTable(10.0, sink, self.counters, clocks)

    def report(self, actor_id: str, pid: int = 7, host: str = "edge") -> None:
        figures = ActorReport(host, pid, 1.0, 2, 3, 0.5, 4, 5, 6, 7.0, 8.0)
        self.table.note_actor("luna", actor_id, figures)

    def pids(self) -> list[int]:
        return [record["pid"] for record in self.table.report(self.now)]


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_the_newest_report_counts_and_a_silent_actor_is_left_out(lab: Lab) -> None:
    lab.report("b", 2)
    lab.report("a", 1)
    lab.now = 20.0
    lab.report("b", 3)
    assert lab.pids() == [1, 3] and [event["pid"] for event in lab.events] == [2, 1, 3]
    lab.now = 31.0
    assert lab.pids() == [3]


def test_reports_that_come_too_fast_or_are_too_many_are_counted(lab: Lab) -> None:
    for number in range(MOST_PROCESSES):
        lab.report(f"a{number}")
    lab.now = 0.5
    lab.report("a0", 8)
    lab.report("one more", 9)
    assert len(lab.pids()) == len(lab.events) == MOST_PROCESSES and {*lab.pids()} == {7}
    assert lab.counters.snapshot() == {"actor_reports_dropped": 2}


def test_a_long_name_of_a_host_is_cut(lab: Lab) -> None:
    lab.report("a", host="h" * 1000)
    assert lab.table.report(0.0)[0]["host"] == "h" * MAX_HOST


def test_each_round_replaces_the_learners_own_figures(lab: Lab) -> None:
    lab.table.note_own({1: {"pid": 1}, 2: {"pid": 2}}, {2: "luna"})
    assert [(r["role"], r["client_id"], r["t"]) for r in lab.table.report(0.0)] == [
        ("learner", "", 1000.0),
        ("worker", "luna", 1000.0),
    ]
    lab.table.note_own({1: {"pid": 1}}, {})
    assert lab.pids() == [1]


def test_an_operator_of_one_client_sees_no_other_processes() -> None:
    report: dict[str, Any] = {"clients": {}, "system": [{"client_id": name} for name in ("", "luna", "mars")]}
    user = User(name="ann", key="k" * 40, client_ids=frozenset({"luna"}), roles=frozenset({"admin"}), expires_unix_s=None)
    assert Authorizer.visible_status(user, report)["system"] == [{"client_id": "luna"}]
    assert Authorizer.visible_status(None, report)["system"] == report["system"]
