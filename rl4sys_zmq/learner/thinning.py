"""The choice of the records to keep when not all fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Record", "thin"]

_TARGETS = (1.0, 0.98, 0.95, 0.9, 0.8, *(0.5**n for n in range(1, 32)))


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    Attributes:
        kind: Records of one kind are thinned alike.
        content: The bytes in the file.
        lasting: True if it is kept in preference to others, in up to half of the space.
    """

    kind: str
    content: bytes
    lasting: bool = False


def thin(records: Sequence[Record], limit: int) -> tuple[list[Record], Counter[str]]:
    """Return the records that fit a number of bytes, evenly over their order, and the counts of the others by kind.

    Lasting records come first, up to half of the bytes. Among lasting and among other records, all kinds get equal shares: a
    flood of one kind does not displace the others. The first record of each kind is kept.
    """
    if sum(len(record.content) for record in records) <= limit:
        return list(records), Counter()
    kept: list[Record] = []
    dropped: Counter[str] = Counter()
    for target in _TARGETS:  # records differ in length, so an even choice can be a little too long
        kept, dropped = _evenly(records, _shares(records, int(limit * target)))
        if sum(len(record.content) for record in kept) <= limit:
            return kept, dropped
    return _newest(kept, limit, dropped)  # one record of each kind is too much


def _evenly(records: Iterable[Record], shares: Mapping[str, float]) -> tuple[list[Record], Counter[str]]:
    """Return a share of the records of each kind, and the counts of the others."""
    places: Counter[str] = Counter()
    kept, dropped = [], Counter[str]()
    for record in records:
        place, share = places[record.kind], shares[record.kind]
        places[record.kind] += 1
        if place == 0 or int(place * share) > int((place - 1) * share):
            kept.append(record)
        else:
            dropped[record.kind] += 1
    return kept, dropped


def _newest(records: list[Record], limit: int, dropped: Counter[str]) -> tuple[list[Record], Counter[str]]:
    total, start = 0, len(records)
    while start and total + len(records[start - 1].content) <= limit:
        start -= 1
        total += len(records[start].content)
    dropped.update(record.kind for record in records[:start])
    return records[start:], dropped


def _shares(records: Iterable[Record], limit: int) -> dict[str, float]:
    """Return the share of each kind to keep: above 0, at most 1."""
    sizes: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for record in records:
        sizes[record.lasting][record.kind] += len(record.content)
    room = {True: max(limit // 2, limit - sizes[False].total())}
    room[False] = limit - min(room[True], sizes[True].total())
    shares = {}
    for lasting, by_kind in sizes.items():
        level = _level(sorted(by_kind.values()), room[lasting])
        shares.update({kind: min(1.0, level / size) for kind, size in by_kind.items()})
    return shares


def _level(sizes: Sequence[int], room: int) -> int:
    """Return the equal share of `room` when sizes below it leave the rest to the others; at least 1."""
    for place, size in enumerate(sizes):
        share = room // (len(sizes) - place)
        if size > share:
            return max(1, share)
        room -= size
    return max(1, *sizes) if sizes else 1
