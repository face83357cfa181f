"""The actor's side of the delivery protocol, without I/O: it takes messages and the time, and returns actions to carry out.

States::

    JOINING ──Welcome──▶ JOINED ──silence, NO_SESSION──▶ JOINING
       │ temporary refusal: stays JOINING and retries
       │ FENCED with the incarnation on record: takes a higher one, stays JOINING and retries
       └─ permanent refusal ──▶ REFUSED (retries slowly; keeps its segments)

A segment gets its sequence number when it moves from the outbox to the window. So a drop from the outbox leaves no gap in the
numbers. The learner reports two numbers. Segments below `durable` are in its journal, and leave the window. `received` is the
next number that it expects; resends start there (go-back-N).

If the learner has discarded its record of an actor (`RefusalReason.EXPIRED`), the session starts again with a new incarnation,
and the segments in the window are in doubt.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.incarnation import next_incarnation
from rl4sys_zmq.delivery.resend_timer import ResendTimer
from rl4sys_zmq.errors import RefusalReason
from rl4sys_zmq.images import ImageFormat
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.liveness import (
    HEARTBEAT_LIMITS_S,
    HEARTBEAT_S,
    HELLO_RETRY_S,
    MISSED_MESSAGES,
    REFUSED_RETRY_S,
    SILENCE_S,
    SilenceTimer,
    jittered,
)
from rl4sys_zmq.wire import PackedSegment, join_submit, with_images
from rl4sys_zmq.wire.coding import MAX_IMAGE_BYTES
from rl4sys_zmq.wire.messages import (
    Ack,
    Beacon,
    Bye,
    Heartbeat,
    Hello,
    Message,
    OperatorCommandDone,
    Refused,
    StatusReply,
    Submit,
    ToLearner,
    Verdict,
    WeightsReply,
    WeightsSource,
    Welcome,
)

MAX_BATCH_ITEMS = 64
MAX_BATCH_BYTES = 1 << 20
_TEMPORARY = {
    RefusalReason.STARTING,
    RefusalReason.NO_SESSION,
    RefusalReason.CLOSING,
    RefusalReason.CONFLICT,
    RefusalReason.GAP,
    RefusalReason.CHECKSUM,
}
# The value of `Refused.field` if the actor lacks a right. The learner then refuses the session, not only one message.
FIELD_RIGHTS = "keys"

# The value of `Refused.field` if a rate limit was exceeded. The learner accepts the same message later.
FIELD_RATE = "rate"

_SESSION_LOST = {RefusalReason.NO_SESSION, RefusalReason.CLOSING}


class SessionState(Enum):
    """The state of an actor's session with its learner."""

    JOINING = "joining"
    JOINED = "joined"
    REFUSED = "refused"
    CLOSED = "closed"


@immutable
class SendMessage:
    """Action: send a message on the DEALER socket."""

    message: Message


@immutable
class SessionJoined:
    """Event: the learner accepted the session. ``welcome.gap`` counts acknowledged segments that the learner's journal lacks."""

    welcome: Welcome


@immutable
class SessionRefused:
    """Event: the learner refused the session permanently, or ended it, because the client failed or the actor lacks a right."""

    refused: Refused


@immutable
class SessionTemporarilyRefused:
    """Event: the learner refuses this actor for a time. The session requests acceptance again by itself."""

    refused: Refused


@immutable
class Reconnect:
    """Action: replace the sockets, because no message arrived for `silence_s` seconds."""

    silence_s: float


@immutable
class StreamRestarted:
    """Event: the learner has discarded the actor's stream, so a new one begins. Segments in doubt are not sent again."""

    in_doubt: int


@immutable
class ReplaceSockets:
    """Action: replace the sockets, because the actor took a higher incarnation. No reply to the lower one arrives then."""

    incarnation: int


Action = SendMessage | SessionJoined | SessionRefused | SessionTemporarilyRefused | Reconnect | StreamRestarted | ReplaceSockets


@dataclass(slots=True)
class _InFlight:
    seq: int
    packed: PackedSegment
    before_steps: int
    before_bytes: int
    fresh: bool = True
    """True until the segment is sent for the first time. Its images are encoded at that moment."""


