"""Tests of the reports of a learner thread, which are collected unless an actor may wait for them."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from rl4sys_zmq.errors import Closed
from rl4sys_zmq.learner.training import reporting
from rl4sys_zmq.learner.training.reporting import (
    GATEWAY_TIMEOUT_S,
    GATHER_BYTES,
    GATHER_ITEMS,
    GATHER_S,
    GatewaySender,
    LearnerThreadReporter,
    ObservedDataCounts,
)
from rl4sys_zmq.wire.messages import Verdict
from rl4sys_zmq.wire.thread_messages import DataDemand, SegmentVerdicts, TrainingMetrics

A, B = ("a", 1), ("b", 1)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reporting, "time", clock)
    return clock


@pytest.fixture
def said() -> list[Any]:
    return []


@pytest.fixture
def reporter(clock: Clock, said: list[Any]) -> LearnerThreadReporter:
    """A reporter that has just reported 1000 usable steps."""
    reporter = LearnerThreadReporter(said.append, ObservedDataCounts(50, 7, ((1.0, 5),)))
    reporter.report(1000, 3)
    assert said == [DataDemand(1000, 0, 3)]
    said.clear()
    return reporter


def take(reporter: LearnerThreadReporter, *, steps: int = 10, items: int = 1, nbytes: int = 500) -> None:
    reporter.taken_messages += 1
    reporter.taken_steps += steps
    reporter.taken_items += items
    reporter.taken_bytes += nbytes


def test_words_gather_and_are_said_together(reporter: LearnerThreadReporter, clock: Clock, said: list[Any]) -> None:
    for seq in range(3):
        take(reporter)
        reporter.record_verdict(A, seq, seq + 1, Verdict.TRAINED)
        reporter.report(1000, 3)
    assert not said
    assert reporter.rest_s == GATHER_S
    clock.now += 2 * GATHER_S
    reporter.report(1000, 3)
    assert said == [SegmentVerdicts("a", 1, [[0, 3]], Verdict.TRAINED), DataDemand(1000, 3, 3)]
    assert reporter.rest_s > GATHER_S


def test_the_first_words_after_a_rest_are_said_at_once(reporter: LearnerThreadReporter, clock: Clock, said: list[Any]) -> None:
    clock.now += 1.0
    take(reporter)
    reporter.report(1000, 3)
    assert said == [DataDemand(1000, 1, 3)]


@pytest.mark.parametrize(
    ("taken", "usable", "version"),
    [
        ({"steps": 501}, 1000, 3),  # the last report allows less than half of the usable steps
        ({}, 1000, 4),
        ({"items": GATHER_ITEMS}, 1000, 3),
        ({"nbytes": GATHER_BYTES}, 1000, 3),
    ],
)
def test_what_somebody_may_wait_for_is_said_at_once(
    reporter: LearnerThreadReporter, said: list[Any], taken: dict[str, int], usable: int, version: int
) -> None:
    take(reporter, **{"steps": 0, **taken})
    reporter.record_verdict(B, 0, 1, Verdict.STALE)
    reporter.report(usable, version)
    assert [type(message) for message in said] == [SegmentVerdicts, DataDemand]


def test_a_batch_that_fills_up_is_not_pressing(reporter: LearnerThreadReporter, said: list[Any]) -> None:
    for taken in range(100, 1001, 100):
        take(reporter, steps=100)
        reporter.report(1000 - taken, 3)
    assert not said
    reporter.report(1000, 3)  # the update is done, and the next batch may come
    assert said == [DataDemand(1000, 10, 3)]


def test_what_was_promised_is_not_taken_back(reporter: LearnerThreadReporter, said: list[Any]) -> None:
    reporter.report(10, 3, at_once=True)
    assert not said
    take(reporter)
    reporter.report(10, 3, at_once=True)
    assert said == [DataDemand(990, 1, 3)]


def test_figures_are_said_ten_times_a_second_and_in_the_end(
    reporter: LearnerThreadReporter, clock: Clock, said: list[Any]
) -> None:
    reporter.start_clock()
    reporter.scalars["loss"] = 0.5
    reporter.observed_steps += 20
    reporter.ended(70, 1.5, 20)
    reporter.evaluated(3, 2.5, 7)
    clock.now += 0.2
    reporter.report_figures(4)
    scalars = {"loss": 0.5, "charts/SPS": pytest.approx(100.0)}
    assert said == [TrainingMetrics(70, 4, scalars, [[70, 1.5, 20]], 8, [], [[3, 2.5, 7]])]
    reporter.report_figures(4, at_once=True)
    assert len(said) == 1  # the values have not changed
    reporter.observed_steps += 1
    reporter.report_figures(4)
    assert len(said) == 1
    reporter.report_figures(4, at_once=True)
    assert said[1].step == 71
    assert not said[1].episodes and not said[1].evaluations


def test_the_mean_reward_is_that_of_the_latest_steps(reporter: LearnerThreadReporter, said: list[Any]) -> None:
    for reward in (1.0, 2.0, 3.0):
        reporter.observed([0, 1], [3_000, 2_000], 5_000 * reward)
        reporter.report_figures(1, at_once=True)
    assert [message.scalars["charts/mean_reward"] for message in said] == [1.0, 1.5, 2.5]


@pytest.mark.parametrize("asked_after", [0, 3])
def test_a_busy_gateway_is_awaited_until_the_thread_is_asked_to_stop(asked_after: int) -> None:
    stopping, waits = threading.Event(), list[float | None]()

    def send_wait(frames: Any, timeout_s: float | None) -> bool:
        waits.append(timeout_s)
        if len(waits) == asked_after:
            stopping.set()
        return False

    if not asked_after:
        stopping.set()
    socket: Any = SimpleNamespace(send_wait=send_wait)
    with pytest.raises(Closed, match="has read no message for 2 s"):
        GatewaySender(socket, bytes(8), stopping).send(DataDemand(0, 0, 0))
    assert waits == [GATEWAY_TIMEOUT_S] * (asked_after + 1)
