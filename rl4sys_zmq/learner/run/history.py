"""The learner's memory of its newest records, for those who watch it. The log on disk has more.

A **record** is what the log has: a map with the Unix time ``t`` and the name ``event``. The episodes of a record of ``metrics``
are replaced by their means and their number.
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from heapq import merge
from threading import Lock
from typing import Any, NamedTuple

from rl4sys_zmq.learner.run.log_files import LEARNER_STARTED, metrics_record
from rl4sys_zmq.learner.run.recorder import NullEventSink
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire.thread_messages import QuarantinedSegment, TrainingMetrics

METRICS, SYSTEM = "metrics", "system"
MAX_METRICS, MAX_SYSTEM, MAX_EVENTS = 500, 2_000, 200
"""The largest numbers of kept records: of metrics of one client, of ``system``, and of any other event of one name."""

MAX_REPLY_BYTES = 1 << 18
MAX_RECORD_BYTES = 1 << 16
GONE = frozenset({"client_forgotten", "client_expired"})
"""The events after which a client's metrics are of no use."""


_JSON = json.JSONEncoder(allow_nan=False, default=str, separators=(",", ":"))


class _Kept(NamedTuple):
    number: int
    kind: object  # records of one kind are thinned out evenly
    client_id: str
    content: bytes


class History:
    """The newest records of a learner, numbered from 0 in the order in which they came.

    If there are too many metrics or records of ``system``, the newest quarter stays whole, and older ones stay at equal
    distances. Of other events, the oldest are dropped.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], list[_Kept]] = {}
        self._next = 0

    def add(self, record: Mapping[str, Any]) -> None:
        """Keep a record, with the next number."""
        event, client_id = str(record["event"]), str(record.get("client_id", ""))
        kind: object = event
        key, limit = (event, ""), MAX_EVENTS
        if event == METRICS:
            record = _with_means(record)
            kind, key, limit = hash(frozenset(record["scalars"])), (METRICS, client_id), MAX_METRICS
        elif event == SYSTEM:
            kind, limit = f"{record.get('host')} {record.get('pid')}", MAX_SYSTEM
        elif event in GONE:
            self._series.pop((METRICS, client_id), None)
        series = self._series.setdefault(key, [])
        series.append(_Kept(self._next, kind, client_id, _encoded(record)))
        self._next += 1
        if len(series) > limit:
            thinned = series if limit == MAX_EVENTS else _thinned(series)
            series[:] = thinned[-limit:]

    def since(
        self, number: int, may_see: Callable[[str], bool] = lambda client_id: True, max_bytes: int = MAX_REPLY_BYTES
    ) -> tuple[bytes, int]:
        """Return the kept records from `number` on as a JSON array, and the number with which to ask for those after them.

        The oldest come first, as many as fit into `max_bytes`. Left out are those of clients for which `may_see` returns False.
        """
        tails = [series[bisect_left(series, number, key=lambda kept: kept.number) :] for series in self._series.values()]
        found: list[bytes] = []
        size = 0
        for kept in merge(*tails, key=lambda kept: kept.number):
            if kept.client_id and not may_see(kept.client_id):
                continue
            size += len(kept.content) + 1
            if found and size > max_bytes:
                return b"[%b]" % b",".join(found), kept.number
            found.append(kept.content)
        return b"[%b]" % b",".join(found), self._next


def _thinned(series: list[_Kept]) -> list[_Kept]:
    """Return the newest quarter, and before it records of each kind at about equal distances, so that a curve keeps its form."""
    end = len(series) * 3 // 4
    old = series[:end]
    kinds = {record.kind for record in old}
    gap = (old[-1].number - old[0].number) * len(kinds) * 2 / len(series)
    last: dict[object, int] = {}
    kept: list[_Kept] = []
    for record in old:
        if record.kind not in last or record.number - last[record.kind] >= gap:
            last[record.kind] = record.number
            kept.append(record)
    return kept + series[end:]


def _with_means(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of metrics with the means of its episodes instead of the episodes."""
    rest = {name: value for name, value in record.items() if name not in ("episodes", "evaluations")}
    episodes = record.get("episodes") or ()
    if not episodes:
        return rest
    count = len(episodes)
    means = {
        "charts/episodic_return": sum(total for _, total, _ in episodes) / count,
        "charts/episodic_length": sum(length for _, _, length in episodes) / count,
        "charts/episodes": count,
    }
    return {**rest, "scalars": {**record["scalars"], **means}}


def _encoded(record: Mapping[str, Any]) -> bytes:
    """Return a record as JSON. One that is too long loses all but its name."""
    content = to_json(record)
    if len(content) <= MAX_RECORD_BYTES:
        return content
    short = {name: value for name, value in record.items() if name in ("t", "event", "client_id", "step", "update")}
    return to_json({**short, "too_long_bytes": len(content), "scalars": {}})


def to_json(value: object) -> bytes:
    """Return a value as JSON. Numbers that are not finite become null."""
    try:
        return _JSON.encode(value).encode()
    except ValueError:
        return _JSON.encode(_finite(value)).encode()


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): _finite(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
        case _:
            return value


log = get_logger(__name__)


class HistorySink(NullEventSink):
    """An event sink that keeps records in a `History`. Any thread can use it."""

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Begin the history with the records of an earlier learner, oldest first. Skip and log those that cannot be read."""
        self._history, self._lock = History(), Lock()
        wrong, now_unix_s = 0, round(time.time(), 3)
        last_unix_s = now_unix_s
        for record in records:
            try:
                last_unix_s = float(record["t"])
                self._history.add(record)
            except (LookupError, TypeError, ValueError):
                wrong += 1
        if wrong:
            log.warning("%d records in the log cannot be read; the history that is shown lacks them", wrong)
        down_s = round(max(0.0, now_unix_s - last_unix_s), 3)  # the recorder logs the same
        self._add({"t": now_unix_s, "event": LEARNER_STARTED, "version": package_version(), "down_s": down_s})

    def since(self, number: int, may_see: Callable[[str], bool]) -> tuple[bytes, int]:
        """Return records as `History.since` does."""
        with self._lock:
            return self._history.since(number, may_see)

    def metrics(self, client_id: str, metrics: TrainingMetrics) -> None:
        self._add(metrics_record(client_id, metrics, time.time()))

    def event(self, name: str, /, **fields: Any) -> None:
        self._add({"t": round(time.time(), 3), "event": name, **fields})

    def dead_letter(self, client_id: str, letter: QuarantinedSegment) -> None:
        self.event("dead_letter", client_id=client_id, actor_id=letter.actor_id, seq=letter.seq, reason=letter.reason)

    def _add(self, record: Mapping[str, Any]) -> None:
        with self._lock:
            self._history.add(record)
