"""The Ray actor that trains one client, in a process of its own on a node of the cluster.

The driver process (`ray_driver`) creates it and calls its methods. Ray's own channel carries these calls, and so the start data
with their secrets. Segments, weights and checkpoints do not pass through Ray.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.engines.remote_start import RemoteWorkerStart
from rl4sys_zmq.remote.worker import run_remote_worker


class RayWorker:
    """The object inside a Ray actor, which trains one client. Ray runs its methods in threads of the actor's process."""

    def describe(self, start: str, path: Sequence[str]) -> dict[str, Any]:
        """Return the node, its host, the process id, and the reason why this process cannot train the client."""
        import ray

        sys.path += [entry for entry in path if entry not in sys.path and os.path.exists(entry)]
        try:
            error = RemoteWorkerStart.from_json(start).version_error
        except ConfigError as exc:
            error = str(exc)
        node, host = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        return {"node": node, "host": host, "pid": os.getpid(), "error": error}

    def run(self, start: str) -> str:
        """Train the client until the learner ends this worker or is lost. Return the error that ended it, or an empty text."""
        return run_remote_worker(start)
