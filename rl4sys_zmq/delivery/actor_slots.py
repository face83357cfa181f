"""The actor slots of one client, limited by `max_actors`."""

from __future__ import annotations

from rl4sys_zmq.delivery.stream import Stream
from rl4sys_zmq.liveness import is_silent

__all__ = ["ActorSlots"]


class ActorSlots:
    """The slots of the actors of one client.

    An actor holds a slot while it is live, and after that for its lease. A stream is *empty* if its actor is not live and none of
    its segments was ever received. An empty stream can be discarded without a loss. No method iterates over all actors.

    Attributes:
        spooled: The ids of the actors with a spool.
    """

    def __init__(self, max_actors: int, lease_s: float) -> None:
        """Create the slots, all free."""
        self._max_actors, self._lease_s = max_actors, lease_s
        self._live: set[str] = set()
        self._silent: dict[str, Stream] = {}  # in the order in which the actors became silent; so is `_empty`
        self._empty: dict[str, Stream] = {}
        self.spooled: set[str] = set()

    def take(self, stream: Stream) -> None:
        """Record that an actor is live, with this stream."""
        self.drop(stream.actor_id)
        self._live.add(stream.actor_id)
        if stream.spooled:
            self.spooled.add(stream.actor_id)

    def leave(self, stream: Stream) -> None:
        """Record that an actor is no longer live."""
        self.drop(stream.actor_id)
        self._silent[stream.actor_id] = stream
        if not stream.received:
            self._empty[stream.actor_id] = stream
        if stream.spooled:
            self.spooled.add(stream.actor_id)

    def drop(self, actor_id: str) -> None:
        """Remove an actor."""
        self._live.discard(actor_id)
        self._silent.pop(actor_id, None)
        self._empty.pop(actor_id, None)
        self.spooled.discard(actor_id)

    def full(self, now: float) -> bool:
        """Return True if no slot is free. Release the slots whose lease is over first."""
        while self._silent and len(self._live) + len(self._silent) >= self._max_actors:
            actor_id, stream = next(iter(self._silent.items()))
            if not is_silent(now, stream.last_seen, self._lease_s):
                return True
            del self._silent[actor_id]
        return len(self._live) >= self._max_actors

    def oldest_empty(self, *, spooled: bool = False) -> Stream | None:
        """Return the empty stream that has been silent longest, or None. With `spooled`, only one with a spool."""
        found = (stream for stream in self._empty.values() if stream.spooled or not spooled)
        return next(found, None)
