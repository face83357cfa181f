"""The documents that the page shows, made from a learner's status and its records, without I/O."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from rl4sys_zmq.ops.report import client_rows, report_lines, worker_text

PAGE_ROWS, MAX_HOSTS, MAX_POINTS, MAX_CHANGES = 25, 20, 64, 40
ROUTINE = frozenset({"metrics", "system", "checkpoint", "actor_joined", "actor_silent", "client_started", "dead_letter"})
"""The events that are not shown as changes."""
CURVES = ("charts/episodic_return", "charts/mean_reward")
SORTS = {"silent_s": False, "actor": False, "host": False, "library": False, "accepted_steps": True, "pending": True}
"""The columns by which actors are sorted. True: the largest first."""
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""The exceptions that a status of another form raises when it is read."""
MAX_UNIX_S = 1e11


def is_record(record: Mapping[str, Any]) -> bool:
    """Return True for a record that has the form of the learner's log."""
    event, at, scalars = (
        record.get("event"),
        record.get("t"),
        record.get("scalars", {} if record.get("event") != "metrics" else None),
    )
    timed = isinstance(at, int | float) and 0 <= at < MAX_UNIX_S
    return timed and isinstance(event, str) and isinstance(record.get("client_id", ""), str) and isinstance(scalars, Mapping)


def overview(report: Mapping[str, Any], now_unix_s: float) -> dict[str, Any]:
    """Return the figures of a learner and its clients for the first screen, or raise one of `MALFORMED`."""
    rows = client_rows(report)
    problems = _problems({**report, "clients": {}}, now_unix_s)
    clients = {row.client_id: _client(row.client_id, row.cells(), report) for row in rows}
    for client_id, client in clients.items():
        alone = {**report, "clients": {client_id: report["clients"][client_id]}}
        client["problems"] = _problems(alone, now_unix_s)[len(problems) :]
    return {
        "version": str(report["version"]),
        "pid": report["pid"],
        "uptime_s": float(report["uptime_s"]),
        "problems": problems,
        "journal": report.get("journal"),
        "system": [_usage(record) for record in report.get("system") or ()],
        "refused": sum(n for name, n in report["counters"].items() if name.startswith("refused.")),
        "clients": clients,
    }


def _problems(report: Mapping[str, Any], now_unix_s: float) -> list[str]:
    """Return the lines of a report that are marked as problems, without the mark."""
    lines = (line.strip() for line in report_lines(report, now_unix_s))
    return [line.removeprefix("!! ") for line in lines if line.startswith("!! ")]


def _usage(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a process, with numbers as numbers and all else as text."""
    return {str(name): value if isinstance(value, int | float | None) else str(value) for name, value in record.items()}


def _client(client_id: str, cells: Mapping[str, str], report: Mapping[str, Any]) -> dict[str, Any]:
    client = report["clients"][client_id]
    live = [(host_of(name, actor), actor) for name, actor in client["actors"].items() if actor["live"]]
    return {
        "state": client["state"],
        "cells": dict(cells),
        "steps_per_s": float(client["steps_per_s"]),
        "lag": float(client["policy_lag"]),
        "credit_steps": client.get("credit_steps"),
        "queued": client["queued"],
        "evaluator": client.get("evaluator"),
        "evaluation": client.get("evaluation"),
        "actors_live": client["actors_live"],
        "actors_total": client["actors_total"],
        "hosts": len({host for host, _ in live}),
        "libraries": dict(Counter(str(actor.get("library") or "unknown") for _, actor in live).most_common(4)),
        "generation_unix_s": client["generation"] / 1000,
    }


def client_document(report: Mapping[str, Any], client_id: str) -> dict[str, Any]:
    """Return what the page of a client shows beside the overview: its status without its actors. Raise KeyError if unknown."""
    client = report["clients"][client_id]
    return {**{name: value for name, value in client.items() if name != "actors"}, "worker_text": worker_text(client)}


def host_of(actor_id: str, actor: Mapping[str, Any]) -> str:
    """Return the address of an actor's peer, or what its name says about the host."""
    host, dot, tail = actor_id.rpartition(".")
    return str(actor.get("address") or (host if dot and tail[:1].isdigit() else "unknown"))


def actors_page(report: Mapping[str, Any], client_id: str, page: int, sort: str) -> dict[str, Any]:
    """Return one page of a client's actors, connected ones first, and the hosts with the most actors."""
    client = report["clients"][client_id]
    rows = [
        {
            "actor": name,
            "host": host_of(name, actor),
            "silent_s": actor["silent_s"],
            "library": str(actor.get("library") or ""),
            **{key: actor[key] for key in ("live", "pending", "accepted_steps")},
        }
        for name, actor in client["actors"].items()
    ]
    rows.sort(key=lambda row: row[sort], reverse=SORTS[sort])
    rows.sort(key=lambda row: not row["live"])
    pages = max(1, -(-len(rows) // PAGE_ROWS))
    page = min(max(page, 0), pages - 1)
    hosts = Counter(row["host"] for row in rows if row["live"])
    return {
        "rows": rows[page * PAGE_ROWS : (page + 1) * PAGE_ROWS],
        "page": page,
        "pages": pages,
        "reported": len(rows),
        "total": client["actors_total"],
        "live": client["actors_live"],
        "hosts": hosts.most_common(MAX_HOSTS),
        "more_hosts": max(0, len(hosts) - MAX_HOSTS),
    }


class _Curve:
    """A curve of at most `MAX_POINTS` points: when there are more, each two become one."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self._stride, self._count, self._sum = 1, 0, 0.0

    def add(self, step: float, value: float) -> None:
        if self._count:
            self.points.pop()  # the mean so far of the newest point
        self._count, self._sum = self._count + 1, self._sum + value
        self.points.append((step, self._sum / self._count))
        if self._count == self._stride:
            self._count, self._sum = 0, 0.0
            if len(self.points) == MAX_POINTS:
                pairs = zip(self.points[::2], self.points[1::2], strict=True)
                self.points = [(later[0], (earlier[1] + later[1]) / 2) for earlier, later in pairs]
                self._stride *= 2


class Sparklines:
    """A short curve of each client's return, or else of its reward per step, and the newest changes of the learner."""

    def __init__(self) -> None:
        self._curves: dict[tuple[str, str], _Curve] = {}
        self._changes: deque[Mapping[str, Any]] = deque(maxlen=MAX_CHANGES)

    def add(self, record: Mapping[str, Any]) -> None:
        """Read one record. Records of other forms are passed over."""
        if record.get("event") not in ROUTINE:
            self._changes.append(record)
        scalars, step = record.get("scalars"), record.get("step")
        if not isinstance(scalars, Mapping) or not isinstance(step, int | float):
            return
        for name in CURVES:
            value = scalars.get(name)
            if isinstance(value, int | float) and math.isfinite(value):
                self._curves.setdefault((str(record.get("client_id")), name), _Curve()).add(step, value)

    def changes(self) -> Sequence[Mapping[str, Any]]:
        """Return the newest changes, oldest first."""
        return list(self._changes)

    def of(self, client_id: str) -> dict[str, Any]:
        """Return the curve of a client, and what it shows."""
        for name in CURVES:
            if curve := self._curves.get((client_id, name)):
                return {"name": name, "points": [[step, float(f"{value:.5g}")] for step, value in curve.points]}
        return {"name": "", "points": []}
