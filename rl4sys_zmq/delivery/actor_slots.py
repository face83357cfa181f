"""The slots for the actors of one client. Their number limits how many actors can connect."""

from __future__ import annotations

from rl4sys_zmq.delivery.stream import SegmentStream
from rl4sys_zmq.liveness import is_silent


class ActorSlots:
    """The slots for the actors of one client.

    An actor has a slot while it is *live* (connected), and keeps it for `lease_s` seconds of silence after that. A stream is
    *empty* if its actor is not live and no segment was ever received: to discard it loses no data. No method iterates over all
    actors.
    """

    def __init__(self, max_actors: int, lease_s: float) -> None:
        self._max_actors, self._lease_s = max_actors, lease_s
        self._live: set[str] = set()
        self._silent: dict[str, SegmentStream] = {}  # in the order in which the actors became silent; so is `_empty`
        self._empty: dict[str, SegmentStream] = {}
        self.spooled: set[str] = set()  # ids of the actors that keep their segments in a spool

    def occupy(self, stream: SegmentStream) -> None:
        """Give a slot to the actor of a stream, which is now live."""
        self.drop(stream.actor_id)
        self._live.add(stream.actor_id)
        if stream.spooled:
            self.spooled.add(stream.actor_id)

    def leave(self, stream: SegmentStream) -> None:
        """Record that the actor of a stream is no longer live. Its lease begins."""
        self.drop(stream.actor_id)
        self._silent[stream.actor_id] = stream
        if not stream.received:
            self._empty[stream.actor_id] = stream
        if stream.spooled:
            self.spooled.add(stream.actor_id)

    def drop(self, actor_id: str) -> None:
        """Remove an actor and free its slot."""
        self._live.discard(actor_id)
        self._silent.pop(actor_id, None)
        self._empty.pop(actor_id, None)
        self.spooled.discard(actor_id)

    def full(self, now: float) -> bool:
        """Return True if no slot is free. First, release the slots whose leases are over."""
        while self._silent and len(self._live) + len(self._silent) >= self._max_actors:
            actor_id, stream = next(iter(self._silent.items()))
            if not is_silent(now, stream.last_seen, self._lease_s):
                return True
            del self._silent[actor_id]
        return len(self._live) >= self._max_actors

    def oldest_empty(self, *, spooled: bool = False) -> SegmentStream | None:
        """Return the empty stream whose actor has been silent for longest, or None. Its slot can be given to a new actor."""
        empty = (stream for stream in self._empty.values() if stream.spooled or not spooled)
        return next(empty, None)
