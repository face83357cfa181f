"""The messages from a learner thread to the gateway: verdicts, demand and metrics.

Each message wakes the gateway thread, and most of them cause an ack that wakes an actor. So reports are gathered for
`GATHER_S` seconds, unless an actor may be waiting for them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from rl4sys_zmq.delivery import Key
from rl4sys_zmq.errors import Closed
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import Demand, Disposed, Message, Metrics

__all__ = ["GatewaySender", "StatusReporter", "plain_text"]

GATEWAY_TIMEOUT_S = 2.0
"""Longest wait for space in the gateway's PULL, in seconds."""

GATHER_S = 0.005
GATHER_ITEMS = 256
GATHER_BYTES = 16 << 20
"""Limits for gathering a report: a time in seconds, and the segments and bytes taken since the last report. The last two are a
fraction of the credit of a learner thread."""

METRICS_PERIOD_S = 0.1
IDLE_S = 0.5
MAX_EPISODES = 100
"""Number of episodes, the latest ones, that a report lists. All are counted."""


class GatewaySender:
    """The sender of a learner thread's messages to the gateway. It waits while the gateway's PULL is full."""

    def __init__(self, up: Socket, key: bytes) -> None:
        self._up, self._key = up, key

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            Closed: If the gateway has read nothing for `GATEWAY_TIMEOUT_S` seconds.
        """
        if not self._up.send_wait([self._key, *encode(message)], GATEWAY_TIMEOUT_S):
            raise Closed(f"the gateway has read no message for {GATEWAY_TIMEOUT_S:g} s")


class _Reported(NamedTuple):
    """The state of a learner thread in its last report."""

    limit_steps: int
    messages: int
    items: int
    nbytes: int
    version: int


class StatusReporter:
    """The reports of a learner thread: it gathers verdicts, demand and metrics, and sends them when they are due.

    Attributes:
        taken_messages: Number of `Deliver` messages taken since the start of the thread.
        taken_steps: Number of steps in them, without refused segments.
        taken_items: Number of segments in them, without refused ones.
        taken_bytes: Size of the whole messages, in bytes.
        observed_steps: Number of steps that the algorithm's state has observed, including those before the checkpoint.
        scalars: Metrics for the next report, by name.
    """

    def __init__(self, send: Callable[[Message], None], observed_steps: int) -> None:
        """Create a reporter with nothing to report.

        Args:
            send: Sends a message to the gateway.
            observed_steps: Number of steps that the algorithm's state had observed at the start of the thread.
        """
        self._send = send
        self.taken_messages = self.taken_steps = self.taken_items = self.taken_bytes = 0
        self.observed_steps = self._said_steps = self._first_steps = observed_steps
        self.scalars: dict[str, float] = {}
        self._reported = _Reported(0, 0, 0, 0, 0)
        self._disposed: dict[tuple[str, int, str, str, str], list[list[int]]] = {}
        self._episodes: deque[list[float]] = deque(maxlen=MAX_EPISODES)
        self._ended = 0
        self._gathers = False
        self._reported_at = self._metrics_at = self._began = 0.0

    @property
    def rest_s(self) -> float:
        """The time until the next report if nothing happens, in seconds."""
        if self._gathers:
            return GATHER_S
        return METRICS_PERIOD_S if self._news else IDLE_S

    def begin(self) -> None:
        """Start to measure speed, at the first call. Call this when data arrive."""
        self._began = self._began or time.monotonic()

    # ---- verdicts

    def record_verdict(self, key: Key, first: int, end: int, verdict: str, reason: str = "", replaces: str = "") -> None:
        """Record a verdict for segments ``[first, end)`` of a stream.

        Args:
            key: The actor of the stream, and its origin (the incarnation that began the numbering).
            first: Number of the first segment.
            end: Number after the last segment.
            verdict: The verdict.
            reason: The reason, for quarantined segments.
            replaces: The earlier verdict that this one replaces, or empty.
        """
        ranges = self._disposed.setdefault((*key, verdict, reason, replaces), [])
        if ranges and ranges[-1][1] == first:
            ranges[-1][1] = end
        else:
            ranges.append([first, end])

    def report_verdicts(self) -> None:
        """Send the recorded verdicts now."""
        for (actor_id, origin, verdict, reason, replaces), ranges in self._disposed.items():
            self._send(Disposed(actor_id, origin, ranges, verdict, reason, replaces))
        self._disposed.clear()

    # ---- demand

    def report(self, usable_steps: int, version: int, *, at_once: bool = False) -> None:
        """Send verdicts and demand, if they are due.

        Args:
            usable_steps: Number of further steps that the algorithm can use.
            version: The lowest policy version with which actors should start a segment.
            at_once: Send them even if they are not due.
        """
        limit_steps = max(self._reported.limit_steps, self.taken_steps + usable_steps)
        now_true = _Reported(limit_steps, self.taken_messages, self.taken_items, self.taken_bytes, version)
        self._gathers = bool(self._disposed) or now_true != self._reported
        now = time.monotonic()
        if self._gathers and (at_once or now - self._reported_at >= GATHER_S or self._is_pressing(now_true)):
            self._gathers, self._reported_at = False, now
            self.report_verdicts()
            if now_true != self._reported:
                self._reported = now_true
                self._send(Demand(limit_steps - self.taken_steps, self.taken_messages, version))

    def _is_pressing(self, now_true: _Reported) -> bool:
        """Return True if an actor may soon have to wait for this report.

        That is so if less than half of the usable steps was reported, if the version changed, or if many segments or bytes
        were taken since the last report.
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
        """Record episodes that have ended.

        Args:
            episodes: For each episode, the number of observed steps at its end, its return, and its length in steps.
        """
        found = [list(episode) for episode in episodes]
        self._ended += len(found)
        self._episodes.extend(found)

    @property
    def _news(self) -> bool:
        """True if there are metrics that were not sent."""
        return bool(self.scalars or self._episodes or self.observed_steps != self._said_steps)

    def report_figures(self, updates: int, *, at_once: bool = False) -> None:
        """Send metrics if there are new ones, at most once every `METRICS_PERIOD_S` seconds.

        Args:
            updates: Number of updates that the algorithm has made.
            at_once: Send them even if they are not due.
        """
        now = time.monotonic()
        if self._news and (at_once or now - self._metrics_at >= METRICS_PERIOD_S):
            self._metrics_at = now
            self._said_steps = self.observed_steps
            self.scalars["charts/SPS"] = (self.observed_steps - self._first_steps) / max(now - self._began, 1e-3)
            scalars = {k: float(v) for k, v in self.scalars.items()}
            self._send(Metrics(self.observed_steps, updates, scalars, list(self._episodes), self._ended))
            self.scalars, self._ended = {}, 0
            self._episodes.clear()


def plain_text(text: str) -> str:
    """Return a text in ASCII with escapes, at most 12,000 characters, so that any exception's text can be sent."""
    return text.encode("ascii", "backslashreplace").decode()[:12_000]
