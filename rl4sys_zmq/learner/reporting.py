"""What a learner thread tells the gateway, and when: verdicts, what it can use, and figures.

Each word wakes the gateway thread, and most lead to an ack that wakes an actor. So words gather for some milliseconds, unless
somebody may be waiting for them.
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

__all__ = ["UpstreamSender", "StatusReporter", "plain_text"]

GATEWAY_TIMEOUT_S = 2.0
GATHER_S = 0.005
GATHER_ITEMS = 256
GATHER_BYTES = 16 << 20
"""For how long words may gather, and for how many segments and bytes: a part of what credit lets wait for a learner thread."""

METRICS_PERIOD_S = 0.1
IDLE_S = 0.5
MAX_EPISODES = 100
"""How many episodes, the latest, are told one by one in each report; all are counted."""


class UpstreamSender:
    """The end that speaks upstream: waits for the gateway's PULL, which is never full for long."""

    def __init__(self, up: Socket, key: bytes) -> None:
        self._up, self._key = up, key

    def say(self, message: Message) -> None:
        """Sends, or raises when the gateway is gone."""
        if not self._up.send_wait([self._key, *encode(message)], GATEWAY_TIMEOUT_S):
            raise Closed(f"the gateway has not read for {GATEWAY_TIMEOUT_S:g} s")


class _Reported(NamedTuple):
    """The state of a learner thread as the gateway was told it last."""

    limit_steps: int
    messages: int
    items: int
    nbytes: int
    version: int


class StatusReporter:
    """Says what is due through a learner thread's mouth.

    Attributes:
        taken_messages: `Deliver` messages taken since the thread's start; and
        taken_steps: the steps in them, refused segments left out; and
        taken_items: the segments, likewise; and
        taken_bytes: the bytes of whole messages.
        observed_steps: what the algorithm has observed in its lineage.
        scalars: figures for the next report, by name.
    """

    def __init__(self, say: Callable[[Message], None], observed_steps: int) -> None:
        """Makes it.

        Args:
            say: sends a message upstream.
            observed_steps: what the algorithm's state had observed when the thread began.
        """
        self._say = say
        self.taken_messages = self.taken_steps = self.taken_items = self.taken_bytes = 0
        self.observed_steps = self._said_steps = self._first_steps = observed_steps
        self.scalars: dict[str, float] = {}
        self._said = _Reported(0, 0, 0, 0, 0)
        self._disposed: dict[tuple[str, int, str, str, str], list[list[int]]] = {}
        self._episodes: deque[list[float]] = deque(maxlen=MAX_EPISODES)
        self._ended = 0
        self._gathers = False
        self._told_at = self._metrics_at = self._began = 0.0

    @property
    def rest_s(self) -> float:
        """For how long there is nothing to say, unless something happens."""
        if self._gathers:
            return GATHER_S
        return METRICS_PERIOD_S if self._news else IDLE_S

    def begin(self) -> None:
        """Data come: from the first of them on, speed is counted."""
        self._began = self._began or time.monotonic()

    # ---- verdicts

    def dispose(self, key: Key, first: int, end: int, verdict: str, reason: str = "", but: str = "") -> None:
        """Segments ``[first, end)`` of a stream met their verdict, and if there is a `but`, that one before."""
        ranges = self._disposed.setdefault((*key, verdict, reason, but), [])
        if ranges and ranges[-1][1] == first:
            ranges[-1][1] = end
        else:
            ranges.append([first, end])

    def report_verdicts(self) -> None:
        """Says them now."""
        for (actor_id, origin, verdict, reason, but), ranges in self._disposed.items():
            self._say(Disposed(actor_id, origin, ranges, verdict, reason, but))
        self._disposed.clear()

    # ---- demand

    def tell(self, usable_steps: int, version: int, *, at_once: bool = False) -> None:
        """Says verdicts and demand, if they are due.

        Args:
            usable_steps: how many more steps the algorithm can use.
            version: the least one to collect with.
            at_once: whether they are due in any case.
        """
        limit_steps = max(self._said.limit_steps, self.taken_steps + usable_steps)
        now_true = _Reported(limit_steps, self.taken_messages, self.taken_items, self.taken_bytes, version)
        self._gathers = bool(self._disposed) or now_true != self._said
        now = time.monotonic()
        if self._gathers and (at_once or now - self._told_at >= GATHER_S or self._is_pressing(now_true)):
            self._gathers, self._told_at = False, now
            self.report_verdicts()
            if now_true != self._said:
                self._said = now_true
                self._say(Demand(limit_steps - self.taken_steps, self.taken_messages, version))

    def _is_pressing(self, now_true: _Reported) -> bool:
        """Return whether an actor may soon have to wait for it: half of what is usable, or more, is not known to be."""
        said = self._said
        return (
            2 * (said.limit_steps - self.taken_steps) < now_true.limit_steps - self.taken_steps
            or now_true.version != said.version
            or now_true.items - said.items >= GATHER_ITEMS
            or now_true.nbytes - said.nbytes >= GATHER_BYTES
        )

    # ---- figures

    def ended(self, episodes: Iterable[tuple[float, float, int]]) -> None:
        """Episodes that have ended: after how many observed steps, with what return, of what length."""
        found = [list(episode) for episode in episodes]
        self._ended += len(found)
        self._episodes.extend(found)

    @property
    def _news(self) -> bool:
        """There are figures that nobody was told."""
        return bool(self.scalars or self._episodes or self.observed_steps != self._said_steps)

    def report_figures(self, updates: int, *, at_once: bool = False) -> None:
        """Says figures, if there are new ones, ten times a second.

        Args:
            updates: how many the algorithm has made.
            at_once: whether they are due in any case.
        """
        now = time.monotonic()
        if self._news and (at_once or now - self._metrics_at >= METRICS_PERIOD_S):
            self._metrics_at = now
            self._said_steps = self.observed_steps
            self.scalars["charts/SPS"] = (self.observed_steps - self._first_steps) / max(now - self._began, 1e-3)
            scalars = {k: float(v) for k, v in self.scalars.items()}
            self._say(Metrics(self.observed_steps, updates, scalars, list(self._episodes), self._ended))
            self.scalars, self._ended = {}, 0
            self._episodes.clear()


def plain_text(text: str) -> str:
    """Text that can travel, whatever an exception put into it."""
    return text.encode("ascii", "backslashreplace").decode()[:12_000]
