"""Quotas: the limits of one user, and rates that are measured on the caller's clock."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Quota", "QuotaMeter", "TokenBucket"]

BURST_S = 2.0
"""How many seconds' worth of a rate a full bucket holds."""


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The limits of one user; None: no limit of its own."""

    messages_per_s: float | None = None
    """Messages, over all its connections; two seconds' worth at once."""
    bytes_per_s: float | None = None
    """Bytes of messages, likewise."""
    actors: int | None = None
    """Actors that are live at the same time."""
    segment_steps: int | None = None
    """Steps of one segment."""
    fetches_per_min: float | None = None
    """Requests for whole weights."""


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


class QuotaMeter:
    """The rates of one user. A rate without a limit is None."""

    __slots__ = ("fetches", "messages", "nbytes")

    def __init__(self, quota: Quota, now: float) -> None:
        self.messages = TokenBucket(quota.messages_per_s, now) if quota.messages_per_s is not None else None
        self.nbytes = TokenBucket(quota.bytes_per_s, now) if quota.bytes_per_s is not None else None
        self.fetches = TokenBucket(quota.fetches_per_min / 60, now) if quota.fetches_per_min is not None else None
