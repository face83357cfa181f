"""The learner's table of the actors of one client and of their streams of segments.

Each start of an actor has a number, its *incarnation*. A *stream* is the numbered segments of one actor; its *origin* is the
incarnation that began the numbering. Its *mark* is the next sequence number that the learner expects. *Fencing* refuses a start
of an actor (`RefusalReason.FENCED`) if a newer start of the same actor is on record. An actor's *lease* is the time for which it
can be silent before its slot is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rl4sys_zmq.delivery.actor_slots import ActorSlots
from rl4sys_zmq.delivery.incarnation import MAX_FIRST, MAX_STEP
from rl4sys_zmq.delivery.journal import StreamRow
from rl4sys_zmq.delivery.stream import Key, SegmentStream
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.liveness import is_silent
from rl4sys_zmq.wire.messages import Hello

MAX_DROPPED = 1_024
"""The largest number of streams of dropped actors whose next sequence numbers are still kept in memory."""

MAX_SPOOLED = 65_536
"""The largest number of a client's actors with a spool (a queue of segments on disk), connected or not.

The learner keeps the sequence numbers of these actors until an operator drops the actor.
"""

EARLIER_SPOOLS = 8
"""The number of earlier streams that are kept for each actor with a spool.

An actor can start again with an old spool. Its old stream then continues from the sequence number on record.
"""

MAX_GAP = 1 << 40
"""The largest number of missing segments that an actor can report when it opens a session. A larger number is refused."""


class OpenedSession:
    """The result of an accepted HELLO, the message with which an actor opens a session.

    Attributes:
        stream: The stream of the actor's segments.
        previous_peer: The routing id of the actor's previous connection, if there was another one; else None.
        gap: The number of segments that the actor has discarded as acknowledged and that the journal (record of accepted
            segments) lacks.
        fresh: True if the stream was created now.
        evicted: The streams that were discarded to free a slot. Their actors are not connected, and no segment was received.
    """

    def __init__(
        self, stream: SegmentStream, previous_peer: bytes | None, gap: int, *, fresh: bool, evicted: Sequence[SegmentStream] = ()
    ) -> None:
        self.stream, self.previous_peer, self.gap, self.fresh, self.evicted = stream, previous_peer, gap, fresh, evicted


class StreamTable:
    """The learner's record of all actors of one client (a policy with its learner thread) and of their streams of segments.

    Each actor has one *current* stream. The actor's earlier streams stay while some of their segments are pending (without a
    result) or in the journal. An actor is *live* while the table has a routing id of the ROUTER socket for it. A routing id is
    only an address for replies and does not identify an actor. A stream is *retired* (it has the incarnation 0) after an operator
    dropped its actor. A retired stream is not current until the actor joins again.

    Attributes:
        expired: The highest origin (incarnation that began the numbering) of all streams that were discarded.
    """

    def __init__(self, client_id: str, *, silence_s: float, lease_s: float, max_actors: int, journal_id: int = 0) -> None:
        """Create an empty table.

        Args:
            client_id: The id of the client (a policy with its learner).
            silence_s: The time in seconds after which a silent actor is no longer live.
            lease_s: The time in seconds after which the slot of a silent actor is free. The learner then discards the actor's
                sequence numbers, unless the actor has a spool.
            max_actors: The number of actor slots.
            journal_id: The id of the journal that records the streams.
        """
        self.client_id = client_id
        self._silence_s, self._lease_s, self._max_actors, self._journal_id = silence_s, lease_s, max_actors, journal_id
        self._slots = ActorSlots(max_actors, lease_s)
        self.expired = 0
        self._streams: dict[Key, SegmentStream] = {}
        self._current: dict[str, SegmentStream] = {}
        self._peers: dict[str, bytes] = {}
        self._dropped: dict[Key, int] = {}

    def restore(self, rows: Iterable[StreamRow], now: float) -> None:
        """Add the streams (numbered segments of one actor) that a journal contained when the learner opened it.

        Their actors are not live (connected).
        """
        for row in rows:
            stream = SegmentStream(
                row.client_id,
                row.actor_id,
                row.incarnation,
                row.first_seq,
                now,
                origin=row.origin,
                submits=row.submits,
                spooled=row.spooled,
            )
            stream.received = stream.durable = stream.accepted_end = row.received
            stream.accepted_steps, stream.refused, stream.owner = row.accepted_steps, row.refused, row.owner
            self._streams[stream.key] = stream
            known = self._current.get(row.actor_id)
            if row.incarnation and (known is None or known.incarnation < row.incarnation):
                self._current[row.actor_id] = stream
                self._slots.leave(stream)

    def rewind(self, marks: Mapping[Key, tuple[int, Mapping[str, int]]]) -> None:
        """Roll the record of every actor's segments (its streams) back to the state in a checkpoint.

        Args:
            marks: A dict from the key of each stream in the checkpoint to the sequence number below which the checkpoint covers
                all segments, and the number of segments by verdict (trained, stale, ...). Streams that are not in it go back to
                0.
        """
        for stream in self._streams.values():
            mark, verdicts = marks.get(stream.key, (0, {}))
            stream.rewind(mark, verdicts)

    def open(self, hello: Hello, peer: bytes, now: float) -> OpenedSession:
        """Open a session for the actor that sent a HELLO. Continue its stream (numbered segments), or create a new one.

        Args:
            hello: The message.
            peer: The routing id from which the message came.
            now: The time, in seconds.

        Raises:
            ProtocolError: ``FENCED`` if a later start of the actor is on record, ``CONFLICT`` while another start of the actor is
                live, ``EXPIRED`` if the stream was discarded, ``QUOTA`` if there are too many actors, ``RANGE`` if a number is
                too high.
        """
        actor_id, origin = hello.actor_id, hello.origin or hello.incarnation
        current = self._current.get(actor_id)
        if hello.incarnation > max(MAX_FIRST, current.incarnation if current is not None else 0) + MAX_STEP:
            raise ProtocolError(RefusalReason.RANGE, f"incarnation {hello.incarnation} is too high")
        if current is not None:
            self._check_turn(hello, origin, current, now)
        stream = self._streams.get((actor_id, origin))
        fresh, received = stream is None, 0 if stream is None else stream.received
        if hello.first_seq > received + MAX_GAP:
            raise ProtocolError(
                RefusalReason.RANGE, f"first_seq {hello.first_seq} is too far above {received}, the next on record"
            )
        evicted: list[SegmentStream] = []
        if stream is None:
            stream, evicted = self._begin(hello, origin, now)
        self._current[actor_id] = stream
        stream.incarnation = hello.incarnation
        gap = stream.advance_to(hello.first_seq)
        stream.last_seen = now
        old = self._peers.get(actor_id)
        self._peers[actor_id] = peer
        self._slots.take(stream)
        return OpenedSession(stream, old if old != peer else None, gap, fresh=fresh, evicted=evicted)

    def _check_turn(self, hello: Hello, origin: int, current: SegmentStream, now: float) -> None:
        """Raise ProtocolError if a HELLO (the message that opens a session) does not come from the latest start of its actor.

        Only one process at a time can act as an actor. Each start of an actor takes its number, the incarnation, from its clock,
        and clocks can be wrong. So if the number is lower than the one on record, there are two possible reasons:

        - The start has received no `Welcome` so far. It is the latest start, and its clock is wrong. The refusal (``FENCED``)
          contains the number on record. The actor takes a higher one and tries again.
        - The start has received a `Welcome` before. A later start has replaced it. The refusal (``FENCED``) is final while the
          later start is live or has been silent for less than `lease_s`, and also if both have the same origin, which means that
          a spool was copied. Otherwise the refusal contains the number on record, as above.

        A HELLO with the incarnation and the origin on record normally comes from the same start and is accepted. It is refused
        (``FENCED``) if it shows that another start uses the same incarnation. A higher incarnation is refused (``CONFLICT``)
        while the start on record is live, and accepted after that.
        """
        if hello.incarnation == current.incarnation and origin == current.origin:
            if hello.previously_welcomed or hello.spooled or not current.received:
                return
            another = f"another start uses the incarnation {hello.incarnation} and has sent {current.received} segments"
            raise ProtocolError(RefusalReason.FENCED, another, incarnation=current.incarnation)
        silent_s = now - current.last_seen
        live = hello.actor_id in self._peers and silent_s < self._silence_s
        if hello.incarnation < current.incarnation:
            ended = not live and silent_s >= self._lease_s and origin != current.origin
            known = current.incarnation if ended or not hello.previously_welcomed else 0
            words = f"actor {hello.actor_id!r} is incarnation {current.incarnation}, last seen {silent_s:.1f} s ago"
            reason = f"{words}; this is incarnation {hello.incarnation}. Stop one of them, or give them different actor_ids"
            raise ProtocolError(RefusalReason.FENCED, reason, incarnation=known)
        if live:
            raise ProtocolError(RefusalReason.CONFLICT, f"actor {hello.actor_id!r} is live as incarnation {current.incarnation}")

    def _begin(self, hello: Hello, origin: int, now: float) -> tuple[SegmentStream, list[SegmentStream]]:
        ours = hello.journal_id and hello.journal_id == self._journal_id
        if ours and not hello.spooled and origin <= self.expired:
            raise ProtocolError(RefusalReason.EXPIRED, f"the stream of origin {origin} was discarded when its lease was over")
        evicted = self._make_room(hello, now) if hello.actor_id not in self._current else []
        first_seq = self._dropped.pop((hello.actor_id, origin), 0)  # the segments below it are counted already
        stream = SegmentStream(
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

    def _make_room(self, hello: Hello, now: float) -> list[SegmentStream]:
        """Free a slot for a new actor. If necessary, discard streams of which no segment was received. Return these."""
        slots, evicted = self._slots, list[SegmentStream]()
        while slots.full(now):
            empty = slots.oldest_empty()
            if empty is None:
                raise ProtocolError(RefusalReason.QUOTA, f"client {self.client_id!r} has {self._max_actors} actors (max_actors)")
            evicted.append(self._evict(empty))
        if hello.spooled and len(slots.spooled) >= MAX_SPOOLED:
            empty = slots.oldest_empty(spooled=True)
            if empty is None:
                raise ProtocolError(
                    RefusalReason.QUOTA, f"client {self.client_id!r} has {MAX_SPOOLED} streams with a spool, the limit"
                )
            evicted.append(self._evict(empty))
        return evicted

    def _evict(self, stream: SegmentStream) -> SegmentStream:
        self._slots.drop(stream.actor_id)
        del self._streams[stream.key], self._current[stream.actor_id]
        return stream

    def retire(self, actor_id: str) -> list[SegmentStream]:
        """Release the streams (numbered segments) of an actor that an operator dropped and that is not connected. Return them.

        For a retired stream, any later start of the actor is accepted, no user is its owner, and the actor counts as one
        without a spool (queue of segments on disk). Accepted segments without a result stay pending. `expire` later discards
        the streams. If the actor joins again before that, it continues its stream.
        """
        streams = [stream for stream in self._streams.values() if stream.actor_id == actor_id]
        for stream in streams:
            stream.incarnation, stream.spooled, stream.owner = 0, False, ""
        self._current.pop(actor_id, None)
        self._slots.drop(actor_id)
        return streams

    def owner_of(self, actor_id: str) -> str:
        """Return the name of the user (holder of a key) that an actor belongs to; empty if it belongs to no user."""
        stream = self._current.get(actor_id)
        return stream.owner if stream is not None else ""

    def get(self, actor_id: str, origin: int) -> SegmentStream | None:
        """Return the stream of an actor whose numbering of segments began with the actor's start number `origin`, or None."""
        return self._streams.get((actor_id, origin))

    def all(self) -> list[SegmentStream]:
        """Return all streams (numbered segments of one actor): the current and the earlier streams of each actor."""
        return list(self._streams.values())

    def current(self) -> list[SegmentStream]:
        """Return for each actor the stream of segments that it now sends or last sent, without its earlier streams."""
        return list(self._current.values())

    @property
    def pending(self) -> int:
        """The number of segments of all actors that are accepted and have no verdict (trained, stale, ...) so far."""
        return sum(s.pending for s in self._streams.values())

    def roll_back(self) -> int:
        """Give up all actors' accepted segments that have no verdict (result) so far. Return the number of these segments."""
        return sum(s.roll_back() for s in self._streams.values())

    def live(self) -> list[SegmentStream]:
        """Return the current streams (numbered segments) of the actors that are live (connected)."""
        return [self._current[actor_id] for actor_id in self._peers]

    @property
    def has_live(self) -> bool:
        """True if at least one actor is live (connected)."""
        return bool(self._peers)

    def is_actor_live(self, actor_id: str) -> bool:
        """Return True if an actor is live: it has opened a session, and the session was not closed."""
        return actor_id in self._peers

    def is_live(self, stream: SegmentStream) -> bool:
        """Return True if the actor of a stream is live (connected) and now sends segments of this stream."""
        return stream.actor_id in self._peers and self._current.get(stream.actor_id) is stream

    def peer_of(self, stream: SegmentStream) -> bytes | None:
        """Return the routing id (address for replies) of a stream's actor, or None if the actor is not connected."""
        return self._peers.get(stream.actor_id)

    def close_session(self, stream: SegmentStream) -> None:
        """Record that the actor of a stream is no longer live (connected), because its session ended.

        The actor keeps its slot until it was silent for the lease time.
        """
        if self._peers.pop(stream.actor_id, None) is not None:
            self._slots.leave(self._current[stream.actor_id])

    def silent(self, now: float) -> list[SegmentStream]:
        """Return the streams of the actors that have a session, but sent no message for longer than the silence timeout."""
        return [s for s in self.live() if is_silent(now, s.last_seen, self._silence_s)]

    def expire(self, now: float, trimmed: Callable[[SegmentStream], bool]) -> list[SegmentStream]:
        """Discard the streams that will not continue and whose segments are no longer needed. Return these streams.

        These are the current streams without a spool (queue on disk) whose actors were silent for longer than the lease, and
        the earlier streams of each actor. The `EARLIER_SPOOLS` latest earlier streams with a spool stay. A stream also stays
        while it has accepted segments without a verdict (result).

        Args:
            now: The time, in seconds.
            trimmed: A function that returns True if the journal has no entries of a stream. A stream with entries stays, because
                a rollback to a checkpoint would replay them.
        """
        gone, kept = [], self._earlier_spools()
        for stream in self.all():
            if self._current.get(stream.actor_id) is stream:
                over = (
                    stream.actor_id not in self._peers and not stream.spooled and is_silent(now, stream.last_seen, self._lease_s)
                )
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

    def _remember_dropped(self, stream: SegmentStream) -> None:
        """Keep in memory the next sequence number of a stream that an operator dropped, for the last `MAX_DROPPED` streams.

        If the actor returns with its spool before this process ends, the stream continues from that number.
        """
        self._dropped[stream.key] = stream.received
        while len(self._dropped) > MAX_DROPPED:
            del self._dropped[next(iter(self._dropped))]

    def _earlier_spools(self) -> set[Key]:
        """Return the keys of the earlier streams to keep: the `EARLIER_SPOOLS` latest ones of each actor with a spool.

        A spool is an actor's queue of segments on disk. An actor that starts again with an old spool continues its old stream.
        """
        found: dict[str, list[SegmentStream]] = {}
        for stream in self._streams.values():
            if stream.spooled and stream.received and self._current.get(stream.actor_id) is not stream:
                found.setdefault(stream.actor_id, []).append(stream)
        latest = (sorted(streams, key=lambda s: s.incarnation)[-EARLIER_SPOOLS:] for streams in found.values())
        return {stream.key for streams in latest for stream in streams}
