"""The answers of ``/healthz`` and ``/readyz``: the reasons why learners are not alive, or not ready."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl4sys_zmq.web.watcher import LearnerSnapshot

ANSWER_S = 5.0
"""The greatest age of a learner's last answer at which the learner counts as alive, in seconds."""


def is_up(snapshot: LearnerSnapshot, now_unix_s: float) -> bool:
    """Return True if the learner has answered lately."""
    answered = snapshot.answered_unix_s
    return snapshot.report is not None and answered is not None and now_unix_s - answered < ANSWER_S


def alive(snapshots: Sequence[LearnerSnapshot]) -> list[str]:
    """Return a line for each learner whose gateway does not answer."""
    now, lines = time.time(), []
    for snapshot in snapshots:
        if not is_up(snapshot, now):
            answered = snapshot.answered_unix_s
            since = "no answer so far" if answered is None else f"no answer for {now - answered:.0f} s"
            lines.append(f"{snapshot.address}: {since}" + (f": {snapshot.error}" if snapshot.error else ""))
    return lines


def ready(snapshots: Sequence[LearnerSnapshot]) -> list[str]:
    """Return the lines of `alive`, and a line for each client without a running worker."""
    lines = alive(snapshots)
    for snapshot in snapshots:
        clients = (snapshot.report or {}).get("clients")
        for client_id, client in sorted(clients.items()) if isinstance(clients, Mapping) else ():
            state = client.get("state", "running") if isinstance(client, Mapping) else "unknown"  # a relay's have no state
            if state != "running":
                error = client.get("error", "") if isinstance(client, Mapping) else ""
                lines.append(f"{snapshot.address}: client {client_id} is {state}" + (f": {error}" if error else ""))
    return lines
