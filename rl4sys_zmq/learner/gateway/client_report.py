"""The part of the learner's status about one client."""

from __future__ import annotations

import heapq
from typing import Any

from rl4sys_zmq.delivery import SegmentStream
from rl4sys_zmq.learner.gateway.client import ClientState
from rl4sys_zmq.learner.registry.algorithm_entry import default_pacing_lag
from rl4sys_zmq.wire.messages import Verdict

ACTORS_SHOWN = 100
"""Largest number of actors in the report of a client. Live actors come first, then those with the latest messages."""


def client_report(client: ClientState, now: float) -> dict[str, Any]:
    """Return a client's part of the learner's status, as JSON."""
    history, books, checkpoints = client.publishing.history, client.books, client.checkpoints
    newest, transit = checkpoints.newest, client.pool.transit
    actors = client.table.current()
    return {
        "state": str(client.state),
        "error": client.error,
        "algorithm": client.settings.algorithm_name,
        "parameters": client.parameters,
        "generation": history.generation,
        "version": history.version,
        "digest": f"{history.digest:016x}",
        **client.training.report(now, books.verdicts[Verdict.EVALUATED]),
        "pacing_lag": _pacing_lag(client),
        "accepted": books.accepted,
        "pending": client.table.pending,
        "rolled_back": books.rolled_back,
        "gap": books.gap,
        "resuming": bool(client.replay.token),
        "queued": client.queued,
        "queued_bytes": transit.nbytes,
        "queued_steps": transit.steps,
        "stalled_s": round(client.stalled_s, 3),
        "checkpoint": {
            "number": newest.number,
            "version": newest.version,
            "age_s": round(now - checkpoints.saved_at, 3) if newest.number else None,
            "duration_s": round(newest.duration_s, 4),
            "error": checkpoints.error,
        },
        "restarts": client.worker.starts - 1,
        "worker": client.worker.report(now),
        "verdicts": dict(books.verdicts),
        "credit_steps": max(0, client.pool.free_steps),
        "counters": books.counters.snapshot(),
        "alarms": client.alarms.report(),
        "actors_total": len(actors),
        "actors_live": len(client.table.live()),
        "actors": {stream.actor_id: _actor_report(client, stream, now) for stream in _shown(client, actors)},
    }


def _pacing_lag(client: ClientState) -> int | None:
    """Return the number of batches that actors can collect ahead of the training; None before the algorithm is known."""
    lag = client.settings.pacing_lag
    return lag if lag is not None else default_pacing_lag(client.settings.kind, client.algorithm_type)


def _shown(client: ClientState, actors: list[SegmentStream]) -> list[SegmentStream]:
    if len(actors) <= ACTORS_SHOWN:
        return actors
    return heapq.nlargest(ACTORS_SHOWN, actors, key=lambda s: (client.table.is_live(s), s.last_seen))


def _actor_report(client: ClientState, stream: SegmentStream, now: float) -> dict[str, Any]:
    return {
        "live": client.table.is_live(stream),
        "library": stream.library,
        "relay": stream.relay,
        "incarnation": stream.incarnation,
        "spooled": stream.spooled,
        "silent_s": round(now - stream.last_seen, 3),
        "received": stream.received,
        "durable": stream.durable,
        "trained": stream.trained,
        "checkpointed": min(stream.checkpointed, stream.trained),
        "pending": stream.pending,
        "accepted_steps": stream.accepted_steps,
        "credit_steps": stream.credit_steps,
        "verdicts": dict(stream.verdicts),
    }
