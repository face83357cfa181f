"""Named counters of events, such as refused messages, for status reports and monitoring.

A `Counters` object belongs to one object, such as an agent or a server. Any thread can increase its counters without a lock:
each thread has separate numbers, and a read returns their sum. Names are dotted: ``refused.checksum``,
``dropped_at_source.lag``.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import get_ident


class Counters:
    """A set of named integers that count events. They only increase. Any thread can use the object without a lock."""

    def __init__(self) -> None:
        self._counts: dict[int, dict[str, int]] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Add `amount` (not negative) to the counter `name`."""
        mine = self._counts.get(get_ident())
        if mine is None:
            mine = self._counts[get_ident()] = {}
        mine[name] = mine.get(name, 0) + amount

    def get(self, name: str) -> int:
        """Return the value of the counter `name`. A counter to which nothing was added is 0."""
        return sum([counts.get(name, 0) for counts in self._counts.copy().values()])

    def under(self, prefix: str) -> dict[str, int]:
        """Return the counters whose names begin with ``prefix.``, as a dict from the rest of the name to the value."""
        start = prefix + "."
        return {name[len(start) :]: value for name, value in self._items() if name.startswith(start)}

    def total(self, prefix: str) -> int:
        """Return the sum of all counters whose names begin with ``prefix.``."""
        return sum(self.under(prefix).values())

    def snapshot(self) -> dict[str, int]:
        """Return all counters, as a new dict from name to value."""
        return dict(self._items())

    def _items(self) -> Iterator[tuple[str, int]]:
        totals: dict[str, int] = {}
        for counts in self._counts.copy().values():
            for name, count in counts.copy().items():
                totals[name] = totals.get(name, 0) + count
        return iter(totals.items())
