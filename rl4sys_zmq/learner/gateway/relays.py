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


class RelayDirectory:
    """The relays of one learner. Only the thread of `LearnerCore` uses it."""

    def __init__(self, rules: Sequence[RelayRule]) -> None:
        self._rules = tuple(rules)
        # Requests by relay (user, host, address) and client: the number of children and the time. The last relay is the newest.
        self._requests: dict[tuple[str, str, str], dict[str, tuple[int, float]]] = {}

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
        """Record that a relay has asked for weights, for `report`. Do nothing if an actor sent the message."""
        if not message.relay:
            return
        key = user, host, message.relay[:MAX_ADDRESS]
        earlier = self._requests.pop(key, {}).items()
        followed = {client_id: request for client_id, request in earlier if not is_silent(now, request[1], RELAY_CHILD_S)}
        self._requests[key] = {**followed, message.client_id: (message.children, now)}
        while len(self._requests) > MAX_SHOWN:
            del self._requests[next(iter(self._requests))]

    def report(self, now: float) -> list[dict[str, Any]]:
        """Return the relays that have asked for weights within `RELAY_SHOWN_S` seconds, for the learner's status."""
        shown = []
        for (user, host, address), requests in self._requests.items():
            seen_at = max(at for _, at in requests.values())
            if not is_silent(now, seen_at, RELAY_SHOWN_S):
                children = {client_id: count for client_id, (count, _) in requests.items()}
                silence = {"silent_s": round(now - seen_at, 3), "live": not is_silent(now, seen_at, RELAY_SILENCE_S)}
                shown.append({"address": address, "user": user, "host": host, **silence, "children": children})
        return shown
