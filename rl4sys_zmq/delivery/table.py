"""The streams of one client, and which peer speaks for which: joining, fencing, falling silent, leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rl4sys_zmq.delivery.actor_slots import ActorSlots
from rl4sys_zmq.delivery.incarnation import MAX_FIRST, MAX_STEP
from rl4sys_zmq.delivery.journal import StreamRow
from rl4sys_zmq.delivery.stream import Key, Stream
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.wire.messages import Hello

__all__ = ["Opened", "StreamTable"]

MAX_DROPPED = 1_024
"""Of how many streams that operators dropped the marks are remembered."""

MAX_SPOOLED = 65_536
"""How many streams with a spool a client may have, live or not: their marks are kept for good."""

EARLIER_SPOOLS = 8
"""How many earlier streams with a spool are kept of one actor: a spool that was away may come back, and must find its mark."""

MAX_GAP = 1 << 40
"""How many segments may be said to be gone at once: more is no accident."""


class Opened:
    """What a HELLO led to.

    Attributes:
        stream: the actor's.
        old_peer: the peer that spoke for it before, if another did.
        gap: how many segments the actor has been told to forget and the journal does not know.
        fresh: the stream was not known before.
        evicted: the streams that gave up their places: their actors are not live, and nothing of them was ever received.
    """

    def __init__(self, stream: Stream, old_peer: bytes | None, gap: int, *, fresh: bool, evicted: Sequence[Stream] = ()) -> None:
        self.stream, self.old_peer, self.gap, self.fresh, self.evicted = stream, old_peer, gap, fresh, evicted


class StreamTable:
    """All streams of one client that this learner knows.

    Each actor has one *current* stream; earlier ones of it stay as long as something of them is pending. An actor is *live*
    while a peer (a ROUTER's routing id) speaks for it. A routing id is no identity: it only says where answers go. A *retired*
    stream (incarnation 0) is nobody's current one until its actor comes back to it: an operator dropped the actor.

    Attributes:
        expired: the latest origin among the streams that were forgotten.
    """

    def __init__(self, client_id: str, *, silence_s: float, lease_s: float, max_actors: int, journal_id: int = 0) -> None:
        """Makes an empty table.

        Args:
            client_id: whose.
            silence_s: after how long an actor that says nothing is no longer live.
            lease_s: after how long its place is given up, and its mark with it, unless it has a spool.
            max_actors: how many actors may have a place.
            journal_id: of the journal that the streams are in.
        """
        self.client_id = client_id
        self._silence_s, self._lease_s, self._max_actors, self._journal_id = silence_s, lease_s, max_actors, journal_id
        self._slots = ActorSlots(max_actors, lease_s)
        self.expired = 0
        self._streams: dict[Key, Stream] = {}
        self._current: dict[str, Stream] = {}
        self._peers: dict[str, bytes] = {}
        self._dropped: dict[Key, int] = {}

    def restore(self, rows: Iterable[StreamRow], now: float) -> None:
        """Takes the streams that a journal remembers."""
        for row in rows:
            stream = Stream(
                row.client_id,
                row.actor_id,
                row.incarnation,
                row.first_seq,
                now,
                origin=row.origin,
                submits=row.submits,
                spooled=row.spooled,
            )
            stream.received = stream.durable = row.received
            stream.accepted_steps, stream.refused, stream.owner = row.accepted_steps, row.refused, row.owner
            self._streams[stream.key] = stream
            known = self._current.get(row.actor_id)
            if row.incarnation and (known is None or known.incarnation < row.incarnation):
                self._current[row.actor_id] = stream
                self._slots.leave(stream)

    def rewind(self, marks: Mapping[Key, tuple[int, Mapping[str, int]]]) -> None:
        """The learner thread goes on from a state with these marks and verdicts; what is not named it has never seen."""
        for stream in self._streams.values():
            mark, verdicts = marks.get(stream.key, (0, {}))
            stream.rewind(mark, verdicts)

    def open(self, hello: Hello, peer: bytes, now: float) -> Opened:
        """Lets the actor that says HELLO from `peer` go on with its stream, or begin one.

        Raises:
            ProtocolError: ``FENCED`` for a lower incarnation than is known, ``CONFLICT`` while another one is live,
                ``EXPIRED`` for one whose mark is forgotten, ``QUOTA`` when there are too many actors, ``RANGE`` for a number
                that is out of reach.
        """
        actor_id, origin = hello.actor_id, hello.origin or hello.incarnation
        current = self._current.get(actor_id)
        if hello.incarnation > max(MAX_FIRST, current.incarnation if current is not None else 0) + MAX_STEP:
            raise ProtocolError(Refusal.RANGE, f"incarnation {hello.incarnation} would leave none above it")
        if current is not None:
            self._check_turn(hello, origin, current, now)
        stream = self._streams.get((actor_id, origin))
        fresh, received = stream is None, 0 if stream is None else stream.received
        if hello.first_seq > received + MAX_GAP:
            raise ProtocolError(Refusal.RANGE, f"segment {hello.first_seq} is next, says the actor; {received} is known")
        evicted: list[Stream] = []
        if stream is None:
            stream, evicted = self._begin(hello, origin, now)
        self._current[actor_id] = stream
        stream.incarnation = hello.incarnation
        gap = stream.resume(hello.first_seq)
        stream.last_seen = now
        old = self._peers.get(actor_id)
        self._peers[actor_id] = peer
        self._slots.take(stream)
        return Opened(stream, old if old != peer else None, gap, fresh=fresh, evicted=evicted)

    def _check_turn(self, hello: Hello, origin: int, current: Stream, now: float) -> None:
        """Lets one process at a time speak for an actor: the last that began, and clocks don't say which that is.

        A start that no learner has welcomed yet is new: if its number is too low, its clock is wrong, and it is told what to
        exceed. One that was welcomed has been overtaken: it may come back when its successor has been silent for a lease, but
        not if that went on with the very same numbers, as the copy of a spool does.
        """
        if hello.incarnation == current.incarnation and origin == current.origin:
            if hello.welcomed or hello.spooled or not current.received:
                return
            another = f"another start has the incarnation {hello.incarnation}, and has sent {current.received} segments"
            raise ProtocolError(Refusal.FENCED, another, incarnation=current.incarnation)
        silent_s = now - current.last_seen
        live = hello.actor_id in self._peers and silent_s < self._silence_s
        if hello.incarnation < current.incarnation:
            ended = not live and silent_s >= self._lease_s and origin != current.origin
            known = current.incarnation if ended or not hello.welcomed else 0
            words = f"actor {hello.actor_id!r} is incarnation {current.incarnation}, heard {silent_s:.1f} s ago"
            reason = f"{words}; this is {hello.incarnation}: end one of them, or give it an actor_id of its own"
            raise ProtocolError(Refusal.FENCED, reason, incarnation=known)
        if live:
            raise ProtocolError(Refusal.CONFLICT, f"actor {hello.actor_id!r} is live as incarnation {current.incarnation}")

    def _begin(self, hello: Hello, origin: int, now: float) -> tuple[Stream, list[Stream]]:
        ours = hello.journal_id and hello.journal_id == self._journal_id
        if ours and not hello.spooled and origin <= self.expired:
            raise ProtocolError(Refusal.EXPIRED, f"origin {origin} was silent for longer than its lease")
        evicted = self._make_room(hello, now) if hello.actor_id not in self._current else []
        first_seq = self._dropped.pop((hello.actor_id, origin), 0)  # what is below was counted then
        stream = Stream(
            self.client_id,
            hello.actor_id,
            hello.incarnation,
            first_seq,
            now,
            origin=origin,
            submits=hello.submits,
            spooled=hello.spooled,
        )
        self._streams[stream.key] = stream
        return stream, evicted

    def _make_room(self, hello: Hello, now: float) -> list[Stream]:
        """Gives a newcomer a place, if need be that of an empty record; returns those that had to go."""
        slots, evicted = self._slots, list[Stream]()
        while slots.full(now):
            empty = slots.oldest_empty()
            if empty is None:
                raise ProtocolError(Refusal.QUOTA, f"client {self.client_id!r} has {self._max_actors} actors (max_actors)")
            evicted.append(self._evict(empty))
        if hello.spooled and len(slots.spooled) >= MAX_SPOOLED:
            empty = slots.oldest_empty(spooled=True)
            if empty is None:
                raise ProtocolError(Refusal.QUOTA, f"client {self.client_id!r} has {MAX_SPOOLED} streams with a spool")
            evicted.append(self._evict(empty))
        return evicted

    def _evict(self, stream: Stream) -> Stream:
        self._slots.drop(stream.actor_id)
        del self._streams[stream.key], self._current[stream.actor_id]
        return stream

    def retire(self, actor_id: str) -> list[Stream]:
        """Lets the streams of an actor, which must not be live, speak for it no more; returns them.

        They fence off no incarnation, belong to no user and outlive no lease. What is pending of them stays so; `expire` forgets
        them after that. Should the actor come back before, it goes on where it was.
        """
        streams = [stream for stream in self._streams.values() if stream.actor_id == actor_id]
        for stream in streams:
            stream.incarnation, stream.spooled, stream.owner = 0, False, ""
        self._current.pop(actor_id, None)
        self._slots.drop(actor_id)
        return streams

    def owner_of(self, actor_id: str) -> str:
        """The user that an actor belongs to; empty for nobody."""
        stream = self._current.get(actor_id)
        return stream.owner if stream is not None else ""

    def get(self, actor_id: str, origin: int) -> Stream | None:
        """This very stream."""
        return self._streams.get((actor_id, origin))

    def all(self) -> list[Stream]:
        """All streams, earlier ones of an actor among them while they matter."""
        return list(self._streams.values())

    def current(self) -> list[Stream]:
        """The latest stream of each actor."""
        return list(self._current.values())

    @property
    def pending(self) -> int:
        """Segments accepted and not yet disposed of."""
        return sum(s.pending for s in self._streams.values())

    def roll_back(self) -> int:
        """Forgets what is pending in all streams; returns how many segments that were."""
        return sum(s.roll_back() for s in self._streams.values())

    def live(self) -> list[Stream]:
        """Those with a peer."""
        return [self._current[actor_id] for actor_id in self._peers]

    @property
    def has_live(self) -> bool:
        """A peer speaks for one of them."""
        return bool(self._peers)

    def speaks(self, actor_id: str) -> bool:
        """Whether a peer speaks for this actor."""
        return actor_id in self._peers

    def is_live(self, stream: Stream) -> bool:
        """Whether a peer speaks for this very stream."""
        return stream.actor_id in self._peers and self._current.get(stream.actor_id) is stream

    def peer_of(self, stream: Stream) -> bytes | None:
        """Where to send what is for this stream's actor."""
        return self._peers.get(stream.actor_id)

    def close_session(self, stream: Stream) -> None:
        """Its actor is not live any more."""
        if self._peers.pop(stream.actor_id, None) is not None:
            self._slots.leave(self._current[stream.actor_id])

    def silent(self, now: float) -> list[Stream]:
        """The live streams that have said nothing for too long."""
        return [s for s in self.live() if now - s.last_seen > self._silence_s]

    def expire(self, now: float, trimmed: Callable[[Stream], bool]) -> list[Stream]:
        """Forgets the streams that can't go on, once nothing of them is needed; returns those.

        That are those without a spool whose lease has run out, and the earlier ones of an actor, but for its latest spools.

        Args:
            now: the time.
            trimmed: whether the journal holds nothing of a stream any more: a learner thread that goes back to a checkpoint
                would be fed that again.
        """
        gone, kept = [], self._earlier_spools()
        for stream in self.all():
            if self._current.get(stream.actor_id) is stream:
                over = stream.actor_id not in self._peers and not stream.spooled and now - stream.last_seen > self._lease_s
            else:
                over = stream.key not in kept
            if over and not stream.pending and trimmed(stream):
                gone.append(stream)
        for stream in gone:
            self.expired = max(self.expired, stream.origin)
            if not stream.incarnation:
                self._remember_dropped(stream)
            del self._streams[stream.key]
            if self._current.get(stream.actor_id) is stream:
                del self._current[stream.actor_id]
                self._slots.drop(stream.actor_id)
        return gone

    def _remember_dropped(self, stream: Stream) -> None:
        """Keeps how far a stream had come that an operator dropped: a spool may go on from there, in this process's life."""
        self._dropped[stream.key] = stream.received
        while len(self._dropped) > MAX_DROPPED:
            del self._dropped[next(iter(self._dropped))]

    def _earlier_spools(self) -> set[Key]:
        """The streams with a spool that another of their actor's has followed, as far as they are kept."""
        found: dict[str, list[Stream]] = {}
        for stream in self._streams.values():
            if stream.spooled and stream.received and self._current.get(stream.actor_id) is not stream:
                found.setdefault(stream.actor_id, []).append(stream)
        latest = (sorted(streams, key=lambda s: s.incarnation)[-EARLIER_SPOOLS:] for streams in found.values())
        return {stream.key for streams in latest for stream in streams}
