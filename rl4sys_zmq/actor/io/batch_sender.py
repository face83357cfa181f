"""The decisions when to send segments, how many in one message, and how much credit to request."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rl4sys_zmq.actor.io.segment_queue import ENTRY_BYTES, SegmentQueue
from rl4sys_zmq.actor.io.session_parameters import SessionParameters
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.delivery import Action, ActorSession
from rl4sys_zmq.wire import PackedSegment

MAX_BATCH_STEPS = 16_384
MAX_BATCH_ITEMS, MAX_BATCH_BYTES = 64, 1 << 20
"""The limits of one message, beyond its first ``send_frequency`` segments.

A message with one segment costs the learner nearly as much as a message with 16.
"""
MAX_BODY_FRAMES = 200
CREDIT_AHEAD_S = 0.5
"""The time after a message during which the actor requests credit in advance, to save a round trip each."""


class BatchSender:
    """The passage of segments from the queue through the session, in batches. The I/O thread uses it."""

    def __init__(
        self, config: AgentConfig, segment_queue: SegmentQueue, session: ActorSession, yield_to_host: Callable[[], None]
    ) -> None:
        self.session_parameters: SessionParameters | None = None  # in the last `Welcome`, None before the first
        self.first_version = 0  # newest policy version when this actor first joined the learner thread that now trains
        self._linger_s = config.linger_ms / 1000
        self._min_batch_items = max(1, config.send_frequency)
        self._prefers_new = config.overflow == "drop_oldest"
        self._evaluates = not config.explore
        self._segment_queue, self._session, self._yield_to_host = segment_queue, session, yield_to_host
        self._oldest_since: float | None = None
        self._shipped_at = float("-inf")
        self._shipped_steps = 0

    @property
    def next_deadline(self) -> float:
        """The monotonic time at which the oldest queued segment must be sent; infinity if none can be sent."""
        if self._oldest_since is None or not self._session.can_take():
            return float("inf")
        return self._oldest_since + self._linger_s

    @property
    def assigned_steps(self) -> int:
        """The number of steps that the host has finished and that are no longer queued: they were sent or dropped."""
        return self._segment_queue.outbox.put_steps - self._segment_queue.steps

    def send_due(self, now: float, held: tuple[int, int] | None, *, urgent: bool) -> Iterator[list[Action]]:
        """Pass queued segments to the session, if it is time. Carry out each list of actions before the next."""
        segment_queue, session = self._segment_queue, self._session
        if held is not None:
            self._drop_stale(*held)
        if not segment_queue.items:
            self._oldest_since = None
            return
        if self._oldest_since is None:
            self._oldest_since = now
        due = (
            urgent
            or segment_queue.items >= self._min_batch_items
            or now - self._oldest_since >= self._linger_s
            or session.sent_steps + segment_queue.steps >= session.credit_steps
        )
        shipped = 0
        while due and session.can_take():
            batch = self._take_batch()
            if not batch:
                break
            shipped += sum(packed.steps for packed in batch)
            actions = session.take(now, batch, ahead_steps=self._ahead(now, shipped))
            segment_queue.in_hand = 0
            yield actions
        if shipped:
            self._shipped_at, self._shipped_steps = now, shipped
        if not segment_queue.items:
            self._oldest_since = None

    def wanted_steps(self, now: float, asked_steps: int) -> int:
        """Return the total number of steps that the actor wants to be allowed to send: the credit to request."""
        need = max(self._segment_queue.steps, asked_steps - self.assigned_steps, self._ahead(now, self._shipped_steps))
        return self._session.sent_steps + need

    def _ahead(self, now: float, steps: int) -> int:
        return steps if now - self._shipped_at < CREDIT_AHEAD_S else 0

    def _take_batch(self) -> list[PackedSegment]:
        segment_queue = self._segment_queue
        batch: list[PackedSegment] = []
        steps = size = frames = 0
        limit = self.session_parameters.max_message_bytes if self.session_parameters is not None else 0
        while steps < MAX_BATCH_STEPS and frames < MAX_BODY_FRAMES and len(batch) < max(self._min_batch_items, MAX_BATCH_ITEMS):
            self._yield_to_host()
            head = segment_queue.peek()
            if head is None or (batch and (not self._session.has_room(len(batch), steps) or size + 2 * head.nbytes > limit)):
                break
            if len(batch) >= self._min_batch_items and size + head.nbytes > MAX_BATCH_BYTES:
                break
            if head.nbytes + ENTRY_BYTES > limit:
                if not segment_queue.drop("too_large"):
                    break
                continue
            segment_queue.in_hand = len(batch) + 1
            packed = segment_queue.take()
            if packed is None:
                segment_queue.in_hand = len(batch)
                break
            batch.append(packed)
            steps, size, frames = steps + packed.steps, size + packed.nbytes, frames + len(packed.large)
        return batch

    def _drop_stale(self, generation: int, version: int) -> None:
        """Drop segments of policy versions that the learner would not train on, or that the credit cannot reach."""
        segment_queue, session_parameters = self._segment_queue, self.session_parameters
        if (
            segment_queue.spool is not None
            or self._evaluates
            or session_parameters is None
            or session_parameters.max_policy_lag < 0
            or session_parameters.on_lag != "drop"
        ):
            return
        lowest = version - session_parameters.max_policy_lag
        room = self._session.credit_steps - self._session.sent_steps
        # A host that collects faster than the learner trains sends its newest segments.
        if self._prefers_new and room > 0 and not self._session.leaving:
            lowest = max(lowest, segment_queue.outbox.newest_version(room, generation))
        while (head := segment_queue.peek()) is not None:
            oldest = head.oldest_version
            if head.generation != generation:  # no newer than the first version of the current generation
                oldest = min(oldest, self.first_version)
            if oldest >= lowest or not segment_queue.drop("lag"):
                return
