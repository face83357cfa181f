"""Threads of which one leads: quick work costs no change of threads, and work that takes long holds nobody up.

The one that *leads* owns what the crew is for (a server's sockets), and runs each job itself. Another stands by. When a job is
known to take long, or runs for longer than `TAKEOVER_S`, the one that stands by takes the lead: what the leader owns changes
hands under a lock, and one more stands by. The first ends when its job is done. The last one to end puts away what they owned.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallbackStuck
from rl4sys_zmq.resource import Worker

__all__ = ["LeaderFollowerPool"]

log = logging.getLogger(__name__)

TAKEOVER_S = 0.05
"""How long a job may run before another thread takes the lead, in seconds, unless it is known to take long."""
TICK_S = 0.02
"""How often the one that stands by looks, in seconds."""
QUIET_TICKS = 50
"""After so many ticks without a job the thread that stands by sleeps until the next one."""

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(slots=True)
class _Running:
    """A job that the leader runs; which one it is says the object, not its fields."""

    what: str
    since_s: float
    over_s: float
    """When another takes the lead."""


class _PoolThread(Worker):
    """One of the crew's threads."""

    def __init__(self, name: str, body: Callable[[_PoolThread], None], over: Callable[[], None]) -> None:
        super().__init__(name)
        self._body, self._over = body, over
        self.job: _Running | None = None

    def run(self) -> None:
        try:
            self._body(self)
        finally:
            self._over()

    def stop(self) -> None:
        """The crew tells its threads to stop all at once."""


class LeaderFollowerPool:
    """Leads a loop with as many threads as there are jobs that take long, and one that stands by.

    Attributes:
        stopping: set by `stop`; the leader's loop returns soon after.
    """

    def __init__(
        self, name: str, lead: Callable[[], None], adopt: Callable[[], None], end: Callable[[], None], counters: Counters
    ) -> None:
        """Starts nothing yet.

        Args:
            name: of whom the crew works for, for threads and logs.
            lead: the leader's loop. It returns once `stopping` is set, or when `run` says that its thread leads no more.
            adopt: makes what the leader owns the calling thread's.
            end: called after `stop` by the last thread, as it ends, though nobody may wait for it any more.
            counters: gets ``takeovers``.
        """
        self.stopping = threading.Event()
        self._name, self._lead, self._adopt, self._end, self._counters = name, lead, adopt, end, counters
        self._lock = threading.Lock()
        self._stirred = threading.Event()
        """Jobs run; while it is clear the one that stands by sleeps."""
        self._look = threading.Event()
        """The one that stands by looks at once."""
        self._hands: list[_PoolThread] = []
        self._made = self._at_work = 0
        self._leader: _PoolThread | None = None
        self._running: _Running | None = None

    def start(self) -> None:
        """Starts the threads. What the leader owns is theirs from now on."""
        with self._lock:
            self._add(self._begin)
            self._add(self._stand_by)

    def run(self, what: str, job: Callable[[Given], Made], given: Given, *, long: bool = False) -> tuple[Made, bool]:
        """Does a job that may take long; called by the leader's loop.

        Args:
            what: the job's name, for messages.
            job: what to do
            given: with this.
            long: it is known to take long, more than the change of threads that gives the lead away at once.

        Returns:
            What came of it, and whether the thread still leads.
        """
        hand = self._leader
        assert hand is not None
        now = time.monotonic()
        running = hand.job = self._running = _Running(what, now, now if long else now + TAKEOVER_S)
        if not self._stirred.is_set():
            self._stirred.set()
        if long:
            self._look.set()
        made = job(given)
        hand.job = None
        with self._lock:
            leads = self._running is running
            if leads:
                self._running = None
        return made, leads

    @property
    def running_s(self) -> float:
        """For how long the leader's job has run, in seconds; 0 while it has none."""
        running = self._running
        return time.monotonic() - running.since_s if running is not None else 0.0

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return bool(self._hands)

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is one of the crew's."""
        me = threading.get_ident()
        return any(hand.alive and hand.ident == me for hand in list(self._hands))  # idents are given again

    @property
    def is_hurt(self) -> bool:
        """Whether one of the threads has died."""
        return any(hand.error is not None for hand in list(self._hands))

    def raise_if_dead(self) -> None:
        """Raises WorkerDied when one of the threads has died."""
        for hand in list(self._hands):
            hand.raise_if_dead()

    def stop(self) -> None:
        """Tells all threads to end. Whatever the leader waits for besides must be woken by the caller."""
        self.stopping.set()
        self._stirred.set()
        self._look.set()

    def join(self, timeout_s: float) -> None:
        """Waits for the end of all threads, after `stop`.

        Raises:
            CallbackStuck: when a job still runs after `timeout_s` seconds; its thread ends when it returns.
        """
        deadline = time.monotonic() + timeout_s
        hands = list(self._hands)
        for hand in hands:
            if not hand.join(max(0.0, deadline - time.monotonic())):
                jobs = [other.job.what for other in hands if other.alive and other.job is not None]
                raise CallbackStuck(self._name, ", ".join(jobs) or "no concurrency group", timeout_s)

    # ---- threads

    def _add(self, body: Callable[[_PoolThread], None]) -> None:
        self._made += 1
        hand = _PoolThread(f"rl4sys-{self._name}-{self._made}", body, self._leave)
        self._hands = [h for h in self._hands if h.alive or h.error is not None] + [hand]
        hand.start()
        self._at_work += 1

    def _leave(self) -> None:
        """What each thread does last."""
        with self._lock:
            self._at_work -= 1
            last = not self._at_work and self.stopping.is_set()
        if last:
            self._end()

    def _begin(self, hand: _PoolThread) -> None:
        """The first thread's body."""
        with self._lock:
            self._leader = hand
            self._adopt()
        self._lead()

    def _stand_by(self, hand: _PoolThread) -> None:
        """Waits until a job takes too long, then leads."""
        quiet = 0
        while not self.stopping.is_set():
            self._stirred.wait()
            running = self._running
            if running is None:
                quiet += 1
                if quiet > QUIET_TICKS:
                    self._stirred.clear()
                    quiet = 0
                    if self._running is not None or self.stopping.is_set():  # it began between the two lines above
                        self._stirred.set()
            else:
                quiet = 0
                if time.monotonic() >= running.over_s and self._take_over(hand, running):
                    self._lead()
                    return
            self._look.wait(TICK_S)
            self._look.clear()

    def _take_over(self, hand: _PoolThread, running: _Running) -> bool:
        with self._lock:
            if self._running is not running or self.stopping.is_set():
                return False
            self._leader, self._running = hand, None
            self._adopt()
            self._add(self._stand_by)
        self._counters.add("takeovers")
        log.debug("%s: a callback of %s takes long; another thread goes on", self._name, running.what)
        return True
