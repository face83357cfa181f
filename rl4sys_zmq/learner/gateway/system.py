"""The newest figures of the processes of a learner: its own, its workers, and the actors that report theirs. Without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.interfaces import EventSink
from rl4sys_zmq.learner.gateway.core_callbacks import CoreCallbacks
from rl4sys_zmq.machine import MAX_HOST, REPORT_S, Usage
from rl4sys_zmq.wire.messages import ActorReport

MOST_PROCESSES = 100
"""Largest number of actors whose figures are kept. They have a series each in the log, which is thinned by itself."""

SHORTEST_S = 1.0
"""Shortest time between two reports of one actor."""

SYSTEM = "system"


class SystemTable:
    """The newest figures of each process. Only the gateway thread uses it.

    Reports of actors that come too fast or are too many are dropped and counted as ``actor_reports_dropped``.
    """

    def __init__(self, every_s: float, sink: EventSink, counters: Counters, callbacks: CoreCallbacks) -> None:
        self._kept_s = 3 * max(every_s, REPORT_S)
        self._sink, self._counters, self._callbacks = sink, counters, callbacks
        self._own: list[dict[str, Any]] = []
        self._actors: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}

    def note_own(self, usages: Mapping[int, Usage], clients: Mapping[int, str]) -> None:
        """Record the figures of this process and of its workers. `clients` has the client of each worker, by its process."""
        self._own = [
            self._record(clients.get(pid, ""), "", "worker" if pid in clients else "learner", usage)
            for pid, usage in usages.items()
        ]

    def note_actor(self, client_id: str, actor_id: str, report: ActorReport) -> None:
        """Record the figures that an actor has sent, and drop those of actors that are silent."""
        now, key = self._callbacks.monotonic(), (client_id, actor_id)
        self._expire(now)
        last = self._actors.get(key)
        if (last is None and len(self._actors) >= MOST_PROCESSES) or (last is not None and now - last[0] < SHORTEST_S):
            self._counters.add("actor_reports_dropped")
            return
        usage = {**asdict(report), "host": report.host[:MAX_HOST]}
        self._actors[key] = now, self._record(client_id, actor_id, "actor", usage)

    def report(self, now: float) -> Sequence[Mapping[str, Any]]:
        """Return the newest record of each process: this one, its workers, and the actors, by client and name."""
        self._expire(now)
        return [*self._own, *(record for _, (_, record) in sorted(self._actors.items()))]

    def _expire(self, now: float) -> None:
        for key in [key for key, (at, _) in self._actors.items() if now - at > self._kept_s]:
            del self._actors[key]

    def _record(self, client_id: str, name: str, role: str, usage: Usage) -> dict[str, Any]:
        fields = {"client_id": client_id, "name": name, "role": role, **usage}  # the log thins by the first two
        self._sink.event(SYSTEM, **fields)
        return {"t": round(self._callbacks.unix(), 3), "event": SYSTEM, **fields}
