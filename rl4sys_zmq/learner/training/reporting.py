"""The reports that a learner thread sends to the gateway: verdicts, the demand and metrics.

Each message wakes the gateway thread, and most cause an acknowledgement that wakes an actor. So reports are collected for
`GATHER_S` and sent together, unless an actor may be waiting for them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.errors import Closed
from rl4sys_zmq.learner.lags import count_lags
from rl4sys_zmq.limits import RECENT_EPISODES
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.thread_messages import DataDemand, SegmentVerdicts, ThreadMessage, TrainingMetrics

GATEWAY_TIMEOUT_S = 2.0
"""Longest wait for space in the queue of the gateway's PULL socket after the learner thread was asked to stop, in seconds."""

GATHER_S = 0.005
GATHER_ITEMS = 256  # a fraction of the segments, and below of the bytes, that actors can send ahead to one learner thread
GATHER_BYTES = 16 << 20

METRICS_PERIOD_S = 0.1
IDLE_S = 0.5
REWARD_STEPS = 10_000
"""The number of latest steps in the metric ``charts/mean_reward``. A message is never divided, so there can be more."""


class GatewaySender:
    """The sender of a learner thread's messages to the gateway, through a PUSH socket."""

    def __init__(self, up: Socket, key: bytes, stopping: threading.Event, timeout_s: float | None = GATEWAY_TIMEOUT_S) -> None:
        self._up, self._key, self._stopping, self._timeout_s = up, key, stopping, timeout_s

    def send(self, message: ThreadMessage) -> None:
        """Send a message. Wait while the gateway's PULL socket is full, which can take long when it is busy."""
        frames = [self._key, *encode(message)]
        stops = self._stopping.is_set()
        while not self._up.send_wait(frames, self._timeout_s):
            if stops:
                raise Closed(f"the gateway has read no message for {self._timeout_s:g} s")
            stops = self._stopping.is_set()  # from now on, wait once more


class _ReportedDemand(NamedTuple):
    """The last report of a learner thread on how many steps its algorithm can use. All counts begin with the thread's start."""

    limit_steps: int  # that the algorithm can use in all
    messages: int
    items: int  # segments
    nbytes: int
    version: int  # the lowest with which actors should start a segment


class ObservedDataCounts(NamedTuple):
    """Counts of the steps and episodes that an algorithm has received so far, as a checkpoint stores them."""

    steps: int = 0
    episodes: int = 0
    recent: tuple[tuple[float, int], ...] = ()  # return and length of the latest of these episodes, oldest first
    overridden_steps: int = 0  # also those that the algorithm has not received


