"""Alarms of a client: named and counted problems that do not stop the client.

The log has a line for the first alarm of a kind, then at most one line a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

UPDATE_UNDONE: Final = "update_undone"
UPDATE_CHANGES_NOTHING: Final = "update_changes_nothing"
SEGMENT_QUARANTINED: Final = "segment_quarantined"
PROCESS_KILLER: Final = "process_killer"
STALLED: Final = "stalled"
CREDIT_CORRECTED: Final = "credit_corrected"
WORKER_CRASHED: Final = "worker_crashed"
WORKER_SILENT: Final = "worker_silent"
EVALUATION_FAILED: Final = "evaluation_failed"
OTHER: Final = "other"
"""The kind under which new kinds are counted after the first `MAX_KINDS`."""

MAX_KINDS = 32
MAX_NAME_CHARS = 64
MAX_TEXT_CHARS = 500
LOG_EVERY_S = 60.0
"""Shortest time between two log lines about alarms of one kind, in seconds."""


@dataclass(slots=True)
class AlarmCount:
    """The number of a client's alarms of one kind since the learner's start, and the text of the last one.

    Attributes:
        text: Description of the last alarm, for a person.
        logged: Value of `count` when the last log line was written; 0 before the first.
        logged_s: Time of the last log line, on the monotonic clock, in seconds.
    """

    name: str
    count: int
    text: str
    first_unix_s: float
    last_unix_s: float
    logged: int = 0
    logged_s: float = 0.0


class Alarms:
    """The alarms of one client. Use it in one thread only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, unix: Callable[[], float] = time.time) -> None:
        self._clock, self._unix = clock, unix
        self._kinds: dict[str, AlarmCount] = {}
        self._has_new = False

    def note(self, name: str, text: str, count: int = 1) -> None:
        """Record `count` alarms of the kind `name`. `text` describes the last of them for a person."""
        name = name[:MAX_NAME_CHARS]
        if name not in self._kinds and len(self._kinds) >= MAX_KINDS:
            name = OTHER
        now = self._unix()
        alarm = self._kinds.get(name)
        if alarm is None:
            alarm = self._kinds[name] = AlarmCount(name, 0, "", now, now)
        alarm.count += count
        alarm.text, alarm.last_unix_s = text[:MAX_TEXT_CHARS], now
        self._has_new = True

    def due(self) -> list[AlarmCount]:
        """Return the alarms that need a log line now, and record that they were logged."""
        if not self._has_new:
            return []
        now = self._clock()
        due = [a for a in self._kinds.values() if a.count > a.logged and (not a.logged or now - a.logged_s >= LOG_EVERY_S)]
        for alarm in due:
            alarm.logged, alarm.logged_s = alarm.count, now
        self._has_new = any(a.count > a.logged for a in self._kinds.values())
        return due

    def counts(self) -> dict[str, int]:
        """Return the number of alarms of each kind."""
        return {alarm.name: alarm.count for alarm in self._kinds.values()}

    def report(self) -> dict[str, dict[str, Any]]:
        """Return the part of the client's status about its alarms, by kind."""
        return {
            a.name: {
                "count": a.count,
                "text": a.text,
                "first_unix_s": round(a.first_unix_s, 3),
                "last_unix_s": round(a.last_unix_s, 3),
            }
            for a in self._kinds.values()
        }
