"""Simulated faults for messages without a network, for sans-IO sessions and inproc pairs."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.transports import Frames

__all__ = ["ChaosFrames"]


@dataclass(slots=True)
class _Held:
    """A delayed message."""

    left: int  # number of messages that still overtake it
    message: list[bytes]


class ChaosFrames:
    """An unreliable link as a function: it takes a message and returns the messages that arrive now.

    Each message can be dropped, duplicated, overtaken by up to `max_delay` later ones, or have one bit of one frame flipped. The
    same seed and messages give the same result.

    Attributes:
        counters: ``dropped``, ``duplicated``, ``reordered``, ``corrupted``, ``passed``.
    """

    def __init__(
        self,
        seed: int,
        *,
        drop: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        corrupt: float = 0.0,
        max_delay: int = 4,
    ) -> None:
        self._rng = random.Random(seed)
        self._drop, self._duplicate, self._reorder, self._corrupt = drop, duplicate, reorder, corrupt
        self._max_delay = max_delay
        self._held: list[_Held] = []
        self.counters = Counters()

    def __call__(self, message: Frames) -> list[list[bytes]]:
        """Send a message. Return the messages that arrive then, including delayed ones; possibly none."""
        arriving: list[list[bytes]] = []
        for _ in range(self._copies()):
            copy = [bytes(frame) for frame in message]
            if self._happens(self._corrupt, "corrupted"):
                self._flip(copy)
            if self._happens(self._reorder, "reordered"):
                self._held.append(_Held(self._rng.randint(1, self._max_delay) + 1, copy))
            else:
                arriving.append(copy)
        for held in self._held:
            held.left -= 1
        arriving += [held.message for held in self._held if held.left <= 0]
        self._held = [held for held in self._held if held.left > 0]
        self.counters.add("passed", len(arriving))
        return arriving

    def flush(self) -> list[list[bytes]]:
        """Return all delayed messages, in random order."""
        late = [held.message for held in self._held]
        self._held = []
        self._rng.shuffle(late)
        self.counters.add("passed", len(late))
        return late

    def _copies(self) -> int:
        if self._happens(self._drop, "dropped"):
            return 0
        return 2 if self._happens(self._duplicate, "duplicated") else 1

    def _happens(self, probability: float, name: str) -> bool:
        happens = self._rng.random() < probability
        if happens:
            self.counters.add(name)
        return happens

    def _flip(self, message: list[bytes]) -> None:
        filled = [index for index, frame in enumerate(message) if frame]
        if filled:
            index = self._rng.choice(filled)
            frame = bytearray(message[index])
            frame[self._rng.randrange(len(frame))] ^= 1 << self._rng.randrange(8)
            message[index] = bytes(frame)
