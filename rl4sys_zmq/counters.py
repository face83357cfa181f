"""Counters that any module can raise. `ops` exports them.

A `Counters` belongs to one object (an agent, a gateway, a `Server`). Any thread can raise its counters without a lock: each
thread has numbers of its own, and reading adds them up. Names are dotted: ``refused.checksum``, ``dropped_at_source.lag``.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import get_ident

__all__ = ["Counters"]


class Counters:
    """Named integers that only grow."""

    def __init__(self) -> None:
        self._counts: dict[int, dict[str, int]] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Add `amount` (not negative) to the counter `name`."""
        mine = self._counts.get(get_ident())
        if mine is None:
            mine = self._counts[get_ident()] = {}
        mine[name] = mine.get(name, 0) + amount

    def get(self, name: str) -> int:
        """Return the value of the counter `name`. 0 if it was never raised."""
        return sum([counts.get(name, 0) for counts in self._counts.copy().values()])

    def under(self, prefix: str) -> dict[str, int]:
        """Return the counters below ``prefix.``, by the rest of their names."""
        start = prefix + "."
        return {name[len(start) :]: value for name, value in self._items() if name.startswith(start)}

    def total(self, prefix: str) -> int:
        """Return the sum of all counters below ``prefix.``."""
        return sum(self.under(prefix).values())

    def snapshot(self) -> dict[str, int]:
        """Return a copy of all counters by name."""
        return dict(self._items())

    def _items(self) -> Iterator[tuple[str, int]]:
        totals: dict[str, int] = {}
        for counts in self._counts.copy().values():
            for name, count in counts.copy().items():
                totals[name] = totals.get(name, 0) + count
        return iter(totals.items())
