"""A leader/followers thread pool: quick jobs run without a thread switch, and a long job does not block other jobs.

One thread, the *leader*, uses the sockets of a server and runs each job itself. Another thread, the *follower*, stands by. If a
job is expected to be long, or has run for 50 ms, the follower becomes the leader, and a new follower starts. A lock protects
this change of the leader. The former leader ends when its job is done. The last thread to end closes the sockets.

The pattern is described in Schmidt et al., Pattern-Oriented Software Architecture, volume 2 (Leader/Followers).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallbackStuck
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Worker

log = get_logger(__name__)

TAKEOVER_S = 0.05
"""The time after which the follower takes over if a job still runs that was not expected to be long."""
TICK_S = 0.02
"""The interval at which the follower checks the leader's job."""
RETRY_S = 1.0
"""The pause before another attempt to take over, if the system could not start a thread."""
QUIET_TICKS = 50
"""The number of checks without a running job after which the follower sleeps until the next job."""

Argument = TypeVar("Argument")
Result = TypeVar("Result")


@dataclass(slots=True)
class _RunningJob:
    """The job that the leader runs now, with its start and the time from which the follower takes over."""

    what: str
    since_s: float
    over_s: float


class _PoolThread(Worker):
    """A thread of the pool: first the follower, then the leader."""

    def __init__(self, name: str, body: Callable[[_PoolThread], None], over: Callable[[], None]) -> None:
        super().__init__(name)
        self._body, self._over = body, over
        self.job: _RunningJob | None = None

    def run(self) -> None:
        try:
            self._body(self)
        finally:
            self._over()


class LeaderFollowerPool:
    """A thread pool for a server, with one leader, one follower, and one thread for each long job."""

    def __init__(
        self, name: str, lead: Callable[[], None], adopt: Callable[[], None], end: Callable[[], None], counters: Counters
    ) -> None:
        self.stopping = threading.Event()  # event that `stop` sets. The loop of the leader must then return soon
        self._name, self._lead, self._adopt, self._end, self._counters = name, lead, adopt, end, counters
        self._lock = threading.Lock()
        self._active = threading.Event()
        """Set while jobs run. While it is clear, the thread that stands by sleeps."""
        self._look = threading.Event()
        """Set to make the thread that stands by check the running job at once."""
        self._threads: list[_PoolThread] = []
        self._made = self._at_work = 0
        self._leader: _PoolThread | None = None
        self._running: _RunningJob | None = None

    def start(self) -> None:
        """Start the leader and the follower. From now on, only threads of the pool may use the sockets."""
        with self._lock:
            self._add(self._begin)
            self._add(self._stand_by)

    def run(self, what: str, job: Callable[[Argument], Result], argument: Argument, *, long: bool = False) -> tuple[Result, bool]:
        """Run ``job(argument)`` in the calling thread, the leader. Return the result, and True if the thread is still the
        leader.

        `what` names the job in messages. With `long`, the follower becomes the leader at once.
        """
        thread = self._leader
        assert thread is not None
        now = time.monotonic()
        running = thread.job = self._running = _RunningJob(what, now, now if long else now + TAKEOVER_S)
        if not self._active.is_set():
            self._active.set()
        if long:
            self._look.set()
        result = job(argument)
        thread.job = None
        with self._lock:
            leads = self._running is running
            if leads:
                self._running = None
        return result, leads

    @property
    def running_s(self) -> float:
        """The time for which the leader has run its job, in seconds. 0 without a job."""
        running = self._running
        return time.monotonic() - running.since_s if running is not None else 0.0

    @property
    def started(self) -> bool:
        return bool(self._threads)

    @property
    def in_pool_thread(self) -> bool:
        me = threading.get_ident()
        return any(thread.alive and thread.ident == me for thread in list(self._threads))  # the system reuses idents

    @property
    def has_failed(self) -> bool:
        return any(thread.error is not None for thread in list(self._threads))

    def raise_if_dead(self) -> None:
        for thread in list(self._threads):
            thread.raise_if_dead()

    def stop(self) -> None:
        """Ask all threads to end. Then wake the leader, which can be waiting in a poll of the sockets."""
        self.stopping.set()
        self._active.set()
        self._look.set()

    def join(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        hands = list(self._threads)
        for thread in hands:
            if not thread.join(max(0.0, deadline - time.monotonic())):
                jobs = [other.job.what for other in hands if other.alive and other.job is not None]
                raise CallbackStuck(self._name, ", ".join(jobs) or "an unknown group", timeout_s)

    def _add(self, body: Callable[[_PoolThread], None]) -> None:
        self._made += 1
        thread = _PoolThread(f"rl4sys-{self._name}-{self._made}", body, self._leave)
        self._threads = [h for h in self._threads if h.alive or h.error is not None] + [thread]
        thread.start()
        self._at_work += 1

    def _leave(self) -> None:
        """Record that a thread of the pool ends. The last one after `stop` closes the sockets."""
        with self._lock:
            self._at_work -= 1
            last = not self._at_work and self.stopping.is_set()
        if last:
            self._end()

    def _begin(self, thread: _PoolThread) -> None:
        """Lead. This is the body of the pool's first thread."""
        with self._lock:
            self._leader = thread
            self._adopt()
        self._lead()

    def _stand_by(self, thread: _PoolThread) -> None:
        """Wait until a job of the leader takes too long, then lead. This is the body of all threads but the first."""
        quiet = 0
        while not self.stopping.is_set():
            self._active.wait()
            running = self._running
            if running is None:
                quiet += 1
                if quiet > QUIET_TICKS:
                    self._active.clear()
                    quiet = 0
                    if self._running is not None or self.stopping.is_set():  # a job began between the check and `clear`
                        self._active.set()
            else:
                quiet = 0
                if time.monotonic() >= running.over_s and self._take_over(thread, running):
                    self._lead()
                    return
            self._look.wait(TICK_S)
            self._look.clear()

    def _take_over(self, thread: _PoolThread, running: _RunningJob) -> bool:
        with self._lock:
            if self._running is not running or self.stopping.is_set():
                return False
            try:
                self._add(self._stand_by)  # first: after an error, the present leader must stay the leader
            except RuntimeError as exc:
                log.warning("%s: a callback of %s takes long, and no further thread can start: %s", self._name, running.what, exc)
                running.over_s = time.monotonic() + RETRY_S
                return False
            self._leader, self._running = thread, None
            self._adopt()
        self._counters.add("takeovers")
        log.debug("%s: a callback of %s takes long; another thread takes the lead", self._name, running.what)
        return True
