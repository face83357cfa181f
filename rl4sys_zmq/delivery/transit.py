"""Count the data that one life of a learner thread was given and has not taken yet.

One object counts both ends, so that they cannot part: what goes in is put down as it will come out. An amount is *waiting*
from the moment it is accepted until it leaves for the learner thread, and *on its way* until the learner thread says that it
has taken the message.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rl4sys_zmq.errors import ProtocolError, Refusal

__all__ = ["Load", "Transit"]


@dataclass(slots=True)
class Load:
    """An amount of data.

    Attributes:
        steps: environment steps, without those of refused segments.
        items: segments, without refused ones.
        nbytes: bytes of whole messages.
    """

    steps: int = 0
    items: int = 0
    nbytes: int = 0

    def add(self, other: Load) -> None:
        """Add another amount to this one."""
        self.steps += other.steps
        self.items += other.items
        self.nbytes += other.nbytes

    def subtract(self, other: Load) -> None:
        """Take another amount away from this one."""
        self.steps -= other.steps
        self.items -= other.items
        self.nbytes -= other.nbytes

    def __bool__(self) -> bool:
        return bool(self.steps or self.items or self.nbytes)

    def __str__(self) -> str:
        return f"{self.steps} steps in {self.items} segments of {self.nbytes} bytes"


class Transit:
    """The data between the gateway and one life of a learner thread.

    Attributes:
        waiting: accepted in this life, and not sent to the learner thread: the journal still writes it.
        on_way: sent to the learner thread, which has not said that it has taken it.
        taken: taken in this life.
        messages: how many messages the learner thread has taken.
    """

    def __init__(self) -> None:
        self.waiting = Load()
        self.on_way = Load()
        self.taken = Load()
        self.messages = 0
        self._queue: deque[Load] = deque()

    @property
    def steps(self) -> int:
        """Steps that are waiting or on their way."""
        return self.waiting.steps + self.on_way.steps

    @property
    def items(self) -> int:
        """Segments that are waiting or on their way."""
        return self.waiting.items + self.on_way.items

    @property
    def nbytes(self) -> int:
        """Bytes that are waiting or on their way."""
        return self.waiting.nbytes + self.on_way.nbytes

    @property
    def messages_on_way(self) -> int:
        """Messages that the learner thread has not taken."""
        return len(self._queue)

    def accept(self, load: Load) -> None:
        """Count data that an actor has sent and that the gateway has accepted."""
        self.waiting.add(load)

    def send(self, load: Load, *, waited: bool) -> None:
        """Count one message that leaves for the learner thread.

        Args:
            load: what the learner thread will take of it; segments that it is told to skip are left out.
            waited: the message was accepted in this life. A message that the journal gives back was not.
        """
        if waited:
            self.waiting.subtract(load)
        self.on_way.add(load)
        self._queue.append(load)

    def take(self, messages: int) -> None:
        """Note how many messages the learner thread has taken in this life.

        Raises:
            ProtocolError: If it says that it has taken more than it was sent, or less than it has said before.
        """
        fresh = messages - self.messages
        if not 0 <= fresh <= len(self._queue):
            problem = f"{messages} messages taken: {self.messages} were before, {len(self._queue)} are on their way"
            raise ProtocolError(Refusal.RANGE, problem)
        for _ in range(fresh):
            load = self._queue.popleft()
            self.on_way.subtract(load)
            self.taken.add(load)
        self.messages = messages

    def settle(self) -> Load | None:
        """Correct the count of waiting data when nothing can be waiting: the journal has nothing to write or to give back.

        Returns:
            What was counted as waiting and is not there; None if the count was right.
        """
        if not self.waiting:
            return None
        wrong, self.waiting = self.waiting, Load()
        return wrong
