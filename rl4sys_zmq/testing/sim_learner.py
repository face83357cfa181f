"""A learner for the simulator: the gateway's rules and a learner thread's, on a virtual clock, without a socket or a thread."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl4sys_zmq.delivery import CreditPool, Entry, Ledger, MemoryLedger, Stream, StreamTable, take_submit
from rl4sys_zmq.delivery.credit import IDLE_S
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.testing.history import History, Violation
from rl4sys_zmq.values import BoxSpace, DiscreteSpace
from rl4sys_zmq.wire import SegmentSchema, decode, read_submit
from rl4sys_zmq.wire.messages import Bye, Fetch, Frame, Heartbeat, Hello, Message, Refused, Submit, Verdict, Welcome

__all__ = ["MAX_STEPS", "LearnerParts", "SimLearner", "SlowLedger"]

MAX_STEPS = 6
"""Longer segments are refused as items."""

SILENCE_S = 3.0
QUEUE_ITEMS = 64
BATCH_STEPS = 24
SCHEMA = SegmentSchema(BoxSpace((1,)), DiscreteSpace(2), MAX_STEPS)


class SlowLedger(MemoryLedger):
    """Commits what it was given one call later, as a disk would."""

    def __init__(self) -> None:
        super().__init__()
        self._writing: list[Entry] = []

    def committed(self) -> list[Entry]:
        """What the call before this one found."""
        done, self._writing = self._writing, super().committed()
        return done


@dataclass(frozen=True)
class LearnerParts:
    """What a learner is built from; a test plants a bug by giving another part."""

    table: type[StreamTable] = StreamTable
    pool: type[CreditPool] = CreditPool
    ledger: Callable[[], Ledger] = SlowLedger


class SimLearner:
    """One life of a learner with one client.

    `on_frames` and `turn` return what is to be sent, as (peer, message).

    Attributes:
        slack_steps: steps that may come beyond the demand: what came without credit, and credit that was taken back.
        strict: nothing comes without credit but the end of a segment, since nothing goes wrong.
    """

    def __init__(self, generation: int, lease_s: float, parts: LearnerParts, history: History, rng: random.Random) -> None:
        self.slack_steps = 0
        self.strict = False
        self._generation = generation
        self._parts, self._history, self._rng = parts, history, rng
        self._table = parts.table("sim", silence_s=SILENCE_S, lease_s=lease_s, max_actors=16)
        self._ledger = parts.ledger()
        self._sessions: dict[bytes, Stream] = {}
        self._dirty: set[str] = set()
        self._accepted = 0
        self._begin_thread()

    def _begin_thread(self) -> None:
        self._pool = self._parts.pool()
        self._inbox: deque[Entry] = deque()
        self._batch: list[tuple[Entry, int, int]] = []
        self._observed_steps = self._batch_steps = 0
        self._pool.demand(BATCH_STEPS, 0)

    def restart_thread(self) -> list[tuple[bytes, Message]]:
        """The learner thread dies and another one takes its place; what it had not trained on is rolled back."""
        self._history.begin_life(thread_only=True)
        self._accepted -= sum(s.roll_back() for s in self._table.all())
        self._begin_thread()
        out: list[tuple[bytes, Message]] = []
        for stream in self._table.live():
            peer = self._table.peer_of(stream)
            if peer is not None:
                self._hang_up(peer, stream)
                out.append((peer, Refused(Refusal.NO_SESSION, "", "the client was restarted")))
        return out

    # ---- actors

    def on_frames(self, now: float, peer: bytes, frames: Sequence[Frame]) -> list[tuple[bytes, Message]]:
        """Takes a message as it came from the network."""
        try:
            return self._on_message(now, peer, decode(frames), frames)
        except ProtocolError as exc:
            self._history.counts[f"refused.{exc.code}"] += 1
            session = self._sessions.get(peer)
            expected = session.received if session is not None and exc.code is Refusal.GAP else 0
            return [(peer, Refused(exc.code, "", exc.detail, expected))]

    def _on_message(self, now: float, peer: bytes, message: Message, frames: Sequence[Frame]) -> list[tuple[bytes, Message]]:
        if isinstance(message, Hello):
            return self._on_hello(now, peer, message)
        stream = self._sessions.get(peer)
        if stream is None:
            raise ProtocolError(Refusal.NO_SESSION, "say HELLO first")
        stream.last_seen = now
        match message:
            case Submit():
                self._dirty.add(stream.actor_id)
                self._on_submit(now, stream, message, frames)
            case Heartbeat():
                self._wish(stream, message.want_steps)
                self._dirty.add(stream.actor_id)
            case Fetch():
                pass
            case Bye():
                self._hang_up(peer, stream)
            case _:
                raise ProtocolError(Refusal.DIRECTION, f"{type(message).__name__} is not for a learner")
        return []

    def _on_hello(self, now: float, peer: bytes, hello: Hello) -> list[tuple[bytes, Message]]:
        stream, old_peer = self._table.open(hello, peer, now)
        if old_peer is not None:
            self._sessions.pop(old_peer, None)
        self._sessions[peer] = stream
        self._reclaim(stream)
        self._dirty.add(stream.actor_id)
        self._history.begin_stream((stream.actor_id, stream.incarnation), hello.first_seq)
        marks = stream.received, stream.durable, stream.accepted_steps
        welcome = Welcome(
            b"sim     ", self._generation, 0, 0, {}, "", *marks, "SIM", "onpolicy", 0, -1, "drop", 1 << 26, MAX_STEPS, 1.0
        )
        return [(peer, welcome)]

    def _on_submit(self, now: float, stream: Stream, message: Submit, frames: Sequence[Frame]) -> None:
        if now - stream.progress_at >= IDLE_S:  # its credit may have been granted once more, to another
            self.slack_steps += max(0, stream.credit_steps - stream.accepted_steps)
        before, credit = stream.accepted_steps, max(stream.credit_steps, stream.accepted_steps)
        intake = take_submit(stream, SCHEMA, message, frames)
        self._wish(stream, message.want_steps)
        self._accepted += intake.accepted
        over = max(0, stream.accepted_steps - credit) if stream.accepted_steps > before else 0
        if self.strict and over > MAX_STEPS:
            raise Violation("credit", f"{over} steps came beyond the credit")
        self.slack_steps += over
        if intake.entry is None:
            return
        stream.progress_at = now
        key = (stream.actor_id, stream.incarnation)
        for index, header in enumerate(message.segments[intake.entry.skip :]):
            seq = message.first_seq + intake.entry.skip + index
            self._history.take(key, seq, header[1], refused=header[6] > MAX_STEPS)
        self._pool.delivered(intake.entry.steps)
        self._ledger.append([intake.entry])

    def _hang_up(self, peer: bytes, stream: Stream) -> None:
        self._sessions.pop(peer, None)
        self._table.hang_up(stream)
        self._reclaim(stream)

    def _wish(self, stream: Stream, want_steps: int) -> None:
        before = stream.credit_steps
        stream.wish(want_steps)
        self.slack_steps += before - stream.credit_steps

    def _reclaim(self, stream: Stream) -> None:
        """What is taken back may be on its way all the same."""
        self.slack_steps += max(0, stream.credit_steps - stream.accepted_steps)
        self._pool.reclaim(stream)

    # ---- turns

    def turn(self, now: float, *, flush: bool = False) -> list[tuple[bytes, Message]]:
        """Dispatches what is committed, lets the learner thread work, grants credit and acknowledges."""
        for entry in self._ledger.committed():
            stream = self._table.get(entry.actor_id, entry.incarnation)
            if stream is not None:
                stream.commit(entry.end_seq)
            for segment, steps in self._segments(entry):
                if steps <= MAX_STEPS:
                    self._history.commit(segment)
            self._inbox.append(entry)
        self._work(flush=flush)
        if not self._dirty:
            return []
        live = self._table.live()
        self._dirty.update(s.actor_id for s in self._pool.grant(live, now))
        self._check_credit(live, now)
        share = max(0, QUEUE_ITEMS - sum(s.pending for s in self._table.all())) // max(1, len(live))
        out: list[tuple[bytes, Message]] = []
        for stream in live:
            peer = self._table.peer_of(stream)
            if stream.actor_id in self._dirty and peer is not None:
                out.append((peer, stream.ack(generation=self._generation, free_items=share, min_version=0)))
        self._dirty.clear()
        return out

    def each_second(self, now: float) -> None:
        """Hangs up on the silent and ends leases."""
        for stream in self._table.silent(now):
            peer = self._table.peer_of(stream)
            if peer is not None:
                self._hang_up(peer, stream)
        self._table.expire(now)

    def check(self) -> None:
        """At quiescence: the learner's own books balance."""
        pending = sum(s.pending for s in self._table.all())
        if pending:
            raise Violation("disposed", f"the streams say that {pending} segments are pending")

    def _check_credit(self, live: Sequence[Stream], now: float) -> None:
        promised = sum(max(0, s.credit_steps - s.accepted_steps) for s in live if now - s.progress_at < IDLE_S)
        limit = self._pool.limit_steps + self.slack_steps
        if self._pool.delivered_steps + promised > limit:
            raise Violation("credit", f"{self._pool.delivered_steps} came, {promised} are promised; the limit is {limit}")

    # ---- the learner thread

    @staticmethod
    def _segments(entry: Entry) -> list[tuple[int, int]]:
        """The episode ids and steps of an entry's segments, read again from its frames as a learner thread does."""
        submit = decode(entry.frames)
        assert isinstance(submit, Submit)
        read = read_submit(submit)[entry.skip :]
        return [(s.episode_id, s.steps) for s in read if not isinstance(s, ProtocolError)]

    def _work(self, *, flush: bool) -> None:
        while self._inbox and (flush or self._rng.random() < 0.8):
            entry = self._inbox.popleft()
            for offset, (segment, steps) in enumerate(self._segments(entry)):
                if steps > MAX_STEPS:
                    continue
                self._history.observe(segment)
                self._observed_steps += steps
                seq = entry.first_seq + offset
                fate = self._rng.random()
                if fate < 0.1:
                    self._dispose(entry, seq, segment, Verdict.STALE if fate < 0.05 else Verdict.QUARANTINED)
                else:
                    self._batch.append((entry, seq, segment))
                    self._batch_steps += steps
            if self._batch_steps >= BATCH_STEPS:
                self._train()
        if flush:
            self._train()
        if self._observed_steps - self._batch_steps + BATCH_STEPS > self._pool.limit_steps:
            self._pool.demand(self._observed_steps - self._batch_steps + BATCH_STEPS, 0)
            self._dirty.update(s.actor_id for s in self._table.live())

    def _train(self) -> None:
        for entry, seq, segment in self._batch:
            self._dispose(entry, seq, segment, Verdict.TRAINED)
        self._batch.clear()
        self._batch_steps = 0

    def _dispose(self, entry: Entry, seq: int, segment: int, verdict: str) -> None:
        stream = self._table.get(entry.actor_id, entry.incarnation)
        self._history.dispose((entry.actor_id, entry.incarnation), segment, verdict)
        if stream is not None:
            stream.dispose([[seq, seq + 1]], verdict)
            self._dirty.add(stream.actor_id)
