"""The kinds of packets between a learner and its Ray driver process, in addition to those of `packets`.

Each packet is encoded by `packets.encode_packet`. The field ``number`` names the worker.
"""

from __future__ import annotations

from typing import Final

__all__ = ["COMMAND", "CONNECTED", "ENDED", "KILL", "LOCAL", "PLACE", "PLACED", "REFUSED", "WAITING"]

LOCAL = "local"
"""The address that stands for a Ray of the learner's own."""

PLACE: Final = "place"
"""To the driver: create a worker. Fields: ``number``, ``client_id``, ``wanted``, ``start`` and ``waits``."""

COMMAND: Final = "command"
"""To the driver: pass the ``command`` of `packets` to a worker."""

KILL: Final = "kill"
"""To the driver: end a worker by force."""

CONNECTED: Final = "connected"
"""From the driver, first: the ``address`` of the cluster, the ``host`` and ``node`` of this process, and all ``nodes``."""

REFUSED: Final = "refused"
"""From the driver, last: the ``error`` because of which there is no connection to Ray, or none any more."""

PLACED: Final = "placed"
"""From the driver: the ``node``, ``host`` and ``pid`` of a worker."""

WAITING: Final = "waiting"
"""From the driver: the ``text`` about what a worker waits for."""

ENDED: Final = "ended"
"""From the driver, the last about a worker: its ``crash``, or the ``error`` and ``trace`` that ended it; else empty texts."""
