"""The count of the data between the gateway and a learner thread, in one generation (from the thread's start to its end).

An amount is *waiting* from its acceptance until the gateway sends it to the learner thread. It is then *on its way* until the
learner thread reports that it has received the message. The same amounts are added and subtracted, so the counts cannot diverge.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rl4sys_zmq.errors import ProtocolError, Refusal

__all__ = ["Amount", "Transit"]


@dataclass(slots=True)
class Amount:
    """An amount of data.

    Attributes:
        steps: The number of environment steps, without those of refused segments.
        items: The number of segments, without refused ones.
        nbytes: The size of the whole messages in bytes.
    """

    steps: int = 0
    items: int = 0
    nbytes: int = 0

    def add(self, other: Amount) -> None:
        """Add another amount to this one."""
        self.steps += other.steps
        self.items += other.items
        self.nbytes += other.nbytes

    def subtract(self, other: Amount) -> None:
        """Subtract another amount from this one."""
        self.steps -= other.steps
        self.items -= other.items
        self.nbytes -= other.nbytes

    def __bool__(self) -> bool:
        return bool(self.steps or self.items or self.nbytes)

    def __str__(self) -> str:
        return f"{self.steps} steps in {self.items} segments of {self.nbytes} bytes"


class Transit:
    """The data between the gateway and one generation of a learner thread.

    Attributes:
        waiting: The data accepted in this generation and not sent to the learner thread. The journal still has to commit it.
        in_transit: The data sent to the learner thread, which has not reported that it received it.
        taken: The data that the learner thread has received in this generation.
        messages: How many messages the learner thread has received.
    """

    def __init__(self) -> None:
        self.waiting = Amount()
        self.in_transit = Amount()
        self.taken = Amount()
        self.messages = 0
        self._queue: deque[Amount] = deque()

    @property
    def steps(self) -> int:
        """The number of steps that are waiting or on their way."""
        return self.waiting.steps + self.in_transit.steps

    @property
    def items(self) -> int:
        """The number of segments that are waiting or on their way."""
        return self.waiting.items + self.in_transit.items

    @property
    def nbytes(self) -> int:
        """The number of bytes that are waiting or on their way."""
        return self.waiting.nbytes + self.in_transit.nbytes

    @property
    def messages_on_way(self) -> int:
        """The number of messages sent that the learner thread has not reported as received."""
        return len(self._queue)

    def accept(self, load: Amount) -> None:
        """Count data that the gateway has accepted from an actor."""
        self.waiting.add(load)

    def send(self, load: Amount, *, waited: bool) -> None:
        """Count one message sent to the learner thread.

        Args:
            load: The size of the message, without refused segments and those that the learner thread skips.
            waited: True if the message was accepted in this generation; False for one that the journal replays.
        """
        if waited:
            self.waiting.subtract(load)
        self.in_transit.add(load)
        self._queue.append(load)

    def take(self, messages: int) -> None:
        """Record how many messages the learner thread has received in this generation.

        Raises:
            ProtocolError: If the number exceeds the messages sent, or is less than reported before.
        """
        fresh = messages - self.messages
        if not 0 <= fresh <= len(self._queue):
            problem = f"{messages} messages reported as received; {self.messages} were before, {len(self._queue)} are on the way"
            raise ProtocolError(Refusal.RANGE, problem)
        for _ in range(fresh):
            load = self._queue.popleft()
            self.in_transit.subtract(load)
            self.taken.add(load)
        self.messages = messages

    def correct_waiting(self) -> Amount | None:
        """Set the count of waiting data to zero. Call it only while the journal has nothing to commit or to replay.

        Returns:
            The amount that was counted by mistake; None if the count was right.
        """
        if not self.waiting:
            return None
        wrong, self.waiting = self.waiting, Amount()
        return wrong
