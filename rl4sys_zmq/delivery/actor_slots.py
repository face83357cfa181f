"""Which actors of a client have a place, and whose is given up for a newcomer. No call looks at all of them."""

from __future__ import annotations

from rl4sys_zmq.delivery.stream import Stream

__all__ = ["ActorSlots"]


class ActorSlots:
    """An actor has a place while it is live, and for its lease afterwards.

    A record is *empty* when its actor is not live and nothing of it was ever received: forgetting it takes nothing from it.

    Attributes:
        spooled: the actors with a spool.
    """

    def __init__(self, max_actors: int, lease_s: float) -> None:
        """Makes it without any actor."""
        self._max_actors, self._lease_s = max_actors, lease_s
        self._live: set[str] = set()
        self._silent: dict[str, Stream] = {}  # in the order in which they fell silent, as the next
        self._empty: dict[str, Stream] = {}
        self.spooled: set[str] = set()

    def take(self, stream: Stream) -> None:
        """An actor is live, with this stream."""
        self.drop(stream.actor_id)
        self._live.add(stream.actor_id)
        if stream.spooled:
            self.spooled.add(stream.actor_id)

    def leave(self, stream: Stream) -> None:
        """An actor is live no more."""
        self.drop(stream.actor_id)
        self._silent[stream.actor_id] = stream
        if not stream.received:
            self._empty[stream.actor_id] = stream
        if stream.spooled:
            self.spooled.add(stream.actor_id)

    def drop(self, actor_id: str) -> None:
        """An actor has no record any more."""
        self._live.discard(actor_id)
        self._silent.pop(actor_id, None)
        self._empty.pop(actor_id, None)
        self.spooled.discard(actor_id)

    def full(self, now: float) -> bool:
        """Whether all places are taken."""
        while self._silent and len(self._live) + len(self._silent) >= self._max_actors:
            actor_id, stream = next(iter(self._silent.items()))
            if now - stream.last_seen <= self._lease_s:
                return True
            del self._silent[actor_id]
        return len(self._live) >= self._max_actors

    def oldest_empty(self, *, spooled: bool = False) -> Stream | None:
        """The empty record that has been silent for longest, or with `spooled` the first of those with a spool."""
        found = (stream for stream in self._empty.values() if stream.spooled or not spooled)
        return next(found, None)
