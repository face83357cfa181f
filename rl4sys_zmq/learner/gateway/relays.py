"""The relays that work with a learner: which actors are sent to which relay, and which relays have asked for weights lately.

A relay is a process that receives weights from the learner, or from another relay, and passes them on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import xxhash

from rl4sys_zmq.config import RelayRule
from rl4sys_zmq.liveness import RELAY_CHILD_S, RELAY_SHOWN_S, RELAY_SILENCE_S, is_silent
from rl4sys_zmq.wire.messages import FollowWeights

MAX_CHOICES = 4
"""Largest number of relays that one actor is told."""

MAX_SHOWN = 256
"""Largest number of relays in the learner's status. Those that have been silent for the longest time are dropped first."""

MAX_ADDRESS = 256
"""Largest number of characters of a relay's address in the status."""


class _SeenRelay:
    """One relay that follows clients of this learner, for the status.

    Attributes:
        children: For each client, the number of children that follow it at the relay, and the time of the request with this
            number, in seconds.
        seen_at: The time of its last request, in seconds.
    """

    __slots__ = ("children", "seen_at")

    def __init__(self) -> None:
        self.children: dict[str, tuple[int, float]] = {}
        self.seen_at = 0.0

    def following(self) -> dict[str, int]:
        """Return the number of children by client, without the clients that the relay has stopped following."""
        kept = self.children.items()
        found = {client_id: seen for client_id, seen in kept if not is_silent(self.seen_at, seen[1], RELAY_CHILD_S)}
        self.children = found
        return {client_id: count for client_id, (count, _) in found.items()}


class RelayDirectory:
    """The relays of one learner. Only the thread of `LearnerCore` uses it.

    It chooses the relays for each actor by the rules of the configuration. Of several relays that serve an actor, a hash of the
    actor's name decides the order, so that the actors spread over the relays, and those of a relay that ends over the others.
    """

    def __init__(self, rules: Sequence[RelayRule]) -> None:
        self._rules = tuple(rules)
        self._seen: dict[tuple[str, str, str], _SeenRelay] = {}

    def choose(self, actor_id: str, host: str) -> list[list[str]]:
        """Return the relays for an actor, nearest first, as ``[URI, public key or ""]``; an empty list if no rule applies.

        A relay whose rule names the actor or its network comes before relays that serve all actors.
        """

        def order(rule: RelayRule) -> tuple[bool, int]:
            named = bool(rule.networks or rule.actors)
            return not named, xxhash.xxh3_64_intdigest(f"{actor_id}\0{rule.address}".encode())

        found = sorted((rule for rule in self._rules if rule.serves(actor_id, host)), key=order)
        return [[rule.address, rule.key or ""] for rule in found[:MAX_CHOICES]]

    def saw(self, user: str, host: str, message: FollowWeights, now: float) -> None:
        """Record a request of a relay, for the status. A request of an actor is ignored."""
        if not message.relay:
            return
        key = user, host, message.relay[:MAX_ADDRESS]
        seen = self._seen.pop(key, None) or _SeenRelay()
        self._seen[key] = seen  # the last one is the one seen last
        seen.seen_at = now
        seen.children[message.client_id] = message.children, now
        while len(self._seen) > MAX_SHOWN:
            del self._seen[next(iter(self._seen))]

    def report(self, now: float) -> list[dict[str, Any]]:
        """Return the relays that have asked for weights within `RELAY_SHOWN_S` seconds, for the learner's status."""
        self._seen = {key: seen for key, seen in self._seen.items() if not is_silent(now, seen.seen_at, RELAY_SHOWN_S)}
        return [
            {
                "address": address,
                "user": user,
                "host": host,
                "silent_s": round(now - seen.seen_at, 3),
                "live": not is_silent(now, seen.seen_at, RELAY_SILENCE_S),
                "children": seen.following(),
            }
            for (user, host, address), seen in self._seen.items()
        ]
