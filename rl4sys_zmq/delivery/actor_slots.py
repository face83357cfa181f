"""The slots for the actors of one client (a policy with its learner). Their number limits how many actors can connect."""

from __future__ import annotations

from rl4sys_zmq.delivery.stream import SegmentStream
from rl4sys_zmq.liveness import is_silent


class ActorSlots:
    """The slots for the actors of one client (a policy with its learner).

    The number of slots limits how many actors can connect. An actor has a slot while it is *live* (connected), and keeps the
    slot for `lease_s` seconds of silence after that. A stream (the segments of one actor) is *empty* if its actor is not live
    and no segment was ever received. To discard an empty stream loses no data. No method iterates over all actors.

    Attributes:
        spooled: The ids of the actors that keep their segments in a spool (queue on disk).
    """

    def __init__(self, max_actors: int, lease_s: float) -> None:
        """Create `max_actors` free slots. `lease_s` is the time in seconds after which a silent actor loses its slot."""
        self._max_actors, self._lease_s = max_actors, lease_s
        self._live: set[str] = set()
        self._silent: dict[str, SegmentStream] = {}  # in the order in which the actors became silent; so is `_empty`
        self._empty: dict[str, SegmentStream] = {}
        self.spooled: set[str] = set()

    def take(self, stream: SegmentStream) -> None:
        """Give a slot to the actor that sends a stream of segments, because it is now live (connected)."""
        self.drop(stream.actor_id)
        self._live.add(stream.actor_id)
        if stream.spooled:
            self.spooled.add(stream.actor_id)

    def leave(self, stream: SegmentStream) -> None:
        """Record that the actor of a stream is no longer connected. It keeps its slot for `lease_s` seconds of silence."""
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
        """Return True if no slot is free. First, release the slots of actors that were silent for longer than their lease."""
        while self._silent and len(self._live) + len(self._silent) >= self._max_actors:
            actor_id, stream = next(iter(self._silent.items()))
            if not is_silent(now, stream.last_seen, self._lease_s):
                return True
            del self._silent[actor_id]
        return len(self._live) >= self._max_actors

    def oldest_empty(self, *, spooled: bool = False) -> SegmentStream | None:
        """Return the empty stream whose actor has been silent for longest, or None. Its slot can be given to a new actor.

        A stream is empty if no segment was ever received. With `spooled`, only actors with a spool (queue of segments on disk)
        are considered.
        """
        found = (stream for stream in self._empty.values() if stream.spooled or not spooled)
        return next(found, None)
