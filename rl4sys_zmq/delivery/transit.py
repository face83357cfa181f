"""Counts of the data that a learner has accepted from actors and that is on the way to its learner thread.

The gateway is the learner's network thread, and a learner thread trains one client. Data is *waiting* from its acceptance until
the gateway sends it to the learner thread. After that, data is *in transit* until the learner thread reports that it has
received the message. The counts cover one learner thread from its start to its end. Each amount is added and later subtracted
unchanged, so that the counts stay exact.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rl4sys_zmq.errors import ProtocolError, RefusalReason


@dataclass(slots=True)
class DataAmount:
    """An amount of data, counted in steps, segments and bytes.

    Attributes:
        steps: The number of environment steps, without the steps of refused segments.
        items: The number of segments, without refused segments.
        nbytes: The size of the whole messages, in bytes.
    """

    steps: int = 0
    items: int = 0
    nbytes: int = 0

    def add(self, other: DataAmount) -> None:
        """Add another amount to this one, in place."""
        self.steps += other.steps
        self.items += other.items
        self.nbytes += other.nbytes

    def subtract(self, other: DataAmount) -> None:
        """Subtract another amount from this one, in place."""
        self.steps -= other.steps
        self.items -= other.items
        self.nbytes -= other.nbytes

    def __bool__(self) -> bool:
        return bool(self.steps or self.items or self.nbytes)

    def __str__(self) -> str:
        return f"{self.steps} steps in {self.items} segments of {self.nbytes} bytes"


class LearnerThreadBacklog:
    """The counts of the data between the gateway (the learner's network thread) and one learner thread, since its start.

    Attributes:
        waiting: The data that was accepted since the start and is not sent so far, because the journal must commit it first.
        in_transit: The data that was sent, and that the learner thread has not reported as received so far.
        taken: The data that the learner thread has received since its start.
        messages: The number of messages that the learner thread has received since its start.
    """

    def __init__(self) -> None:
        self.waiting = DataAmount()
        self.in_transit = DataAmount()
        self.taken = DataAmount()
        self.messages = 0
        self._queue: deque[DataAmount] = deque()

    @property
    def steps(self) -> int:
        """The number of steps that wait to be sent to the learner thread or are in transit."""
        return self.waiting.steps + self.in_transit.steps

    @property
    def items(self) -> int:
        """The number of segments that wait to be sent to the learner thread or are in transit."""
        return self.waiting.items + self.in_transit.items

    @property
    def nbytes(self) -> int:
        """The number of bytes that wait to be sent to the learner thread or are in transit."""
        return self.waiting.nbytes + self.in_transit.nbytes

    @property
    def messages_on_way(self) -> int:
        """The number of messages in transit: sent, but not reported as received by the learner thread so far."""
        return len(self._queue)

    def accept(self, load: DataAmount) -> None:
        """Count data that the gateway (network thread) has accepted from an actor as waiting for the learner thread."""
        self.waiting.add(load)

    def send(self, load: DataAmount, *, waited: bool) -> None:
        """Count one message sent to the learner thread.

        Args:
            load: The amount of data in the message, without refused segments and segments that the learner thread skips.
            waited: True if the data was counted as waiting before. False if it was accepted before the learner thread's start,
                and is now read again from the journal.
        """
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
        """Correct a wrong count of waiting data by setting it to zero. Otherwise it would reduce the actors' credit for good.

        Call this only while the journal has nothing to commit or to replay, so that no data can be waiting.

        Returns:
            The amount that was wrongly counted as waiting; None if the count was correct (zero).
        """
        if not self.waiting:
            return None
        wrong, self.waiting = self.waiting, DataAmount()
        return wrong
