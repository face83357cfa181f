"""Alarms of a client: what went wrong without stopping anything, named, counted, and said where people look.

The gateway thread owns one `Alarms` for each client. A learner thread raises an alarm with the message `Alarm`; code in the
gateway thread calls `Alarms.note`. ``status`` shows all of them, beacons take the counts to the actors, and the log has a line at
the first of a kind and then at most one a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

__all__ = [
    "CREDIT_CORRECTED",
    "OTHER",
    "PROCESS_KILLER",
    "SAID_EVERY_S",
    "SEGMENT_QUARANTINED",
    "STALLED",
    "UPDATE_CHANGES_NOTHING",
    "UPDATE_UNDONE",
    "Alarm",
    "Alarms",
]

UPDATE_UNDONE: Final = "update_undone"
UPDATE_CHANGES_NOTHING: Final = "update_changes_nothing"
SEGMENT_QUARANTINED: Final = "segment_quarantined"
PROCESS_KILLER: Final = "process_killer"
STALLED: Final = "stalled"
CREDIT_CORRECTED: Final = "credit_corrected"
OTHER: Final = "other"
"""Takes the alarms of all kinds beyond `MAX_KINDS`."""

MAX_KINDS = 32
MAX_NAME_CHARS = 64
MAX_TEXT_CHARS = 500
SAID_EVERY_S = 60.0
"""How often at most the log has a line about alarms of one kind."""


@dataclass(slots=True)
class Alarm:
    """All alarms of one kind since the learner's start.

    Attributes:
        name: the kind.
        count: of them.
        text: of the last one.
        first_unix_s: Unix time of the first, in seconds.
        last_unix_s: Unix time of the last, in seconds.
        said: how many of them the log knows of.
        said_s: when it was last told, on the monotonic clock.
    """

    name: str
    count: int
    text: str
    first_unix_s: float
    last_unix_s: float
    said: int = 0
    said_s: float = 0.0


class Alarms:
    """The alarms of one client, by kind. One thread uses it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, unix: Callable[[], float] = time.time) -> None:
        """Makes it empty.

        Args:
            clock: monotonic seconds, for the rate of the log.
            unix: seconds, for people.
        """
        self._clock, self._unix = clock, unix
        self._kinds: dict[str, Alarm] = {}
        self._news = False

    def note(self, name: str, text: str, count: int = 1) -> None:
        """Counts alarms of a kind.

        Args:
            name: of the kind, as the documentation lists them.
            text: one line for a person, with the numbers.
            count: how many.
        """
        name = name[:MAX_NAME_CHARS]
        if name not in self._kinds and len(self._kinds) >= MAX_KINDS:
            name = OTHER
        now = self._unix()
        alarm = self._kinds.get(name)
        if alarm is None:
            alarm = self._kinds[name] = Alarm(name, 0, "", now, now)
        alarm.count += count
        alarm.text, alarm.last_unix_s = text[:MAX_TEXT_CHARS], now
        self._news = True

    def due(self) -> list[Alarm]:
        """The kinds that the log should hear of now; asking is cheap, and marks them as said."""
        if not self._news:
            return []
        now = self._clock()
        found = [a for a in self._kinds.values() if a.count > a.said and (not a.said or now - a.said_s >= SAID_EVERY_S)]
        for alarm in found:
            alarm.said, alarm.said_s = alarm.count, now
        self._news = any(a.count > a.said for a in self._kinds.values())
        return found

    def counts(self) -> dict[str, int]:
        """The number of alarms of each kind."""
        return {alarm.name: alarm.count for alarm in self._kinds.values()}

    def report(self) -> dict[str, dict[str, Any]]:
        """The client's part of the learner's status."""
        return {
            a.name: {
                "count": a.count,
                "text": a.text,
                "first_unix_s": round(a.first_unix_s, 3),
                "last_unix_s": round(a.last_unix_s, 3),
            }
            for a in self._kinds.values()
        }
