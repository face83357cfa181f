"""The times at which the call queue starts a batch, and the callers that it waits for. The clock is simulated."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.liveness import SESSION_S
from rl4sys_zmq.rpc.call_queue import BATCH_WAIT_MAX_S, BATCH_WAIT_SHARE, LONG_S, CallQueue, CallRefusedByCallback, ServerMethod
from rl4sys_zmq.rpc.executor import CallExecutor
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.rpc import Call, Reply, decode_call


class Table:
    """A call queue with one method, and callers by number."""

    def __init__(self, max_batch: int = 8, max_wait_s: float | None = None) -> None:
        self.call_queue = CallQueue(Counters())
        self.call_queue.register(ServerMethod("m", list, "m", max_batch=max_batch, max_wait_s=max_wait_s))
        self.number = 0

    def ask(self, *callers: int, now: float) -> None:
        for caller in callers:
            self.number += 1
            self.call_queue.windows.open(caller, 0, now)
            self.call_queue.on_call(b"peer", Call(self.number, caller, 0, 1000, False, "m", None), now)

    def batch(self, now: float, last_job_s: float = 0.0) -> list[int]:
        """Return the callers whose calls the next job runs if it starts now. The job takes `last_job_s`."""
        job = self.call_queue.next_job(now)
        if job is None:
            return []
        self.call_queue.finish(job, [[] for _ in job.requests], now + last_job_s)
        return [r.call.session for r in job.requests]


def test_a_batch_waits_for_those_who_were_just_answered() -> None:
    table = Table()
    table.ask(1, 2, now=0.0)
    assert table.batch(0.0, last_job_s=0.01) == [1, 2]
    table.ask(3, 4, now=0.005)
    assert table.batch(0.01, last_job_s=0.01) == [3, 4]  # the queue does not know yet that there are more than two callers
    table.ask(1, 2, now=0.015)
    assert table.batch(0.02) == []
    assert table.call_queue.wait_s(0.02) == pytest.approx(BATCH_WAIT_SHARE * 0.01)
    table.ask(3, now=0.0205)
    assert table.batch(0.0205) == []
    table.ask(4, now=0.021)
    assert table.batch(0.021, last_job_s=0.01) == [1, 2, 3, 4]
    table.ask(2, 3, 4, now=0.0312)
    assert table.batch(0.0312) == []
    table.ask(1, now=0.0313)
    assert table.batch(0.0313) == [2, 3, 4, 1]


def test_who_does_not_come_is_waited_for_once() -> None:
    table = Table()
    table.ask(1, 2, now=0.0)
    assert table.batch(0.0, last_job_s=0.01) == [1, 2]
    table.ask(1, now=0.011)
    assert table.batch(0.012) == []
    until = 0.01 + BATCH_WAIT_SHARE * 0.01
    assert table.call_queue.wait_s(0.012) == pytest.approx(until - 0.012)
    assert table.batch(until, last_job_s=0.01) == [1]
    table.ask(1, now=1.0)
    assert table.batch(1.0, last_job_s=0.01) == [1]  # long after the wait
    table.ask(1, now=1.011)
    assert table.batch(1.011) == [1]  # the queue no longer expects caller 2


def test_nobody_waits_for_himself_or_for_long() -> None:
    table = Table()
    for turn in range(3):
        table.ask(1, now=turn * 0.01)
        assert table.batch(turn * 0.01, last_job_s=0.01) == [1]
    table.ask(1, 1, now=1.0)
    assert table.batch(1.0, last_job_s=9.0) == [1, 1]
    table.ask(1, now=10.0)
    assert table.batch(10.0) == []
    assert table.call_queue.wait_s(10.0) == pytest.approx(BATCH_WAIT_MAX_S)
    quick = Table()
    quick.ask(1, 2, now=0.0)
    assert quick.batch(0.0, last_job_s=0.000_1) == [1, 2]
    quick.ask(1, now=0.000_1)
    assert quick.batch(0.000_1) == [1]  # no caller sends again within a quarter of that time


@pytest.mark.parametrize(("max_batch", "max_wait_s"), [(2, None), (8, 0.0), (1, 0.0)])
def test_what_never_waits(max_batch: int, max_wait_s: float | None) -> None:
    table = Table(max_batch, max_wait_s)
    table.ask(1, 2, now=0.0)
    served = table.batch(0.0, last_job_s=0.01)
    table.ask(1, 2, now=0.01)
    assert table.batch(0.01) == ([2] if max_batch == 1 else served)


def test_a_call_that_needs_no_company_is_pressing() -> None:
    alone, batched = Table(max_batch=1), Table()
    for table in (alone, batched):
        table.ask(1, now=0.0)
    assert [alone.call_queue.run_now, batched.call_queue.run_now] == [True, False]
    job = alone.call_queue.next_job(0.0)
    assert job is not None and not alone.call_queue.run_now
    alone.ask(2, now=0.0)
    assert not alone.call_queue.run_now  # its concurrency group is busy


def test_lanes_take_turns_by_who_came_first() -> None:
    """A concurrency group that always has calls does not delay the other groups."""
    call_queue = CallQueue(Counters())
    for name in ("first", "second"):
        call_queue.register(ServerMethod(name, list, name))
    call_queue.windows.open(1, 0, 0.0)
    order, number = [], 0

    def ask(method: str, now: float) -> None:
        nonlocal number
        number += 1
        call_queue.on_call(b"peer", Call(number, 1, 0, 1000, False, method, None), now)

    ask("first", 0.0)
    ask("first", 0.1)
    ask("second", 0.2)
    for now in (0.3, 0.4, 0.5, 0.6):
        job = call_queue.next_job(now)
        assert job is not None
        order.append(job.method.concurrency_group)
        call_queue.finish(job, [[]], now)
        ask("first", now)
    assert order == ["first", "first", "second", "first"]


def test_a_lane_is_known_to_take_long_by_its_last_job() -> None:
    table = Table(max_batch=1)
    known = []
    for now, last_job_s in ((0.0, LONG_S / 2), (1.0, 2 * LONG_S), (2.0, LONG_S / 2), (3.0, LONG_S / 2)):
        table.ask(1, now=now)
        job = table.call_queue.next_job(now)
        assert job is not None and table.call_queue.busy
        known.append(job.long)
        table.call_queue.finish(job, [[]], now + last_job_s)
        assert not table.call_queue.busy
    assert known == [False, False, True, False]


def test_a_method_that_is_taken_away_leaves_its_lane_to_the_next() -> None:
    table = Table()
    table.ask(1, now=0.0)
    table.call_queue.unregister("m")
    with pytest.raises(CallRefusedByCallback, match="m"):
        table.ask(2, now=0.0)
    table.call_queue.register(ServerMethod("m", list, "m"))
    table.ask(3, now=0.0)
    assert [table.batch(0.0), table.batch(0.0)] == [[1], [3]], "a call of the one before runs alone"


def test_a_batch_may_have_one_call_twice_late_and_in_time() -> None:
    """The queue does not remember the calls of an unknown session. A call that is resent waits a second time."""
    call_queue, seen = CallQueue(Counters()), []

    def run(payloads: Sequence[Any]) -> Sequence[Any]:
        seen.append(len(payloads))
        return payloads

    call_queue.register(ServerMethod("m", run, "m", max_batch=4))
    now = time.monotonic()
    for arrived_s in (now - 9.0, now, now - 9.0, now):
        call_queue.on_call(b"peer", Call(0, 1, 0, 5000, False, "m", np.zeros(3)), arrived_s)
    job = call_queue.next_job(now)
    assert job is not None
    replies = [decode_call(frames) for frames in CallExecutor("test", 1, call_queue.counters, 1 << 20).run(job)]
    assert [r.code for r in replies if isinstance(r, Reply)] == ["expired", "", "expired", ""]
    assert seen == [2]


def test_answers_are_kept_up_to_a_number_of_bytes_of_all_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.dedup.MAX_KEPT_BYTES", 100)
    call_queue = CallQueue(Counters())
    call_queue.register(ServerMethod("m", list, "m"))

    def ask(session: int, number: int, acked: int = 0) -> list[Frame] | None:
        return call_queue.on_call(b"peer", Call(number, session, acked, 1000, True, "m", None), 0.0)

    def answer(session: int, number: int, size: int, acked: int = 0) -> None:
        assert ask(session, number, acked) is None
        job = call_queue.next_job(0.0)
        assert job is not None
        call_queue.finish(job, [[bytes(size - 10), bytes(10)]], 0.0)

    for session in (1, 2, 3):
        call_queue.windows.open(session, 0, 0.0)
    answer(1, 0, 40)
    answer(2, 0, 40)
    assert ask(1, 0) and ask(2, 0)
    answer(3, 0, 40)
    assert ask(1, 0) is None and call_queue.next_job(0.0) is None  # the reply is not kept, and the call does not run again
    assert ask(2, 0) and ask(3, 0)
    answer(2, 1, 30, acked=1)  # the caller has the first reply: 70 bytes are kept
    answer(1, 1, 30)
    assert ask(1, 1) and ask(2, 1) and ask(3, 0)
    answer(1, 2, 101)
    assert not any([ask(1, 1), ask(1, 2), ask(2, 1), ask(3, 0)]) and call_queue.next_job(0.0) is None
    answer(2, 2, 100)
    assert ask(2, 2)


def test_a_session_that_is_forgotten_leaves_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.dedup.MAX_KEPT_BYTES", 100)
    call_queue = CallQueue(Counters())
    call_queue.register(ServerMethod("m", list, "m"))
    for session in range(3):
        now = session * 2 * SESSION_S
        call_queue.windows.open(session, 0, now)
        for number in range(2):
            call_queue.on_call(b"peer", Call(number, session, 0, 1000, True, "m", None), now)
            job = call_queue.next_job(now)
            assert job is not None
            call_queue.finish(job, [[bytes(50)]], now)
        assert len(call_queue.windows) == 1
        assert call_queue.on_call(b"peer", Call(0, session, 0, 1000, True, "m", None), now) == [bytes(50)]
