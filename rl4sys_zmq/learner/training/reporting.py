"""The reports that a learner thread sends to the gateway, the learner's network thread.

A report contains verdicts, the demand (how many further steps the algorithm can use), and metrics.

Each message wakes the gateway thread, and most messages cause an acknowledgement that wakes an actor. So reports are collected
for `GATHER_S` seconds and sent together, unless an actor may be waiting for them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.delivery import Key
from rl4sys_zmq.errors import Closed
from rl4sys_zmq.learner.lags import LAG_LIMITS, count_lags
from rl4sys_zmq.learner.training.progress import ObservedDataCounts
from rl4sys_zmq.limits import RECENT_EPISODES
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.thread_messages import DataDemand, SegmentVerdicts, ThreadMessage, TrainingMetrics
from rl4sys_zmq.wire.values import REPORT_HEADER

GATEWAY_TIMEOUT_S = 2.0
"""Longest wait for space in the queue of the gateway's PULL socket after the learner thread was asked to stop, in seconds."""


GATHER_S = 0.005
GATHER_ITEMS = 256
GATHER_BYTES = 16 << 20
"""The limits at which collected reports are sent: time in seconds, and segments and bytes taken since the last report.

The limits on segments and bytes are a fraction of the amount that actors can send ahead to one learner thread.
"""

METRICS_PERIOD_S = 0.1
IDLE_S = 0.5
REWARD_STEPS = 10_000
"""The number of latest steps in the metric ``charts/mean_reward``. It has more if they end within a message."""


class GatewaySender:
    """The sender of a learner thread's messages to the gateway (the learner's network thread), through a PUSH socket.

    A call waits while the gateway's PULL socket is full, also for long: the gateway can be busy, for example with the weights of
    a large policy for many actors that join.
    """

    def __init__(self, up: Socket, key: bytes, stopping: threading.Event, timeout_s: float | None = GATEWAY_TIMEOUT_S) -> None:
        self._up, self._key, self._stopping, self._timeout_s = up, key, stopping, timeout_s

    def send(self, message: ThreadMessage) -> None:
        """Send a message to the gateway (the learner's network thread). Wait while the gateway's queue is full."""
        frames = [self._key, *encode(message, header=REPORT_HEADER)]
        stops = self._stopping.is_set()
        while not self._up.send_wait(frames, self._timeout_s):
            if stops:
                raise Closed(f"the gateway has read no message for {self._timeout_s:g} s")
            stops = self._stopping.is_set()  # from now on, wait once more


class _ReportedDemand(NamedTuple):
    """The last report of a learner thread on how many steps its algorithm can use. All counts begin with the thread's start.

    Attributes:
        limit_steps: The number of steps that the algorithm can use in all.
        messages: The number of messages with segments (`DeliverSegments`) that the thread has taken.
        items: The number of segments (parts of episodes) taken.
        nbytes: The total size of these messages, in bytes.
        version: The lowest policy version with which actors should start a segment.
    """

    limit_steps: int
    messages: int
    items: int
    nbytes: int
    version: int