class ActorSession:
    """The session of one actor with one learner. The actor's I/O thread makes all calls; other threads only read."""

    def __init__(
        self, hello: Hello, counters: Counters, rng: random.Random, *, coded: bool = False, images: ImageFormat | None = None
    ) -> None:
        """Create a session whose sequence numbers start at ``hello.first_seq``.

        With a spool, that is the number of the oldest segment in the spool. After the first `Welcome`, pass the segments of the
        spool in order: those that the learner has received to `recover`, then the others to `take`. `rng` varies the pauses
        between retries. With `coded`, message bodies are compressed where possible. `images` encodes each segment once, before
        its first send.
        """
        self.state = SessionState.JOINING
        self.credit_steps = 0  # total number of steps that the actor may have sent; 0 before the handshake
        self.sent_steps = 0  # total number of steps that the learner has accepted or that are in flight
        self.min_version = 0  # lowest policy version with which the actor should start a segment
        # True if the actor is about to leave. It then also sends segments for which it has no credit in steps, as many as the
        # learner can store
        self.leaving = False
        self.received = self.durable = hello.first_seq
        self.journal_id = hello.journal_id  # journal of the learner that last sent a `Welcome`; 0 before the first one
        self.in_doubt = 0  # number of segments in doubt
        self._hello = hello
        self._counters = counters
        self._rng = rng
        self._coded, self._images = coded, images
        self._window: deque[_InFlight] = deque()
        self._next_seq = hello.first_seq
        self._taken_steps = self._taken_bytes = 0
        self.generation = 0  # 0 before the first handshake
        self._credit_items = 0
        self._credit_bytes = 0
        self._recovers = hello.spooled
        self._previously_welcomed = hello.previously_welcomed
        self._verdicts = dict.fromkeys(Verdict.ALL, 0)
        self._verdicts_of = 0
        self._earlier = dict.fromkeys(Verdict.ALL, 0)
        self._earlier_accepted = self._earlier_refused = 0
        self._heartbeat, self._silence = SilenceTimer(HEARTBEAT_S), SilenceTimer(SILENCE_S)
        self._next_hello = 0.0
        self._resend_timer = ResendTimer(rng)
        self._want_steps = 0
        self._gap_at: int | None = None

    def open(self, now: float, held: tuple[int, int]) -> list[Action]:
        """Start the session, or restart it on new sockets. `held` is the (generation, version) of the actor's policy."""
        self._silence.restart(now)
        return self._join(now, held)

    def can_take(self) -> bool:
        """Return True if the learner has accepted the session and permits one more segment."""
        return self.state is SessionState.JOINED and self._taken_bytes < self._credit_bytes and self.has_room(0, 0)

    def has_room(self, items: int, steps: int) -> bool:
        """Return True if the learner permits one more segment after `items` segments with `steps` steps that wait."""
        credit = self.leaving or self.sent_steps + steps < self.credit_steps
        return credit and self._next_seq + items < self._credit_items

    def take(self, now: float, packed: Sequence[PackedSegment], ahead_steps: int = 0) -> list[Action]:
        """Send segments, and keep them until they are in the learner's journal. Call this only while `can_take` is true.

        The message also requests credit for `ahead_steps` more steps, so that the next segments need not wait for a round trip.
        """
        items = [self._hold(p) for p in packed]
        self.sent_steps += sum(p.steps for p in packed)
        self._want_steps = max(self._want_steps, self.sent_steps + ahead_steps)
        self._resend_timer.sent(now, items[-1].seq)
        limit = MAX_IMAGE_BYTES if self._images is not None else None
        return self._submit(now, items, len(items), limit)

    def recover(self, packed: Sequence[PackedSegment]) -> None:
        """Keep segments from the spool that the learner has received, but that the learner's journal can still lack.

        Call this once, after the learner has first accepted a session of this start of the actor, with the last segments below
        `received`. An earlier start sent them. The session keeps them until they are in the journal.
        """
        self._next_seq = self.received - len(packed)
        for p in packed:
            self._hold(p)

    def want(self, now: float, steps: int) -> list[Action]:
        """Request credit for a total of `steps` steps since the numbering began, unless this credit is granted already.

        A lower number than in the last request returns credit. The learner gets this number with the next message.
        """
        if self.state is not SessionState.JOINED or steps == self._want_steps:
            return []
        more, self._want_steps = steps > self._want_steps, steps
        self.credit_steps = min(self.credit_steps, steps)
        return [self._send(now, Heartbeat(steps))] if more and steps > self.credit_steps else []

    def tick(self, now: float, held: tuple[int, int]) -> list[Action]:
        """Return the actions due at the time `now`: request a session, send a heartbeat, resend segments, or reconnect."""
        if self.state is SessionState.CLOSED:
            return []
        message_s = REFUSED_RETRY_S if self.state is SessionState.REFUSED else self._heartbeat.after_s
        self._silence.after_s = MISSED_MESSAGES * message_s
        if self._silence.expired(now):
            if self.state is SessionState.JOINED:
                self._counters.add("sessions_lost.silence")
                self.state = SessionState.JOINING
            silence_s = now - self._silence.started_s
            self._silence.restart(now)
            return [Reconnect(silence_s)]
        if self.state is not SessionState.JOINED:
            return self._join(now, held) if now >= self._next_hello else []
        if self._resend_timer.expired(now):
            return self._resend(now)
        if self._heartbeat.expired(now):
            return [self._send(now, Heartbeat(self._want_steps))]
        return []

    def next_deadline(self) -> float:
        """Return the latest time for the next call of `tick`, on the clock of `now`, in seconds."""
        if self.state is not SessionState.JOINED:
            return self._next_hello
        deadline = min(self._heartbeat.deadline, self._silence.deadline)
        return min(deadline, self._resend_timer.at) if self._resend_timer.at else deadline

    def on_message(self, now: float, message: Message) -> list[Action]:
        """Handle a message from the learner. Return the actions to carry out."""
        self._silence.restart(now)
        if self.state is SessionState.CLOSED:
            return []
        match message:
            case Welcome():
                return self._on_welcome(now, message)
            case Ack():
                self._on_ack(now, message)
                return []
            case Refused():
                return self._on_refused(now, message)
            case WeightsReply() | StatusReply() | Beacon() | WeightsSource() | OperatorCommandDone() | ToLearner():
                return []
            case _:
                assert_never(message)

    def reject(self, now: float) -> None:
        """Reject a session that the learner has accepted, because the actor cannot use it. The session retries later."""
        self.state = SessionState.REFUSED
        self._next_hello = now + REFUSED_RETRY_S

    def close(self, now: float) -> list[Action]:
        """Close the session. Return the action that tells the learner so, if the learner has accepted the session."""
        joined = self.state is SessionState.JOINED
        self.state = SessionState.CLOSED
        return [self._send(now, Bye())] if joined else []

    @property
    def in_flight(self) -> int:
        """The number of segments in the window."""
        return len(self._window)

    @property
    def unreceived(self) -> int:
        """The number of segments that are sent and that the learner has not reported as received."""
        return self._next_seq - self.received

    @property
    def origin(self) -> int:
        """The incarnation that began the numbering of the segments."""
        return self._hello.origin or self._hello.incarnation

    @property
    def accepted(self) -> int:
        """The number of segments that the learner has acknowledged and not refused, over all sessions."""
        return self._earlier_accepted + max(0, self.received - self._refused_of_origin)

    @property
    def verdicts(self) -> dict[str, int]:
        """The number of this actor's segments by verdict, over all sessions, as last reported."""
        return {verdict: self._earlier[verdict] + self._verdicts[verdict] for verdict in Verdict.ALL}

    def _join(self, now: float, held: tuple[int, int]) -> list[Action]:
        if self.state is not SessionState.REFUSED:
            self.state = SessionState.JOINING
        pause_s = REFUSED_RETRY_S if self.state is SessionState.REFUSED else HELLO_RETRY_S
        self._next_hello = now + jittered(pause_s, self._rng)
        first = self._window[0].seq if self._window else self._next_seq
        hello = replace(
            self._hello,
            first_seq=first,
            held_generation=held[0],
            held_version=held[1],
            journal_id=self.journal_id,
            previously_welcomed=self._previously_welcomed,
        )
        return [self._send(now, hello)]

    def _on_welcome(self, now: float, welcome: Welcome) -> list[Action]:
        known = welcome.journal_id == self.journal_id and welcome.generation <= self.generation
        if self.state is SessionState.JOINED and known:
            return []  # a repeated reply. A Welcome of a restarted learner, to a HELLO that was still queued, is not one
        beyond = welcome.received > self._next_seq and not self._recovers
        if beyond or welcome.durable > welcome.received:
            self._counters.add("ignored.welcome")
            return []
        self.state, self._previously_welcomed = SessionState.JOINED, True
        first = self._window[0].seq if self._window else self._next_seq
        if welcome.gap:
            self._counters.add("gap_segments", welcome.gap)
        shortest_s, longest_s = HEARTBEAT_LIMITS_S
        self._heartbeat.after_s = min(max(welcome.heartbeat_s, shortest_s), longest_s)
        self.received = max(first, welcome.received)
        self.durable = welcome.durable
        self._next_seq = max(self._next_seq, self.received)
        self._recovers = False
        self._release()
        if welcome.journal_id != self.journal_id:
            self._count_as_earlier()  # another journal, whose verdicts start at 0
        self.journal_id = welcome.journal_id
        self.generation = welcome.generation
        self._gap_at = None
        self._credit_items, self._credit_bytes = self._next_seq, 0
        self.credit_steps, self.sent_steps = 0, welcome.accepted_steps + self._sent_from(self.received)[0]
        self._want_steps = self.min_version = 0
        self._resend_timer.reset()
        return [SessionJoined(welcome), *self._resend(now)]

    def _on_ack(self, now: float, ack: Ack) -> None:
        if self.state is SessionState.JOINED and ack.generation > self.generation:
            # A later generation of the learner thread has this actor in a session, and its Welcome was lost.
            self._lose_session(now)
        stale = self.state is not SessionState.JOINED or ack.generation != self.generation
        if stale or not self.durable <= ack.durable <= ack.received <= self._next_seq:
            self._counters.add("ignored.ack")
            return
        if ack.received > self.received:
            self.received = ack.received
            self._gap_at = None
            self._resend_timer.acknowledged(now, self.received, waiting=self.received < self._next_seq)
        self.durable = ack.durable
        steps, nbytes = self._sent_from(ack.received)
        if ack.received >= self.received:  # else the ack is outdated, or was sent before a GAP
            self.sent_steps = ack.accepted_steps + steps
        self.credit_steps = min(ack.credit_steps, max(self._want_steps, self.sent_steps))
        self._credit_items = ack.credit_items
        self._credit_bytes = self._taken_bytes - nbytes + ack.credit_bytes
        self.min_version = ack.min_version
        newer = ack.generation != self._verdicts_of  # after a rollback to a checkpoint, the counts can be lower
        self._verdicts_of = ack.generation
        for verdict in Verdict.ALL:
            count = ack.verdicts.get(verdict, 0)
            if type(count) is int and (newer or count > self._verdicts[verdict]):
                self._verdicts[verdict] = max(0, count)
        self._release()

    def _lose_session(self, now: float) -> None:
        self._counters.add("sessions_lost.learner")
        self._rejoin(now)

    def _rejoin(self, at: float) -> None:
        self.state, self._next_hello = SessionState.JOINING, at

    def _on_refused(self, now: float, refused: Refused) -> list[Action]:
        try:
            code = RefusalReason(refused.code)
        except ValueError:
            code = RefusalReason.MALFORMED
        self._counters.add(f"refused_by_learner.{code.value}")
        if self.state is SessionState.JOINED:
            if code is RefusalReason.GAP:
                return self._on_gap(now, refused.expected_seq)
            if code in _SESSION_LOST:
                self._lose_session(now)
                return []
            if code is not RefusalReason.FAILED and refused.field != FIELD_RIGHTS:
                self._resend_timer.refused()
                return []  # a refusal of one message: the mark did not move, and the resend timer sends it again
        if code is RefusalReason.EXPIRED:  # `_renew` sets journal_id to 0, so a repeated reply does nothing
            return self._renew(now) if self.journal_id and not self._hello.spooled else []
        if code is RefusalReason.FENCED and refused.incarnation:
            return self._raise(now, refused.incarnation)
        if code in _TEMPORARY or refused.field == FIELD_RATE:
            if code in _SESSION_LOST and self.state is SessionState.REFUSED:
                self._rejoin(now)  # the reason for the permanent refusal is gone
            return [SessionTemporarilyRefused(refused)]
        self.reject(now)
        return [SessionRefused(refused)]

    def _raise(self, now: float, known: int) -> list[Action]:
        """Take an incarnation above `known`, the one that the learner has on record. Segments keep their numbers."""
        hello = self._hello
        if known < hello.incarnation or (known == hello.incarnation and self._previously_welcomed):
            return []  # a repeated reply to a lower incarnation, or to a HELLO from before the first Welcome
        self._counters.add("raised")
        incarnation = next_incarnation(known, self._rng)
        self._hello = replace(
            hello, incarnation=incarnation, origin=self.origin if self._previously_welcomed or hello.spooled else 0
        )
        self._rejoin(now)
        return [ReplaceSockets(incarnation)]

    def _renew(self, now: float) -> list[Action]:
        """Begin a new stream with a higher incarnation, because the learner has discarded the old stream."""
        doubtful = len(self._window)
        settled = self._next_seq - doubtful  # `durable` can be lower, after a Welcome that was long under way
        self.in_doubt += doubtful
        self._counters.add("expired")
        self._window.clear()
        refused = self._refused_of_origin
        self._earlier_accepted += max(0, settled - refused)
        self._count_as_earlier()
        self._earlier[Verdict.REFUSED] -= max(0, refused - settled)  # these are counted as in doubt
        self._earlier_refused = self._earlier[Verdict.REFUSED]
        self._next_seq = self.received = self.durable = 0
        self._taken_steps = self._taken_bytes = 0
        self._resend_timer.stop()
        incarnation = self._hello.incarnation + 1
        self._hello = replace(self._hello, incarnation=incarnation, origin=incarnation, first_seq=0)
        self.journal_id, self._previously_welcomed = 0, False
        self._next_hello = now
        return [StreamRestarted(doubtful)]

    @property
    def _refused_of_origin(self) -> int:
        return self._earlier[Verdict.REFUSED] + self._verdicts[Verdict.REFUSED] - self._earlier_refused

    def _count_as_earlier(self) -> None:
        for verdict, count in self._verdicts.items():
            self._earlier[verdict] += count
            self._verdicts[verdict] = 0

    def _on_gap(self, now: float, expected: int) -> list[Action]:
        """Resend the segments from number `expected` on, once for each such number. The timer handles further losses."""
        first = self._window[0].seq if self._window else self._next_seq
        if expected > self._next_seq:
            self._counters.add("ignored.gap")
        elif expected < first:  # the segments before the window are gone; only a HELLO reports that
            self._counters.add("sessions_lost.gap")
            self._rejoin(now + jittered(HELLO_RETRY_S, self._rng))
        elif expected != self._gap_at:
            self._gap_at = self.received = expected
            return self._resend(now)
        return []

    def _submit(self, now: float, items: Iterable[_InFlight], max_items: int, max_bytes: int | None) -> list[Action]:
        """Send consecutive segments, in messages of at most `max_items` segments and `max_bytes`. A single segment can be
        larger.
        """
        batches: list[list[_InFlight]] = []
        size = 0
        for item in items:
            too_large = max_bytes is not None and size + item.packed.nbytes > max_bytes
            if not batches or too_large or len(batches[-1]) >= max_items:
                batches.append([])
                size = 0
            batches[-1].append(item)
            size += item.packed.nbytes
        return [self._send(now, self._joined(batch)) for batch in batches]

    def _joined(self, items: Sequence[_InFlight]) -> Submit:
        for item in items:
            if self._images is not None and item.fresh:
                item.packed = with_images(item.packed, self._images)
            item.fresh = False
        return join_submit(items[0].seq, self._want_steps, [item.packed for item in items], coded=self._coded)

    def _resend(self, now: float) -> list[Action]:
        """Send again, in batches, every segment that the learner has not received."""
        missing = (item for item in self._window if item.seq >= self.received)
        actions = self._submit(now, missing, MAX_BATCH_ITEMS, MAX_BATCH_BYTES)
        self._counters.add("resent_messages", len(actions))
        if actions:
            self._resend_timer.resent(now)
        else:
            self._resend_timer.stop()
        return actions

    def _hold(self, packed: PackedSegment) -> _InFlight:
        item = _InFlight(self._next_seq, packed, self._taken_steps, self._taken_bytes)
        self._window.append(item)
        self._next_seq += 1
        self._taken_steps += packed.steps
        self._taken_bytes += packed.nbytes
        return item

    def _sent_from(self, seq: int) -> tuple[int, int]:
        """Return the steps and the bytes of the segments in the window from `seq` on."""
        if not self._window or seq >= self._next_seq:
            return 0, 0
        first = self._window[max(0, seq - self._window[0].seq)]
        return self._taken_steps - first.before_steps, self._taken_bytes - first.before_bytes

    def _release(self) -> None:
        while self._window and self._window[0].seq < self.durable:
            self._window.popleft()

    def _send(self, now: float, message: Message) -> SendMessage:
        self._heartbeat.restart(now)
        return SendMessage(message)
