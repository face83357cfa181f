"""Who has which environment: leases that end when they are given back, or when somebody else asks after a silence.

A *seat* is the place of one environment. A *lease* is one client's right to one or more seats, known by a random number (its
token) that the client chose, so that taking and giving may be said twice. It runs out after `lease_s` of silence; it ends only
when another client then takes a seat of it, so nothing is lost by a pause that nobody else used. A lease in use (a step runs)
does not end.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from rl4sys_zmq.errors import CallRefusal
from rl4sys_zmq.rpc import Refuse

__all__ = ["Lease", "LeaseTable"]

STUCK_S = 1.0
REMEMBERED = 1024
"""So many leases that have ended are remembered, to tell whoever had them."""


@dataclass(slots=True)
class Lease:
    """One client's right to some seats.

    Attributes:
        token: the number that its client chose.
        seats: which.
        heard_s: when the client was last heard.
        since_s: since when a call of it runs; None while none does.
        given: it was given back while a call of it ran; it ends with that.
    """

    token: int
    seats: tuple[int, ...]
    heard_s: float
    since_s: float | None = None
    given: bool = False


class LeaseTable:
    """The seats of one server. Any thread may use it; times are `time.monotonic`'s unless given."""

    def __init__(self, count: int, lease_s: float) -> None:
        self.count = count
        self.lease_s = lease_s
        self._lock = threading.Lock()
        self._seats: list[Lease | None] = [None] * count
        self._leases: dict[int, Lease] = {}
        self._ended: OrderedDict[int, tuple[int, ...]] = OrderedDict()

    @property
    def taken(self) -> int:
        """How many seats somebody has."""
        return self.count - self._seats.count(None)

    @property
    def in_use(self) -> bool:
        """Whether a call of any lease runs."""
        return any(lease is not None and lease.since_s is not None for lease in self._seats)

    def holders(self) -> list[Lease | None]:
        """Who has each seat."""
        return list(self._seats)

    def take(self, token: int, count: int, index: int | None, now: float | None = None) -> tuple[int, ...]:
        """Gives a client seats: those that nobody has, then those of clients that were silent for too long.

        Args:
            token: the lease's number. One that is known gets what it has.
            count: how many.
            index: the seat that it must be, for one; None: any.
            now: the time, in seconds.

        Returns:
            Their numbers, in order.

        Raises:
            Refuse: ``OCCUPIED`` when there are not as many; it says how many are taken. ``UNKNOWN`` for a seat that is none.
        """
        now = monotonic() if now is None else now
        if index is not None and not 0 <= index < self.count:
            raise Refuse(CallRefusal.UNKNOWN, f"there is no environment {index}; there are {self.count}, from 0 on")
        with self._lock:
            known = self._held(token)
            if known is not None:
                known.heard_s = now
                return known.seats
            if token in self._leases or token in self._ended:
                raise self._gone(token)  # a copy of the call that took it, which has been given back since
            wanted = range(self.count) if index is None else [index]
            free = [i for i in wanted if self._free(self._seats[i], now)]
            free.sort(key=lambda i: (self._seats[i] is not None, i))
            if len(free) < count:
                raise Refuse(CallRefusal.OCCUPIED, self._why_not(count, index, len(free), now))
            seats = tuple(sorted(free[:count]))
            for i in seats:
                before = self._seats[i]
                if before is not None:
                    self._end(before)
            lease = Lease(token, seats, now)
            self._leases[token] = lease
            for i in seats:
                self._seats[i] = lease
            return seats

    @contextmanager
    def use(self, token: int) -> Iterator[Lease]:
        """While entered, the lease is in use: nobody else gets its seats, and no second call of it runs.

        Raises:
            Refuse: ``OCCUPIED`` when another client has taken a seat of it, ``GONE`` when it is not known, ``BUSY`` while a call
                of it runs.
        """
        with self._lock:
            lease = self._held(token)
            if lease is None:
                raise self._gone(token)
            if lease.since_s is not None:
                raise Refuse(CallRefusal.BUSY, "another call of this lease still runs")
            lease.heard_s = lease.since_s = monotonic()
        try:
            yield lease
        finally:
            with self._lock:
                lease.since_s = None
                lease.heard_s = monotonic()
                if lease.given:
                    self._end(lease)

    def keep(self, token: int, now: float | None = None) -> bool:
        """The client is still there; False when it has nothing here."""
        with self._lock:
            lease = self._held(token)
            if lease is None:
                return False
            lease.heard_s = monotonic() if now is None else now
            return True

    def give(self, token: int) -> None:
        """The client needs its seats no more. A second time changes nothing."""
        with self._lock:
            lease = self._held(token)
            if lease is not None:
                lease.given = True
                if lease.since_s is None:
                    self._end(lease)

    def _held(self, token: int) -> Lease | None:
        """A lease that was not given back."""
        lease = self._leases.get(token)
        return lease if lease is not None and not lease.given else None

    def _free(self, lease: Lease | None, now: float) -> bool:
        return lease is None or (lease.since_s is None and now - lease.heard_s > self.lease_s)

    def _end(self, lease: Lease) -> None:
        del self._leases[lease.token]
        self._ended[lease.token] = lease.seats
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        self._seats = [None if held is lease else held for held in self._seats]

    def _why_not(self, count: int, index: int | None, free: int, now: float) -> str:
        what = f"environment {index} is taken" if index is not None else f"{count} wanted, {free} free"
        since = {i: held.since_s for i, held in enumerate(self._seats) if held is not None and held.since_s is not None}
        stuck = [f"environment {i} has been in a call for {now - s:.0f} s" for i, s in since.items() if now - s > STUCK_S]
        tail = f" ({', '.join(stuck)})" if stuck else ""
        return f"{what}; {self.taken} of {self.count} environments are taken{tail}"

    def _gone(self, token: int) -> Refuse:
        seats = self._ended.get(token)
        if seats is not None and any(self._seats[i] is not None for i in seats):
            names = ", ".join(map(str, seats))
            text = (
                f"the lease of environment {names} ran out after {self.lease_s:g} s of silence, and another client has taken it"
            )
            return Refuse(CallRefusal.OCCUPIED, f"{text}; call reset() to ask for a free one")
        return Refuse(
            CallRefusal.GONE, "this server knows no such lease: it was started again, or somebody else had it; call reset()"
        )