class LearnerThreadReporter:
    """The reporter of a learner thread: it collects verdicts, the demand and metrics, and sends them to the gateway.

    The counters ``taken_...`` begin with the start of the thread, the others with the training.
    """

    def __init__(self, send: Callable[[ThreadMessage], None], observed: ObservedDataCounts) -> None:
        self._send = send
        self.observed_episodes = observed.episodes
        self._recent = observed.recent
        # Steps and segments without those that the gateway refused; messages and bytes with them.
        self.taken_messages = self.taken_steps = self.taken_items = self.taken_bytes = 0
        self.observed_steps = self._reported_steps = self._first_steps = observed.steps
        self.scalars: dict[str, float] = {}
        self.overridden_steps = 0
        if observed.overridden_steps:
            self.overridden(observed.overridden_steps)
        self._reported = _ReportedDemand(0, 0, 0, 0, 0)
        self._disposed: dict[tuple[str, int, str, str, str], list[list[int]]] = {}
        self._episodes: deque[list[float]] = deque(maxlen=RECENT_EPISODES)
        self._evaluations: deque[list[float]] = deque(maxlen=RECENT_EPISODES)
        self._lags = Counter[int]()
        self._rewards: deque[tuple[int, float]] = deque()
        self._reward_steps = 0
        self._gathers = False
        self._reported_at = self._metrics_at = self._began = 0.0

    @property
    def rest_s(self) -> float:
        """The longest time that the thread may wait for data before it must call this reporter again, in seconds."""
        if self._gathers:
            return GATHER_S
        return METRICS_PERIOD_S if self._has_new_metrics else IDLE_S

    def counts(self) -> ObservedDataCounts:
        """Return the counts since the beginning of the training, for a checkpoint."""
        return ObservedDataCounts(self.observed_steps, self.observed_episodes, self._recent, self.overridden_steps)

    def start_clock(self) -> None:
        """Start the clock of ``charts/SPS`` at the first call. Call this when data arrive."""
        self._began = self._began or time.monotonic()

    def record_verdict(self, key: Key, first: int, end: int, verdict: str, reason: str = "", replaces: str = "") -> None:
        ranges = self._disposed.setdefault((*key, verdict, reason, replaces), [])
        if ranges and ranges[-1][1] == first:
            ranges[-1][1] = end
        else:
            ranges.append([first, end])

    def report_verdicts(self) -> None:
        for (actor_id, origin, verdict, reason, replaces), ranges in self._disposed.items():
            self._send(SegmentVerdicts(actor_id, origin, ranges, verdict, reason, replaces))
        self._disposed.clear()

    def report(self, usable_steps: int, version: int, *, at_once: bool = False) -> None:
        """Send verdicts and the demand if they have changed: every `GATHER_S` seconds, or now if `at_once`."""
        limit_steps = max(self._reported.limit_steps, self.taken_steps + usable_steps)
        current = _ReportedDemand(limit_steps, self.taken_messages, self.taken_items, self.taken_bytes, version)
        self._gathers = bool(self._disposed) or current != self._reported
        now = time.monotonic()
        if self._gathers and (at_once or now - self._reported_at >= GATHER_S or self._is_pressing(current)):
            self._gathers, self._reported_at = False, now
            self.report_verdicts()
            if current != self._reported:
                self._reported = current
                self._send(DataDemand(limit_steps - self.taken_steps, self.taken_messages, version))

    def _is_pressing(self, current: _ReportedDemand) -> bool:
        """Return True if an actor may soon wait because the gateway lacks the `current` demand."""
        reported = self._reported
        return (
            2 * (reported.limit_steps - self.taken_steps) < current.limit_steps - self.taken_steps
            or current.version != reported.version
            or current.items - reported.items >= GATHER_ITEMS
            or current.nbytes - reported.nbytes >= GATHER_BYTES
        )

    def ended(self, step: int, total: float, length: int) -> None:
        self.observed_episodes += 1
        self._recent = (*self._recent, (total, length))[-RECENT_EPISODES:]
        self._episodes.append([step, total, length])

    def evaluated(self, version: int, total: float, length: int) -> None:
        """Record an episode of an actor that does not explore: policy version, return (`total`), and length in steps."""
        self._evaluations.append([version, total, length])

    def overridden(self, steps: int) -> None:
        """Count steps whose actions the host overrode."""
        self.overridden_steps += steps
        self.scalars["charts/overridden_steps"] = self.overridden_steps

    def observed(self, lags: Sequence[int], steps: Sequence[int], reward: float) -> None:
        count = sum(steps)
        self.observed_steps += count
        for lag, number in zip(lags, steps, strict=True):
            self._lags[lag] += number
        self._rewards.append((count, reward))
        self._reward_steps += count
        while self._reward_steps - self._rewards[0][0] >= REWARD_STEPS:
            self._reward_steps -= self._rewards.popleft()[0]

    @property
    def _has_new_metrics(self) -> bool:
        return bool(self.scalars or self._episodes or self._evaluations or self.observed_steps != self._reported_steps)

    def report_figures(self, updates: int, *, at_once: bool = False) -> None:
        """Send metrics if they have changed, at most once every `METRICS_PERIOD_S`."""
        now = time.monotonic()
        if self._has_new_metrics and (at_once or now - self._metrics_at >= METRICS_PERIOD_S):
            self._metrics_at = now
            self._reported_steps = self.observed_steps
            self.scalars["charts/SPS"] = (self.observed_steps - self._first_steps) / max(now - self._began, 1e-3)
            if self._reward_steps:
                self.scalars["charts/mean_reward"] = sum(reward for _, reward in self._rewards) / self._reward_steps
            scalars = {k: float(v) for k, v in self.scalars.items()}
            lags = count_lags(self._lags) if self._lags else []
            episodes, evaluations = list(self._episodes), list(self._evaluations)
            self._send(
                TrainingMetrics(self.observed_steps, updates, scalars, episodes, self.observed_episodes, lags, evaluations)
            )
            self.scalars = {}
            self._episodes.clear()
            self._evaluations.clear()
            self._lags.clear()


def plain_text(text: str) -> str:
    """Return a text in ASCII, cut to 12,000 characters, so that any exception's text can be sent in a message."""
    return text.encode("ascii", "backslashreplace").decode()[:12_000]
