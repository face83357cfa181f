"""Counts of the accepted data on the way to one learner thread, from its start to its end.

Data is *waiting* from its acceptance until the gateway sends it, and then *in transit* until the learner thread reports that it
has received the message. Each amount is added and later subtracted unchanged, so that the counts stay exact.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rl4sys_zmq.errors import ProtocolError, RefusalReason


@dataclass(slots=True)
class DataAmount:
    """An amount of data."""

    steps: int = 0  # number of environment steps, without the steps of refused segments
    items: int = 0  # number of segments, without refused segments
    nbytes: int = 0  # size of the whole messages, in bytes

    def add(self, other: DataAmount) -> None:
        """Add another amount, in place."""
        self.steps += other.steps
        self.items += other.items
        self.nbytes += other.nbytes

    def subtract(self, other: DataAmount) -> None:
        """Subtract another amount, in place."""
        self.steps -= other.steps
        self.items -= other.items
        self.nbytes -= other.nbytes

    def __bool__(self) -> bool:
        return bool(self.steps or self.items or self.nbytes)

    def __str__(self) -> str:
        return f"{self.steps} steps in {self.items} segments of {self.nbytes} bytes"


class LearnerThreadBacklog:
    """The data between the gateway and one learner thread."""

    def __init__(self) -> None:
        self.waiting = DataAmount()  # accepted, but not sent so far, because the journal must commit it first
        self.in_transit = DataAmount()  # sent, but not reported as received so far
        self.taken = DataAmount()  # received by the learner thread since its start
        self.messages = 0  # number of messages that the learner thread has received since its start
        self._queue: deque[DataAmount] = deque()

    @property
    def steps(self) -> int:
        """The number of steps that wait or are in transit."""
        return self.waiting.steps + self.in_transit.steps

    @property
    def items(self) -> int:
        """The number of segments that wait or are in transit."""
        return self.waiting.items + self.in_transit.items

    @property
    def nbytes(self) -> int:
        """The number of bytes that wait or are in transit."""
        return self.waiting.nbytes + self.in_transit.nbytes

    @property
    def messages_on_way(self) -> int:
        """The number of messages in transit."""
        return len(self._queue)

    def accept(self, load: DataAmount) -> None:
        """Count accepted data as waiting."""
        self.waiting.add(load)

    def send(self, load: DataAmount, *, waited: bool) -> None:
        """Count one message sent to the learner thread. If it `waited`, `accept` has counted it; replayed data has not waited."""
        if waited:
            self.waiting.subtract(load)
        self.in_transit.add(load)
        self._queue.append(load)

    def take(self, messages: int) -> None:
        """Record the learner thread's report that it has received `messages` messages since its start.

        Raises:
            ProtocolError: If the number is more than the number of messages sent, or less than in an earlier report.
        """
        fresh = messages - self.messages
        if not 0 <= fresh <= len(self._queue):
            problem = f"{messages} messages reported as received; {self.messages} were before, {len(self._queue)} are on the way"
            raise ProtocolError(RefusalReason.RANGE, problem)
        for _ in range(fresh):
            load = self._queue.popleft()
            self.in_transit.subtract(load)
            self.taken.add(load)
        self.messages = messages

    def correct_waiting(self) -> DataAmount | None:
        """Set a wrong count of waiting data to zero, since it would reduce the actors' credit for good. Return it, or None.

        Call this only while the journal has nothing to commit or to replay, so that no data can be waiting.
        """
        if not self.waiting:
            return None
        wrong, self.waiting = self.waiting, DataAmount()
        return wrong
