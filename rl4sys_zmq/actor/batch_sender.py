"""The choice of which segments leave now, how many share a message, and how much credit to request."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rl4sys_zmq.actor.segment_queue import ENTRY_BYTES, SegmentQueue
from rl4sys_zmq.actor.session_parameters import SessionParameters
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.delivery import Action, ActorSession
from rl4sys_zmq.wire import PackedSegment

__all__ = ["BatchSender"]

MAX_BATCH_STEPS = 16_384
MAX_BATCH_ITEMS, MAX_BATCH_BYTES = 64, 1 << 20
"""The limits of a message beyond `send_frequency` segments. One segment costs the learner nearly as much as 16."""
MAX_BODY_FRAMES = 200
CREDIT_AHEAD_S = 0.5
"""The age of the last message up to which the next one's credit is requested with the current one, in seconds.

That saves a round trip for each message. It is half the time that the learner lets an actor keep unused credit
(`delivery.credit.IDLE_S`), so a batch that other actors could fill does not wait for this one.
"""


class BatchSender:
    """The link between the segment queue and the session. Used in the I/O thread.

    It calls `yield_to_host` in the middle of long work.

    Attributes:
        session_parameters: The learner's session parameters, None before the first.
        first_version: The first version of the current generation, as far as this actor knows.
    """

    def __init__(
        self, config: AgentConfig, segment_queue: SegmentQueue, session: ActorSession, yield_to_host: Callable[[], None]
    ) -> None:
        self.session_parameters: SessionParameters | None = None
        self.first_version = 0
        self._linger_s = config.linger_ms / 1000
        self._min_batch_items = max(1, config.send_frequency)
        self._segment_queue, self._session, self._yield_to_host = segment_queue, session, yield_to_host
        self._oldest_since: float | None = None
        self._shipped_at = float("-inf")
        self._shipped_steps = 0

    @property
    def next_deadline(self) -> float:
        """The time at which the oldest queued segment is due. Infinity if the queue is empty or an ack must arrive first."""
        if self._oldest_since is None or not self._session.can_take():
            return float("inf")
        return self._oldest_since + self._linger_s

    @property
    def assigned_steps(self) -> int:
        """The number of finished steps that are no longer in the queue."""
        return self._segment_queue.outbox.put_steps - self._segment_queue.steps

    def send_due(self, now: float, held: tuple[int, int] | None, *, urgent: bool) -> Iterator[list[Action]]:
        """Send the segments that are due: enough for a message or for the credit, queued for long enough, or waited for.

        Args:
            now: The monotonic time, in seconds.
            held: The (generation, version) of the policy, None without one.
            urgent: True if a host thread waits.

        Yields:
            The actions for each message, to be carried out before the next iteration.
        """
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
        """Return the steps to request in all. Host threads request `asked_steps`, counted since the start."""
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
            if head is None or (batch and (not self._room(steps, len(batch)) or size + 2 * head.nbytes > limit)):
                break
            if len(batch) >= self._min_batch_items and size + head.nbytes > MAX_BATCH_BYTES:
                break
            if head.nbytes + ENTRY_BYTES > limit:
                if not segment_queue.drop("too_large"):
                    break
                continue
            segment_queue.in_hand = len(batch) + 1
            taken = segment_queue.take(1, limit)
            if not taken:
                segment_queue.in_hand = len(batch)
                break
            packed = taken[0]
            batch.append(packed)
            steps, size, frames = steps + packed.steps, size + packed.nbytes, frames + len(packed.large)
        return batch

    def _room(self, steps: int, items: int) -> bool:
        session = self._session
        return session.sent_steps + steps < session.credit_steps and session.has_room(items)

    def _drop_stale(self, generation: int, version: int) -> None:
        """Without a spool, drop the segments that are too old. The learner would drop them anyway."""
        segment_queue, session_parameters = self._segment_queue, self.session_parameters
        if (
            segment_queue.spool is not None
            or session_parameters is None
            or session_parameters.max_policy_lag < 0
            or session_parameters.on_lag != "drop"
        ):
            return
        while (head := segment_queue.peek()) is not None:
            oldest = head.oldest_version
            if head.generation != generation:  # no newer than the first version of the current generation
                oldest = min(oldest, self.first_version)
            if version - oldest <= session_parameters.max_policy_lag or not segment_queue.drop("lag"):
                return
