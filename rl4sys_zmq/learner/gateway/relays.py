"""The relays that work with a learner: the choice of relays for each actor, and the relays that have asked for weights lately."""

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


class _SeenRelay:
    """A relay that follows clients of this learner. `children`: by client, the number of children and the time of the request."""

    __slots__ = ("children", "seen_at")

    def __init__(self) -> None:
        self.children: dict[str, tuple[int, float]] = {}
        self.seen_at = 0.0

    def following(self) -> dict[str, int]:
        """Return the number of children by client, without the clients that the relay has stopped following."""
        children = self.children.items()
        self.children = {name: seen for name, seen in children if not is_silent(self.seen_at, seen[1], RELAY_CHILD_S)}
        return {client_id: count for client_id, (count, _) in self.children.items()}


class RelayDirectory:
    """The relays of one learner. Only the thread of `LearnerCore` uses it."""

    def __init__(self, rules: Sequence[RelayRule]) -> None:
        self._rules = tuple(rules)
        self._seen: dict[tuple[str, str, str], _SeenRelay] = {}

    def choose(self, actor_id: str, host: str) -> list[list[str]]:
        """Return the relays for an actor at the IP address `host`, nearest first, as ``[URI, public key or ""]``; [] if no rule
        applies.
        """

        def order(rule: RelayRule) -> tuple[bool, int]:
            # The hash spreads the actors over the relays, and those of a relay that ends over the others.
            named = bool(rule.networks or rule.actors)
            return not named, xxhash.xxh3_64_intdigest(f"{actor_id}\0{rule.address}".encode())

        rules = sorted((rule for rule in self._rules if rule.serves(actor_id, host)), key=order)
        return [[rule.address, rule.key or ""] for rule in rules[:MAX_CHOICES]]

    def note_request(self, user: str, host: str, message: FollowWeights, now: float) -> None:
        """Record a request of a relay. A request of an actor is ignored."""
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
