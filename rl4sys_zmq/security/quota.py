"""Quotas: the limits of one user, and token buckets that are given the time by their caller."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Quota", "QuotaMeter", "TokenBucket"]

BURST_S = 2.0
"""Capacity of a bucket, in seconds of its rate."""


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The limits of one user. None: no limit."""

    messages_per_s: float | None = None
    """Messages per second over all connections of the user, with a burst of two seconds' worth."""
    bytes_per_s: float | None = None
    """Bytes of messages per second, with the same burst."""
    actors: int | None = None
    """Actors that are live at the same time."""
    segment_steps: int | None = None
    """Steps of one segment."""
    fetches_per_min: float | None = None
    """Requests for the complete weights per minute."""


class TokenBucket:
    """A rate limit: at most `rate` per second in the long run, with a burst of `BURST_S` seconds' worth."""

    __slots__ = ("_at", "_level", "_rate", "_size")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._size = self._level = max(1.0, rate * BURST_S)
        self._at = now

    def take(self, amount: float, now: float) -> bool:
        """Take `amount` and return True if the bucket holds it; otherwise take nothing and return False.

        A full bucket allows even an amount above its capacity. Its level is then negative until it has refilled.
        """
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level < min(amount, self._size):
            return False
        self._level -= amount
        return True


class QuotaMeter:
    """The token buckets of one user. A rate without a limit has None."""

    __slots__ = ("fetches", "messages", "nbytes")

    def __init__(self, quota: Quota, now: float) -> None:
        self.messages = TokenBucket(quota.messages_per_s, now) if quota.messages_per_s is not None else None
        self.nbytes = TokenBucket(quota.bytes_per_s, now) if quota.bytes_per_s is not None else None
        self.fetches = TokenBucket(quota.fetches_per_min / 60, now) if quota.fetches_per_min is not None else None
