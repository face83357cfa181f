"""The learner's table of the actors of one client and of their streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rl4sys_zmq.delivery.incarnation import MAX_FIRST, MAX_STEP
from rl4sys_zmq.delivery.journal import StreamRow
from rl4sys_zmq.delivery.stream import Key, SegmentStream
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.liveness import is_silent
from rl4sys_zmq.wire.messages import Hello

# Streams of dropped actors whose next sequence numbers are still kept in memory, at most.
MAX_DROPPED = 1_024

# A client's actors with a spool, connected or not. The learner keeps their sequence numbers until an operator drops the actor.
MAX_SPOOLED = 65_536

# Earlier streams that are kept for each actor with a spool. An actor can start again with an old spool. Its old stream then
# continues from the sequence number on record.
EARLIER_SPOOLS = 8

# Missing segments that an actor can report when it opens a session. A larger number is refused.
MAX_GAP = 1 << 40


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """The result of `StreamTable.open`: the session of an actor whose request was accepted."""

    stream: SegmentStream
    previous_peer: bytes | None  # the routing id of the actor's previous connection, if there was another one
    gap: int  # segments that the actor has discarded as acknowledged and that the journal lacks
    fresh: bool  # True if the stream was created now
    evicted: Sequence[SegmentStream]  # empty streams that were discarded to free a slot


class StreamTable:
    """The learner's record of all actors of one client and of their streams.

    Each actor has one *current* stream. Its earlier streams stay while some of their segments are pending or in the journal. An
    actor is *live* while the table has a routing id for it, which is only an address for replies. A stream is *retired* (its
    incarnation is 0) after an operator dropped its actor. A retired stream is not current until the actor joins again.

    A live actor has a slot, and keeps it for `lease_s` seconds of silence after that. A stream is *empty* if its actor is not
    live and no segment was ever received: to discard it loses no data. To find a slot, no method iterates over all actors.
    """

    def __init__(self, client_id: str, *, silence_s: float, lease_s: float, max_actors: int, journal_id: int = 0) -> None:
        """Create an empty table. Silent actors are live for `silence_s` seconds, and keep their slots for `lease_s`."""
        self.client_id = client_id
        self._silence_s, self._lease_s, self._max_actors, self._journal_id = silence_s, lease_s, max_actors, journal_id
        self.expired = 0  # highest origin of all streams that were discarded
        self._streams: dict[Key, SegmentStream] = {}
        self._current: dict[str, SegmentStream] = {}
        self._peers: dict[str, bytes] = {}
        # The actors that are not live, in the order in which they became silent, and those of them with an empty stream.
        self._silent: dict[str, SegmentStream] = {}
        self._empty: dict[str, SegmentStream] = {}
        self._spooled: set[str] = set()  # ids of the actors with a spool, live or not
        self._dropped: dict[Key, int] = {}

    def restore(self, rows: Iterable[StreamRow], now: float) -> None:
        """Add the streams that a journal contained when the learner opened it. Their actors are not live."""
        for row in rows:
            stream = self._add(row, row.origin, row.first_seq, now)
            stream.received = stream.durable = stream.accepted_end = row.received
            stream.accepted_steps, stream.refused, stream.owner = row.accepted_steps, row.refused, row.owner
            known = self._current.get(row.actor_id)
            if row.incarnation and (known is None or known.incarnation < row.incarnation):
                self._current[row.actor_id] = stream
                self._begin_lease(stream)

    def rewind(self, marks: Mapping[Key, tuple[int, Mapping[str, int]]]) -> None:
        """Return all streams to their state in a checkpoint.

        `marks` has the mark and the verdicts of each stream, by its key. Other streams return to their beginning.
        """
        for stream in self._streams.values():
            mark, verdicts = marks.get(stream.key, (0, {}))
            stream.rewind(mark, verdicts)

    def open(self, hello: Hello, peer: bytes, now: float) -> OpenedSession:
        """Open a session for an actor that has requested one (`hello`) from this routing id. Continue or create its stream.

        Raises:
            ProtocolError: ``FENCED`` if a later start of the actor is on record, ``CONFLICT`` while another start of the actor
                is live, ``EXPIRED`` if the stream was discarded, ``QUOTA`` if there are too many actors, ``RANGE`` if a number
                is too high.
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
        self._forget_silence(stream)
        return OpenedSession(stream, old if old != peer else None, gap, fresh=fresh, evicted=evicted)

    def _check_turn(self, hello: Hello, origin: int, current: SegmentStream, now: float) -> None:
        """Raise ProtocolError if a HELLO, an actor's request for a session, does not come from the actor's latest start."""
        # Each start takes its incarnation from its clock, and clocks can be wrong. So a number below the one on record has two
        # possible reasons:
        # - The start has received no `Welcome` so far. It is the latest start, and its clock is wrong. The refusal (``FENCED``)
        #   contains the number on record. The actor takes a higher one and tries again.
        # - The start has received a `Welcome` before. A later start has replaced it. The refusal (``FENCED``) is final while the
        #   later start is live or has been silent for less than `lease_s`, and also if both have the same origin, which means
        #   that a spool was copied. Otherwise the refusal contains the number on record, as above.
        # A HELLO with the incarnation and the origin on record normally comes from the same start and is accepted. It is refused
        # (``FENCED``) if it shows that another start uses the same incarnation. A higher incarnation is refused (``CONFLICT``)
        # while the start on record is live, and accepted after that.
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
            known_start = f"actor {hello.actor_id!r} is incarnation {current.incarnation}, last seen {silent_s:.1f} s ago"
            reason = f"{known_start}; this is incarnation {hello.incarnation}. Stop one of them, or give them different actor_ids"
            raise ProtocolError(RefusalReason.FENCED, reason, incarnation=known)
        if live:
            raise ProtocolError(RefusalReason.CONFLICT, f"actor {hello.actor_id!r} is live as incarnation {current.incarnation}")

    def _begin(self, hello: Hello, origin: int, now: float) -> tuple[SegmentStream, list[SegmentStream]]:
        ours = hello.journal_id and hello.journal_id == self._journal_id
        if ours and not hello.spooled and origin <= self.expired:
            raise ProtocolError(RefusalReason.EXPIRED, f"the stream of origin {origin} was discarded when its lease was over")
        evicted = self._make_room(hello, now) if hello.actor_id not in self._current else []
        first_seq = self._dropped.pop((hello.actor_id, origin), 0)  # the segments below it are counted already
        return self._add(hello, origin, first_seq, now), evicted

    def _add(self, start: Hello | StreamRow, origin: int, first_seq: int, now: float) -> SegmentStream:
        stream = SegmentStream(self.client_id, start.actor_id, start.incarnation, first_seq, now, origin=origin)
        stream.submits, stream.spooled = start.submits, start.spooled
        self._streams[stream.key] = stream
        return stream

    def _make_room(self, hello: Hello, now: float) -> list[SegmentStream]:
        """Free a slot for a new actor. If necessary, discard empty streams. Return these."""
        evicted = []
        while self._full(now):
            evicted.append(self._evict(f"{self._max_actors} actors (max_actors)"))
        if hello.spooled and len(self._spooled) >= MAX_SPOOLED:
            evicted.append(self._evict(f"{MAX_SPOOLED} streams with a spool, the limit", spooled=True))
        return evicted

    def _full(self, now: float) -> bool:
        """Return True if no slot is free. First, release the slots whose leases are over."""
        while self._silent and len(self._peers) + len(self._silent) >= self._max_actors:
            actor_id, stream = next(iter(self._silent.items()))
            if not is_silent(now, stream.last_seen, self._lease_s):
                return True
            del self._silent[actor_id]
        return len(self._peers) >= self._max_actors

    def _evict(self, limit: str, *, spooled: bool = False) -> SegmentStream:
        """Discard the empty stream whose actor was silent for longest. With `spooled`, consider only actors with a spool."""
        stream = next((stream for stream in self._empty.values() if stream.spooled or not spooled), None)
        if stream is None:
            raise ProtocolError(RefusalReason.QUOTA, f"client {self.client_id!r} has {limit}")
        self._discard(stream)
        return stream

    def _discard(self, stream: SegmentStream) -> None:
        del self._streams[stream.key]
        if self._current.get(stream.actor_id) is stream:
            del self._current[stream.actor_id]
            self._release_slot(stream.actor_id)

    def _release_slot(self, actor_id: str) -> None:
        self._silent.pop(actor_id, None)
        self._empty.pop(actor_id, None)
        self._spooled.discard(actor_id)

    def _forget_silence(self, stream: SegmentStream) -> None:
        self._release_slot(stream.actor_id)
        if stream.spooled:
            self._spooled.add(stream.actor_id)

    def _begin_lease(self, stream: SegmentStream) -> None:
        self._forget_silence(stream)
        self._silent[stream.actor_id] = stream
        if not stream.received:
            self._empty[stream.actor_id] = stream

    def retire(self, actor_id: str) -> list[SegmentStream]:
        """Release the streams of an actor that an operator dropped and that is not connected. Return them.

        Any later start of the actor is then accepted, no user owns it, and it counts as one without a spool. Pending segments
        stay pending. `expire` later discards the streams. If the actor joins again before that, it continues its stream.
        """
        streams = [stream for stream in self._streams.values() if stream.actor_id == actor_id]
        for stream in streams:
            stream.incarnation, stream.spooled, stream.owner = 0, False, ""
        self._current.pop(actor_id, None)
        self._release_slot(actor_id)
        return streams

    def owner_of(self, actor_id: str) -> str:
        """Return the name of the user that an actor belongs to; empty for none."""
        stream = self._current.get(actor_id)
        return stream.owner if stream is not None else ""

    def get(self, actor_id: str, origin: int) -> SegmentStream | None:
        return self._streams.get((actor_id, origin))

    def all(self) -> list[SegmentStream]:
        """Return the current and the earlier streams of all actors."""
        return list(self._streams.values())

    def current(self) -> list[SegmentStream]:
        return list(self._current.values())

    @property
    def pending(self) -> int:
        return sum(s.pending for s in self._streams.values())

    def roll_back(self) -> int:
        """Give up all pending segments. Return their number."""
        return sum(s.roll_back() for s in self._streams.values())

    def live(self) -> list[SegmentStream]:
        return [self._current[actor_id] for actor_id in self._peers]

    @property
    def has_live(self) -> bool:
        return bool(self._peers)

    def is_actor_live(self, actor_id: str) -> bool:
        return actor_id in self._peers

    def is_live(self, stream: SegmentStream) -> bool:
        """Return True if a stream is the current one of a live actor."""
        return stream.actor_id in self._peers and self._current.get(stream.actor_id) is stream

    def peer_of(self, stream: SegmentStream) -> bytes | None:
        """Return the routing id of a stream's actor, or None if the actor is not live."""
        return self._peers.get(stream.actor_id)

    def close_session(self, stream: SegmentStream) -> None:
        """Record that the actor of a stream is no longer live. The actor keeps its slot until its lease is over."""
        if self._peers.pop(stream.actor_id, None) is not None:
            self._begin_lease(self._current[stream.actor_id])

    def silent(self, now: float) -> list[SegmentStream]:
        """Return the streams of the live actors that sent no message for longer than `silence_s` (see the constructor)."""
        return [s for s in self.live() if is_silent(now, s.last_seen, self._silence_s)]

    def expire(self, now: float, trimmed: Callable[[SegmentStream], bool]) -> list[SegmentStream]:
        """Discard the streams that will not continue and whose segments are no longer needed. Return these streams.

        These are the current streams without a spool whose leases are over, and earlier streams, except the `EARLIER_SPOOLS`
        latest ones with a spool. A stream stays while it has pending segments, or while `trimmed` is false for it: the journal
        then has entries that are delivered again after a return to a checkpoint.
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
            self._discard(stream)
        return gone

    def _remember_dropped(self, stream: SegmentStream) -> None:
        """Keep the next number of a dropped stream, in case the actor returns with its spool before this process ends."""
        self._dropped[stream.key] = stream.received
        while len(self._dropped) > MAX_DROPPED:
            del self._dropped[next(iter(self._dropped))]

    def _earlier_spools(self) -> set[Key]:
        """Return the keys of the earlier streams with a spool that are kept: of each actor, the latest `EARLIER_SPOOLS`."""
        earlier: dict[str, list[SegmentStream]] = {}
        for stream in self._streams.values():
            if stream.spooled and stream.received and self._current.get(stream.actor_id) is not stream:
                earlier.setdefault(stream.actor_id, []).append(stream)
        latest = (sorted(streams, key=lambda s: s.incarnation)[-EARLIER_SPOOLS:] for streams in earlier.values())
        return {stream.key for streams in latest for stream in streams}
