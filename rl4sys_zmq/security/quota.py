"""Rates that a sender may not exceed, on the caller's clock."""

from __future__ import annotations

__all__ = ["TokenBucket"]

BURST_S = 2.0
"""How many seconds' worth of a rate a full bucket holds."""


class TokenBucket:
    """A rate limit: at most `rate` a second in the long run, and `BURST_S` seconds' worth at once."""

    __slots__ = ("_at", "_level", "_rate", "_size")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._size = self._level = max(1.0, rate * BURST_S)
        self._at = now

    def take(self, amount: float, now: float) -> bool:
        """Take `amount` and return True if the bucket holds it; otherwise take nothing and return False.

        A full bucket lets through even more than it holds; its level is negative until that is made up for.
        """
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level < min(amount, self._size):
            return False
        self._level -= amount
        return True
