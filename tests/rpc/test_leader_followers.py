"""Threads that take turns as the leader: quick jobs, long jobs, stuck jobs, and a leader that dies."""

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallbackStuck, WorkerDied
from rl4sys_zmq.rpc.leader_followers import LeaderFollowerPool

WAIT_S = 10.0
Job = Callable[[], object]


class Connection:
    """A pool that runs jobs from a queue. `owner` is the leader's thread, and each loop records the thread that led it."""

    def __init__(self) -> None:
        self.jobs: queue.Queue[Job] = queue.Queue()
        self.made: queue.Queue[tuple[object, bool, int]] = queue.Queue()
        self.owner, self.long = 0, False
        self.counters = Counters()
        self.ended: list[int] = []
        self.pool = LeaderFollowerPool(
            "line", self._lead, self._adopt, lambda: self.ended.append(threading.get_ident()), self.counters
        )

    def do(self, job: Job) -> tuple[object, bool, int]:
        """Run a job. Return its result, whether its thread still leads, and its thread."""
        self.jobs.put(job)
        return self.made.get(timeout=WAIT_S)

    def end(self, timeout_s: float = WAIT_S) -> None:
        self.pool.stop()
        self.jobs.put(lambda: None)  # wakes the leader
        self.pool.join(timeout_s)

    def _adopt(self) -> None:
        self.owner = threading.get_ident()

    def _lead(self) -> None:
        while not self.pool.stopping.is_set():
            job = self.jobs.get()
            assert self.owner == threading.get_ident()
            made, leads = self.pool.run("a job", lambda job: job(), job, long=self.long)
            self.made.put((made, leads, threading.get_ident()))
            if not leads:
                return


@pytest.fixture
def line() -> Iterator[Connection]:
    made = Connection()
    made.pool.start()
    yield made
    made.end()


def test_quick_jobs_are_all_done_by_one_thread(line: Connection) -> None:
    done = [line.do(lambda n=n: n) for n in range(200)]  # type: ignore[misc]
    assert [(made, leads) for made, leads, _ in done] == [(n, True) for n in range(200)]
    assert {thread for _, _, thread in done} == {line.owner}
    assert line.counters.get("takeovers") == 0
    assert line.pool.running_s == 0.0


def test_a_long_job_loses_its_thread_the_lead(line: Connection) -> None:
    _, _, first = line.do(lambda: None)
    go = [threading.Event() for _ in range(3)]
    for event in go:
        line.jobs.put(event.wait)
    _, leads, second = line.do(lambda: None)  # three threads wait, and a fourth runs this job
    assert leads and second == line.owner != first
    assert line.counters.get("takeovers") == 3
    assert not line.pool.in_pool_thread
    for event in go:
        event.set()
    ends = [line.made.get(timeout=WAIT_S) for _ in go]
    assert [leads for _, leads, _ in ends] == [False] * 3
    assert len({second, *(thread for _, _, thread in ends)}) == 4
    assert line.do(lambda: "on") == ("on", True, second)


def test_a_job_that_is_known_to_take_long_gives_the_lead_away_at_once(line: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.rpc.leader_followers.TAKEOVER_S", 3600.0)
    line.long = True
    meet = threading.Barrier(3)
    for _ in range(10):
        for _ in range(3):
            line.jobs.put(lambda: meet.wait(WAIT_S))
        leads = [line.made.get(timeout=WAIT_S)[1] for _ in range(3)]
        assert leads.count(False) >= 2  # the last job may end before another thread leads


def test_a_stuck_job_is_named() -> None:
    line, go = Connection(), threading.Event()
    line.pool.start()
    try:
        line.jobs.put(go.wait)
        line.do(lambda: None)
        with pytest.raises(CallbackStuck, match="a job"):
            line.end(0.05)
        assert not line.ended
    finally:
        go.set()
        line.end()
    assert len(line.ended) == 1 and line.ended != [threading.get_ident()]


def test_a_leader_that_dies_is_replaced_and_not_forgotten() -> None:
    line = Connection()
    line.pool.start()
    try:
        line.jobs.put(lambda: 1 / 0)
        assert line.do(lambda: "on")[:2] == ("on", True)  # this job runs 50 ms later, as after a long job
        with pytest.raises(WorkerDied, match="ZeroDivisionError"):
            line.pool.raise_if_dead()
    finally:
        line.end()


def test_a_long_job_keeps_the_lead_if_no_thread_can_start(line: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, first = line.do(lambda: None)
    refused, tried, go = threading.Thread.start, threading.Event(), threading.Event()

    def start(thread: threading.Thread) -> None:
        tried.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    line.jobs.put(go.wait)
    assert tried.wait(WAIT_S)
    monkeypatch.setattr(threading.Thread, "start", refused)
    go.set()
    assert line.made.get(timeout=WAIT_S) == (True, True, first)
    assert line.do(lambda: "on") == ("on", True, first) and line.counters.get("takeovers") == 0
    line.pool.raise_if_dead()


def test_the_crew_tells_its_own_threads_from_others(line: Connection) -> None:
    assert line.do(lambda: line.pool.in_pool_thread)[0] is True
    assert not line.pool.in_pool_thread