class LearnerThreadReporter:
    """The reporter of a learner thread: it collects results, demand and metrics, and sends them to the network thread.

    The results of segments are called verdicts. The demand is how many further steps the algorithm can use. The thread takes
    segments from the gateway in messages called `DeliverSegments`. The four counters ``taken_...`` begin with the start of the
    thread.

    Attributes:
        taken_messages: Number of `DeliverSegments` messages taken.
        taken_steps: Number of steps in these messages, without the segments that the gateway refused.
        taken_items: Number of segments in these messages, without the refused ones.
        taken_bytes: Size of these messages, in bytes, including refused segments.
        overridden_steps: Number of steps whose actions the host overrode, also before a restart.
        observed_steps: Number of environment steps that the algorithm's state has observed in all, also before a restart.
        observed_episodes: Number of episodes that ended in these steps.
        recent: Return and length in steps of the latest `RECENT_EPISODES` of these episodes, oldest first.
        scalars: Metrics for the next report, by name.
    """

    def __init__(self, send: Callable[[ThreadMessage], None], observed: ObservedDataCounts) -> None:
        self._send = send
        observed_steps = observed.steps
        self.observed_episodes = observed.episodes
        self.recent = deque(observed.recent, maxlen=RECENT_EPISODES)
        self.taken_messages = self.taken_steps = self.taken_items = self.taken_bytes = 0
        self.observed_steps = self._said_steps = self._first_steps = observed_steps
        self.scalars: dict[str, float] = {}
        self.overridden_steps = 0
        if observed.overridden_steps:
            self.overridden(observed.overridden_steps)
        self._reported = _ReportedDemand(0, 0, 0, 0, 0)
        self._disposed: dict[tuple[str, int, str, str, str], list[list[int]]] = {}
        self._episodes: deque[list[float]] = deque(maxlen=RECENT_EPISODES)
        self._evaluations: deque[list[float]] = deque(maxlen=RECENT_EPISODES)
        self._lags = np.zeros(len(LAG_LIMITS) + 1, np.int64)
        self._rewards: deque[tuple[int, float]] = deque()
        self._reward_steps = 0
        self._gathers = False
        self._reported_at = self._metrics_at = self._began = 0.0

    @property
    def rest_s(self) -> float:
        """The longest time that the learner thread may wait for data before it must call this reporter again, in seconds."""
        if self._gathers:
            return GATHER_S
        return METRICS_PERIOD_S if self._news else IDLE_S

    def begin(self) -> None:
        """Start the clock for the metric ``charts/SPS`` (steps per second) at the first call. Call this when data arrive."""
        self._began = self._began or time.monotonic()

    # ---- verdicts

    def record_verdict(self, key: Key, first: int, end: int, verdict: str, reason: str = "", replaces: str = "") -> None:
        """Record a verdict for consecutive segments of one actor, for the next report."""
        ranges = self._disposed.setdefault((*key, verdict, reason, replaces), [])
        if ranges and ranges[-1][1] == first:
            ranges[-1][1] = end
        else:
            ranges.append([first, end])

    def report_verdicts(self) -> None:
        """Send all verdicts (results of segments) recorded since the last report to the network thread now."""
        for (actor_id, origin, verdict, reason, replaces), ranges in self._disposed.items():
            self._send(SegmentVerdicts(actor_id, origin, ranges, verdict, reason, replaces))
        self._disposed.clear()

    # ---- demand

    def report(self, usable_steps: int, version: int, *, at_once: bool = False) -> None:
        """Send the results of segments (verdicts), and how many further steps the algorithm can use, if they have changed.

        To send fewer messages, changes are collected for `GATHER_S` seconds, unless an actor may soon have to wait for them.
        """
        limit_steps = max(self._reported.limit_steps, self.taken_steps + usable_steps)
        now_true = _ReportedDemand(limit_steps, self.taken_messages, self.taken_items, self.taken_bytes, version)
        self._gathers = bool(self._disposed) or now_true != self._reported
        now = time.monotonic()
        if self._gathers and (at_once or now - self._reported_at >= GATHER_S or self._is_pressing(now_true)):
            self._gathers, self._reported_at = False, now
            self.report_verdicts()
            if now_true != self._reported:
                self._reported = now_true
                self._send(DataDemand(limit_steps - self.taken_steps, self.taken_messages, version))

    def _is_pressing(self, now_true: _ReportedDemand) -> bool:
        """Return True if an actor may soon have to wait for this report.

        This is the case if actors could now send more than twice the steps that the last report allows them, if the version
        has changed, or if many segments or bytes were taken since the last report.
        """
        said = self._reported
        return (
            2 * (said.limit_steps - self.taken_steps) < now_true.limit_steps - self.taken_steps
            or now_true.version != said.version
            or now_true.items - said.items >= GATHER_ITEMS
            or now_true.nbytes - said.nbytes >= GATHER_BYTES
        )

    # ---- metrics

    def ended(self, episodes: Iterable[tuple[float, float, int]]) -> None:
        """Record episodes that have ended, for the next report of metrics."""
        for step, total, length in episodes:
            self.observed_episodes += 1
            self.recent.append((total, length))
            self._episodes.append([step, total, length])

    def evaluated(self, version: int, total: float, length: int) -> None:
        """Record an episode of an actor that does not explore, for the next report of metrics."""
        self._evaluations.append([version, total, length])

    def overridden(self, steps: int) -> None:
        """Count steps whose actions the host overrode, for the next report of metrics."""
        self.overridden_steps += steps
        self.scalars["charts/overridden_steps"] = self.overridden_steps

    def observed(self, lags: NDArray[np.int64], steps: NDArray[np.int64], reward: float) -> None:
        """Count segments that the algorithm has observed, for the next report of metrics."""
        count = int(steps.sum())
        self.observed_steps += count
        self._lags += count_lags(lags, steps)
        self._rewards.append((count, reward))
        self._reward_steps += count
        while self._reward_steps - self._rewards[0][0] >= REWARD_STEPS:
            self._reward_steps -= self._rewards.popleft()[0]

    @property
    def _news(self) -> bool:
        """True if metrics have changed since the last report of metrics."""
        return bool(self.scalars or self._episodes or self._evaluations or self.observed_steps != self._said_steps)

    def report_figures(self, updates: int, *, at_once: bool = False) -> None:
        """Send training metrics to the network thread if they have changed, at most once every `METRICS_PERIOD_S` seconds."""
        now = time.monotonic()
        if self._news and (at_once or now - self._metrics_at >= METRICS_PERIOD_S):
            self._metrics_at = now
            self._said_steps = self.observed_steps
            self.scalars["charts/SPS"] = (self.observed_steps - self._first_steps) / max(now - self._began, 1e-3)
            if self._reward_steps:
                self.scalars["charts/mean_reward"] = sum(reward for _, reward in self._rewards) / self._reward_steps
            scalars = {k: float(v) for k, v in self.scalars.items()}
            lags = self._lags.tolist() if self._lags.any() else []
            episodes, evaluations = list(self._episodes), list(self._evaluations)
            self._send(
                TrainingMetrics(self.observed_steps, updates, scalars, episodes, self.observed_episodes, lags, evaluations)
            )
            self.scalars = {}
            self._episodes.clear()
            self._evaluations.clear()
            self._lags[:] = 0


def plain_text(text: str) -> str:
    """Return a text in ASCII, cut to 12,000 characters, so that any exception's text can be sent in a message.

    Other characters become backslash escapes.
    """
    return text.encode("ascii", "backslashreplace").decode()[:12_000]
