"""The record of which caller may use which environments of a server.

A *slot* is the index of an environment. A *token* is a random number by which a caller identifies its lease, so that it can
repeat a request. A lease expires after `lease_s` seconds without a message, but ends only when another caller takes one of its
slots, and never while one of its calls runs. Times are those of `time.monotonic`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from rl4sys_zmq.errors import CallRefusalReason
from rl4sys_zmq.liveness import is_silent
from rl4sys_zmq.rpc import CallRefusedByCallback

LONG_CALL_S = 1.0
ENDED_LEASES = 1024
"""Number of ended leases that the table remembers, for error messages to their callers."""


@dataclass(slots=True)
class ServerEnvironmentLease:
    """The server's record of one lease: the right of a remote caller to use one or more environments."""

    token: int
    slots: tuple[int, ...]
    last_message_s: float
    call_started_s: float | None = None  # None while no call runs
    returned: bool = False  # True if the caller returned the lease while a call ran. The lease then ends with the call


class LeaseTable:
    """The table of all leases of a server's environments. Any thread can use this object."""

    def __init__(self, count: int, lease_s: float) -> None:
        self.count = count
        self.lease_s = lease_s
        self._lock = threading.Lock()
        self._slots: list[ServerEnvironmentLease | None] = [None] * count
        self._leases: dict[int, ServerEnvironmentLease] = {}
        self._ended: OrderedDict[int, tuple[int, ...]] = OrderedDict()

    @property
    def taken(self) -> int:
        return self.count - self._slots.count(None)

    @property
    def in_use(self) -> bool:
        return any(lease is not None and lease.call_started_s is not None for lease in self._slots)

    def holders(self) -> list[ServerEnvironmentLease | None]:
        """Return the lease of each environment, or None where it is free."""
        return list(self._slots)

    def lease(self, token: int, count: int, index: int | None, now: float | None = None) -> tuple[int, ...]:
        """Lease `count` environments, and return their indices: free ones first, then those with expired leases.

        `token` identifies the lease, and a repeated request gets the same environments. With `index`, lease only that one.
        """
        now = monotonic() if now is None else now
        if index is not None and not 0 <= index < self.count:
            problem = f"there is no environment {index}; there are {self.count}, counted from 0"
            raise CallRefusedByCallback(CallRefusalReason.UNKNOWN, problem)
        with self._lock:
            known = self._held(token)
            if known is not None:
                known.last_message_s = now
                return known.slots
            if token in self._leases or token in self._ended:
                raise self._gone(token)  # a duplicate of a call whose lease has ended since
            wanted = range(self.count) if index is None else [index]
            free = [i for i in wanted if self._free(self._slots[i], now)]
            free.sort(key=lambda i: (self._slots[i] is not None, i))
            if len(free) < count:
                raise CallRefusedByCallback(CallRefusalReason.OCCUPIED, self._why_not(count, index, len(free), now))
            slots = tuple(sorted(free[:count]))
            for i in slots:
                if (expired := self._slots[i]) is not None:
                    self._end(expired)
            lease = ServerEnvironmentLease(token, slots, now)
            self._leases[token] = lease
            for i in slots:
                self._slots[i] = lease
            return slots

    @contextmanager
    def use(self, token: int) -> Iterator[ServerEnvironmentLease]:
        """Yield the lease with this token, for one call of its caller.

        During the ``with`` block, the lease does not end, and a second call of the caller is refused.
        """
        with self._lock:
            lease = self._held(token)
            if lease is None:
                raise self._gone(token)
            if lease.call_started_s is not None:
                raise CallRefusedByCallback(CallRefusalReason.BUSY, "another call of this lease still runs")
            lease.last_message_s = lease.call_started_s = monotonic()
        try:
            yield lease
        finally:
            with self._lock:
                lease.call_started_s = None
                lease.last_message_s = monotonic()
                if lease.returned:
                    self._end(lease)

    def renew(self, token: int, now: float | None = None) -> bool:
        with self._lock:
            lease = self._held(token)
            if lease is not None:
                lease.last_message_s = monotonic() if now is None else now
            return lease is not None

    def release(self, token: int) -> None:
        """End the lease with this token, at once or after its running call. If there is no such lease, do nothing."""
        with self._lock:
            lease = self._held(token)
            if lease is not None:
                lease.returned = True
                if lease.call_started_s is None:
                    self._end(lease)

    def _held(self, token: int) -> ServerEnvironmentLease | None:
        """Return the lease with this token, or None if there is none or its caller has returned it."""
        lease = self._leases.get(token)
        return lease if lease is not None and not lease.returned else None

    def _free(self, lease: ServerEnvironmentLease | None, now: float) -> bool:
        return lease is None or (lease.call_started_s is None and is_silent(now, lease.last_message_s, self.lease_s))

    def _end(self, lease: ServerEnvironmentLease) -> None:
        del self._leases[lease.token]
        self._ended[lease.token] = lease.slots
        if len(self._ended) > ENDED_LEASES:
            self._ended.popitem(last=False)
        self._slots = [None if held is lease else held for held in self._slots]

    def _why_not(self, count: int, index: int | None, free: int, now: float) -> str:
        what = f"environment {index} is taken" if index is not None else f"{count} requested, {free} free"
        calls = [(i, now - held.call_started_s) for i, held in enumerate(self._slots) if held and held.call_started_s is not None]
        stuck = [f"environment {i} has been in a call for {span_s:.0f} s" for i, span_s in calls if span_s > LONG_CALL_S]
        tail = f" ({', '.join(stuck)})" if stuck else ""
        return f"{what}; {self.taken} of {self.count} environments are taken{tail}"

    def _gone(self, token: int) -> CallRefusedByCallback:
        slots = self._ended.get(token)
        if slots is not None and any(self._slots[i] is not None for i in slots):
            names = ", ".join(map(str, slots))
            text = (
                f"the lease of environment {names} expired after {self.lease_s:g} s of silence, and another caller has taken it"
            )
            return CallRefusedByCallback(CallRefusalReason.OCCUPIED, f"{text}; call reset() to request a free one")
        return CallRefusedByCallback(
            CallRefusalReason.GONE, "the lease is unknown: the server was restarted, or another caller had it; call reset()"
        )
