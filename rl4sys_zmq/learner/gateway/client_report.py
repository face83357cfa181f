"""The part of the learner's status about one client: its learner thread, training, data, checkpoint and actors."""

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
    pub, saved = client.weight_history, client.saved
    actors = client.table.current()
    return {
        "state": str(client.state),
        "error": client.error,
        "algorithm": client.settings.algorithm_name,
        "parameters": client.parameters,
        "generation": pub.generation,
        "version": pub.version,
        "digest": f"{pub.digest:016x}",
        **client.training.report(now, client.verdicts[Verdict.EVALUATED]),
        "pacing_lag": _pacing_lag(client),
        "accepted": client.accepted,
        "pending": client.table.pending,
        "rolled_back": client.rolled_back,
        "gap": client.gap,
        "resuming": bool(client.replaying),
        "queued": client.queued,
        "queued_bytes": client.pool.transit.nbytes,
        "queued_steps": client.pool.transit.steps,
        "stalled_s": round(client.stalled_s, 3),
        "checkpoint": {
            "number": saved.number,
            "version": saved.version,
            "age_s": round(now - client.saved_at, 3) if saved.number else None,
            "duration_s": round(saved.duration_s, 4),
            "error": client.save_error,
        },
        "restarts": client.life - 1,
        "worker": _worker_report(client, now),
        "verdicts": dict(client.verdicts),
        "credit_steps": max(0, client.pool.free_steps),
        "counters": client.counters.snapshot(),
        "alarms": client.alarms.report(),
        "actors_total": len(actors),
        "actors_live": len(client.table.live()),
        "actors": {stream.actor_id: _actor_report(client, stream, now) for stream in _shown(client, actors)},
    }


def _pacing_lag(client: ClientState) -> int | None:
    """Return the number of batches that actors can collect ahead of the training.

    It is None before the algorithm is known, unless the settings contain it.
    """
    given = client.settings.pacing_lag
    return given if given is not None else default_pacing_lag(client.settings.kind, client.algorithm_type)


def _worker_report(client: ClientState, now: float) -> dict[str, Any]:
    """Return the part about the thread or process that trains the client, and about its crashes."""
    found = client.worker.describe() | {"devices": client.devices} if client.worker is not None else {}
    if client.crashes:
        found |= {"crashes": client.crashes, "last_crash": client.last_crash}
    if client.restart_at is not None:
        found["restart_in_s"] = round(max(0.0, client.restart_at - now), 3)
    return found


def _shown(client: ClientState, actors: list[SegmentStream]) -> list[SegmentStream]:
    """Return the actors that the report lists."""
    if len(actors) <= ACTORS_SHOWN:
        return actors
    return heapq.nlargest(ACTORS_SHOWN, actors, key=lambda s: (client.table.is_live(s), s.last_seen))


def _actor_report(client: ClientState, stream: SegmentStream, now: float) -> dict[str, Any]:
    """Return the part about one actor."""
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
