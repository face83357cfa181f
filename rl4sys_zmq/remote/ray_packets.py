"""The packets between a learner and its Ray driver process. The field ``number`` names the worker that a packet is about."""

from __future__ import annotations

from typing import Final

LOCAL: Final = "local"
"""The address that stands for a Ray of the learner's own."""

PLACE: Final = "place"
"""To the driver: create a worker. Fields: ``number``, ``client_id``, ``wanted``, ``waits``, ``path``, and ``start`` as text."""

KILL: Final = "kill"
"""To the driver: end a worker by force. Field: ``number``."""

CONNECTED: Final = "connected"
"""From the driver, first: ``address``, ``version`` and ``nodes`` of the cluster, and the ``host`` and ``node`` of the driver."""

REFUSED: Final = "refused"
"""From the driver, last: the ``error`` because of which it is not connected to Ray, or not any more."""

PLACED: Final = "placed"
"""From the driver: the ``node``, ``host`` and ``pid`` of a worker."""

WAITING: Final = "waiting"
"""From the driver: the ``text`` about what a worker waits for."""

ENDED: Final = "ended"
"""From the driver, the last about a worker: how it has ended (``end``; empty if in order), or the ``error`` because of which
another one would fail too."""
