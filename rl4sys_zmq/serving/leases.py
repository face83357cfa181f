"""The leases of a server's environments.

A *slot* is the place of one environment. A *lease* is one caller's right to one or more slots. A random number that the caller
chose (its token) identifies it, so taking and returning can be repeated safely. A lease expires after `lease_s` of silence,
but it ends only when another caller then takes one of its slots. A lease in use (a call runs) does not end.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from rl4sys_zmq.errors import CallRefusal
from rl4sys_zmq.liveness import is_silent
from rl4sys_zmq.rpc import RefuseCall

__all__ = ["Lease", "LeaseTable"]

LONG_CALL_S = 1.0
ENDED_LEASES = 1024
"""Number of ended leases that are remembered, to explain to their callers why they ended."""


@dataclass(slots=True)
class Lease:
    """One caller's right to some slots.

    Attributes:
        token: Number that the caller chose.
        slots: Indices of the slots.
        last_message_s: Time of the caller's last message.
        call_started_s: Time when the running call began; None while none runs.
        returned: True if the lease was returned while a call ran; it ends when the call ends.
    """

    token: int
    slots: tuple[int, ...]
    last_message_s: float
    call_started_s: float | None = None
    returned: bool = False


class LeaseTable:
    """The slots of one server. Any thread can use it. Times are those of `time.monotonic`, in seconds."""

    def __init__(self, count: int, lease_s: float) -> None:
        self.count = count
        self.lease_s = lease_s
        self._lock = threading.Lock()
        self._slots: list[Lease | None] = [None] * count
        self._leases: dict[int, Lease] = {}
        self._ended: OrderedDict[int, tuple[int, ...]] = OrderedDict()

    @property
    def taken(self) -> int:
        """The number of slots that are leased."""
        return self.count - self._slots.count(None)

    @property
    def in_use(self) -> bool:
        """True while a call of any lease runs."""
        return any(lease is not None and lease.call_started_s is not None for lease in self._slots)

    def holders(self) -> list[Lease | None]:
        """Return the lease of each slot, or None."""
        return list(self._slots)

    def take(self, token: int, count: int, index: int | None, now: float | None = None) -> tuple[int, ...]:
        """Lease slots to a caller: first free slots, then those of callers that were silent for too long.

        Args:
            token: Number of the lease. A known lease gets the slots that it has.
            count: Number of slots.
            index: Required slot, with a count of one; None: any.
            now: Time in seconds; None: the clock's.

        Returns:
            The indices of the slots, in order.

        Raises:
            Refuse: ``OCCUPIED`` if too few slots are free; ``UNKNOWN`` if there is no such slot.
        """
        now = monotonic() if now is None else now
        if index is not None and not 0 <= index < self.count:
            raise RefuseCall(CallRefusal.UNKNOWN, f"there is no environment {index}; there are {self.count}, counted from 0")
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
                raise RefuseCall(CallRefusal.OCCUPIED, self._why_not(count, index, len(free), now))
            slots = tuple(sorted(free[:count]))
            for i in slots:
                before = self._slots[i]
                if before is not None:
                    self._end(before)
            lease = Lease(token, slots, now)
            self._leases[token] = lease
            for i in slots:
                self._slots[i] = lease
            return slots

    @contextmanager
    def use(self, token: int) -> Iterator[Lease]:
        """Mark the lease as in use within this context, so that its slots stay its own and no second call runs.

        Raises:
            Refuse: ``OCCUPIED`` if another caller has taken one of its slots, ``GONE`` if the lease is unknown, ``BUSY`` while
                another call of it runs.
        """
        with self._lock:
            lease = self._held(token)
            if lease is None:
                raise self._gone(token)
            if lease.call_started_s is not None:
                raise RefuseCall(CallRefusal.BUSY, "another call of this lease still runs")
            lease.last_message_s = lease.call_started_s = monotonic()
        try:
            yield lease
        finally:
            with self._lock:
                lease.call_started_s = None
                lease.last_message_s = monotonic()
                if lease.returned:
                    self._end(lease)

    def keep(self, token: int, now: float | None = None) -> bool:
        """Renew a lease. Return False if it is unknown."""
        with self._lock:
            lease = self._held(token)
            if lease is None:
                return False
            lease.last_message_s = monotonic() if now is None else now
            return True

    def give(self, token: int) -> None:
        """Return the slots of a lease. A second call does nothing."""
        with self._lock:
            lease = self._held(token)
            if lease is not None:
                lease.returned = True
                if lease.call_started_s is None:
                    self._end(lease)

    def _held(self, token: int) -> Lease | None:
        """Return a lease that was not returned."""
        lease = self._leases.get(token)
        return lease if lease is not None and not lease.returned else None

    def _free(self, lease: Lease | None, now: float) -> bool:
        return lease is None or (lease.call_started_s is None and is_silent(now, lease.last_message_s, self.lease_s))

    def _end(self, lease: Lease) -> None:
        del self._leases[lease.token]
        self._ended[lease.token] = lease.slots
        if len(self._ended) > ENDED_LEASES:
            self._ended.popitem(last=False)
        self._slots = [None if held is lease else held for held in self._slots]

    def _why_not(self, count: int, index: int | None, free: int, now: float) -> str:
        what = f"environment {index} is taken" if index is not None else f"{count} requested, {free} free"
        since = {
            i: held.call_started_s for i, held in enumerate(self._slots) if held is not None and held.call_started_s is not None
        }
        stuck = [f"environment {i} has been in a call for {now - s:.0f} s" for i, s in since.items() if now - s > LONG_CALL_S]
        tail = f" ({', '.join(stuck)})" if stuck else ""
        return f"{what}; {self.taken} of {self.count} environments are taken{tail}"

    def _gone(self, token: int) -> RefuseCall:
        slots = self._ended.get(token)
        if slots is not None and any(self._slots[i] is not None for i in slots):
            names = ", ".join(map(str, slots))
            text = (
                f"the lease of environment {names} expired after {self.lease_s:g} s of silence, and another caller has taken it"
            )
            return RefuseCall(CallRefusal.OCCUPIED, f"{text}; call reset() to request a free one")
        return RefuseCall(
            CallRefusal.GONE, "the lease is unknown: the server was restarted, or another caller had it; call reset()"
        )
