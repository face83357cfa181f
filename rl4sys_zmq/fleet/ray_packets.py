"""The packets between a fleet and its Ray driver, beside ``connected`` and ``refused``. ``number`` names the actor."""

from __future__ import annotations

from typing import Final

CPU: Final = {"CPU": 1.0}
"""The resources that Ray reserves for an actor of a fleet, by Ray's names."""

START: Final = "start"
"""To the driver: start an actor. Fields: ``number``, the ``arguments`` of its Python process, and its working ``folder``."""

STOP: Final = "stop"
"""To the driver: begin to end an actor. Fields: ``number`` and ``grace_s``, as in `ActorHandle.stop`."""

NEWS: Final = "news"
"""From the driver: the newest ``report`` of an actor as JSON (empty if there is none), and ``lines`` of its output."""

WAITING: Final = "waiting"
"""From the driver: a ``text`` about the actors that wait for a node."""

ENDED: Final = "ended"
"""From the driver, the last about an actor: its ``exit_code``, and a ``text`` (empty if it printed the reason)."""
