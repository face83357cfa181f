"""The streams of one client, and which peer speaks for which: joining, fencing, falling silent, leases."""

from __future__ import annotations

from collections import OrderedDict

from rl4sys_zmq.delivery.stream import Stream
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.wire.messages import Hello

__all__ = ["StreamTable"]

MAX_EXPIRED = 16_384
"""How many streams are remembered after their lease, so that an actor that comes back is not trained on twice."""


class StreamTable:
    """All actors of one client that this learner knows.

    An actor is *live* while a peer (a ROUTER's routing id) speaks for it. A routing id is no identity: it only says where
    answers go.
    """

    def __init__(self, client_id: str, *, silence_s: float, lease_s: float, max_actors: int) -> None:
        """Args:
        client_id: whose.
        silence_s: after how long an actor that says nothing is no longer live.
        lease_s: after how long its place is given up, if nothing of it is pending; only its marks are kept then.
        max_actors: how many streams there may be.
        """
        self.client_id = client_id
        self._silence_s, self._lease_s, self._max_actors = silence_s, lease_s, max_actors
        self._streams: dict[str, Stream] = {}
        self._peers: dict[str, bytes] = {}
        self._ended: dict[tuple[str, int], Stream] = {}
        self._expired: OrderedDict[str, Stream] = OrderedDict()

    def open(self, hello: Hello, peer: bytes, now: float) -> tuple[Stream, bytes | None]:
        """The stream of an actor that says HELLO from `peer`, and the peer that spoke for it before, if another did.

        Raises:
            ProtocolError: ``FENCED`` for an older incarnation than is known, ``CONFLICT`` while another one is live,
                ``QUOTA`` when there are too many actors.
        """
        actor_id = hello.actor_id
        stream = self._streams.get(actor_id) or self._expired.get(actor_id)
        if stream is not None and stream.incarnation != hello.incarnation:
            if hello.incarnation < stream.incarnation:
                raise ProtocolError(Refusal.FENCED, f"incarnation {hello.incarnation}; {stream.incarnation} is on record")
            if actor_id in self._peers and now - stream.last_seen < self._silence_s:
                raise ProtocolError(Refusal.CONFLICT, f"actor {actor_id!r} is live as incarnation {stream.incarnation}")
            if stream.pending:
                self._ended[actor_id, stream.incarnation] = stream
            stream = None
        if actor_id not in self._streams and len(self._streams) >= self._max_actors:
            raise ProtocolError(Refusal.QUOTA, f"client {self.client_id!r} has {len(self._streams)} actors (max_actors)")
        if stream is None:
            stream = Stream(self.client_id, actor_id, hello.incarnation, hello.first_seq, now, submits=hello.submits)
        self._streams[actor_id] = stream
        self._expired.pop(actor_id, None)
        stream.resume(hello.first_seq)
        stream.last_seen = now
        old = self._peers.get(actor_id)
        self._peers[actor_id] = peer
        return stream, old if old != peer else None

    def get(self, actor_id: str, incarnation: int) -> Stream | None:
        """The stream of this very incarnation."""
        stream = self._streams.get(actor_id)
        if stream is not None and stream.incarnation == incarnation:
            return stream
        return self._ended.get((actor_id, incarnation))

    def all(self) -> list[Stream]:
        """The streams of all actors, each in its latest incarnation."""
        return list(self._streams.values())

    @property
    def pending(self) -> int:
        """Segments accepted and not yet disposed of, those of earlier incarnations among them."""
        return sum(s.pending for s in (*self._streams.values(), *self._ended.values()))

    def roll_back(self) -> int:
        """Forgets what is pending in all streams; returns how many segments that were."""
        lost = sum(s.roll_back() for s in (*self._streams.values(), *self._ended.values()))
        self._ended.clear()
        return lost

    def live(self) -> list[Stream]:
        """Those with a peer."""
        return [self._streams[actor_id] for actor_id in self._peers]

    def peer_of(self, stream: Stream) -> bytes | None:
        """Where to send what is for this stream's actor."""
        return self._peers.get(stream.actor_id)

    def hang_up(self, stream: Stream) -> None:
        """Its actor is not live any more."""
        self._peers.pop(stream.actor_id, None)

    def silent(self, now: float) -> list[Stream]:
        """The live streams that have said nothing for too long."""
        return [s for s in self.live() if now - s.last_seen > self._silence_s]

    def expire(self, now: float) -> None:
        """Gives up the places of the streams whose lease has run out."""
        gone = [s for s in self.all() if s.actor_id not in self._peers and now - s.last_seen > self._lease_s and not s.pending]
        for stream in gone:
            self._expired[stream.actor_id] = self._streams.pop(stream.actor_id)
        self._ended = {key: s for key, s in self._ended.items() if s.pending}
        while len(self._expired) > MAX_EXPIRED:
            self._expired.popitem(last=False)
