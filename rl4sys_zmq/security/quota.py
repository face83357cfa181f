"""Quotas: the limits of one user, and token buckets that enforce rates. The caller passes the time to them."""

from __future__ import annotations

from dataclasses import dataclass

# The capacity of a token bucket, as the time in which it refills.
BURST_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The limits of one user. None: no limit."""

    messages_per_s: float | None = None
    """Over all connections of the user. For a short time, the messages of two seconds can come at once."""
    bytes_per_s: float | None = None
    """Over all connections of the user. For a short time, the bytes of two seconds can come at once."""
    actors: int | None = None
    """Number of actors that are live at the same time."""
    segment_steps: int | None = None
    """Number of steps of one segment."""
    fetches_per_min: float | None = None
    """Requests for the complete weights."""


class TokenBucket:
    """A rate limit: at most `rate` per second on average, and the amount of `BURST_S` seconds (at least 1) at once."""

    __slots__ = ("_at", "_level", "_rate", "_size")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._size = self._level = max(1.0, rate * BURST_S)
        self._at = now

    def take(self, amount: float, now: float) -> bool:
        """Take `amount` if the bucket holds as much, or is full: its level can then be negative. Else return False."""
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level < min(amount, self._size):
            return False
        self._level -= amount
        return True


class UserBuckets:
    """The token buckets of one user. None: no limit."""

    __slots__ = ("fetches", "messages", "nbytes")

    def __init__(self, quota: Quota, now: float) -> None:
        self.messages = TokenBucket(quota.messages_per_s, now) if quota.messages_per_s is not None else None
        self.nbytes = TokenBucket(quota.bytes_per_s, now) if quota.bytes_per_s is not None else None
        self.fetches = TokenBucket(quota.fetches_per_min / 60, now) if quota.fetches_per_min is not None else None
