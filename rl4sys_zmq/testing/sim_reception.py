"""A simulated learner's side towards its actors: who joins, what is taken, what is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from rl4sys_zmq.delivery import Ledger, Load, Stream, StreamTable, take_submit
from rl4sys_zmq.delivery.credit import IDLE_S
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.testing.history import History, Violation
from rl4sys_zmq.testing.schedule import Schedule
from rl4sys_zmq.testing.sim_client import SimClient
from rl4sys_zmq.testing.sim_thread import MAX_STEPS, SCHEMA
from rl4sys_zmq.wire import decode, read_heads
from rl4sys_zmq.wire.messages import (
    Bye,
    Command,
    Fetch,
    Frame,
    FromThread,
    Heartbeat,
    Hello,
    Message,
    Refused,
    StatusRequest,
    Submit,
    ToActor,
    ToThread,
    Verdict,
    Welcome,
)

__all__ = ["Answers", "SimReception"]

Answers = list[tuple[bytes, Message]]
"""What is to be sent, as (peer, message)."""


class SimReception:
    """What `learner.reception` does, on a virtual clock.

    Attributes:
        client: whose actors they are.
        now: the time.
        ready: the learner thread has said what it goes on from; who says HELLO before that, waits.
    """

    def __init__(
        self, now: float, client: SimClient, table: StreamTable, ledger: Ledger, schedule: Schedule, history: History
    ) -> None:
        self.client, self.now, self.ready = client, now, True
        self._table, self._ledger, self._schedule, self._history = table, ledger, schedule, history
        self._sessions: dict[bytes, Stream] = {}
        self._heard: dict[str, float] = {}
        self._waiting: dict[bytes, Hello] = {}

    def silent_s(self, stream: Stream) -> float:
        """How long ago its actor was heard."""
        return self.now - self._heard.get(stream.actor_id, 0.0)

    def admit_waiting(self) -> Answers:
        """Lets those in who came while the learner thread was starting."""
        waiting, self._waiting = self._waiting, {}
        return [answer for peer, hello in waiting.items() for answer in self._guarded(peer, hello, ())]

    def on_frames(self, now: float, peer: bytes, frames: Sequence[Frame]) -> Answers:
        """Takes a message as it came from the network."""
        self.now = now
        try:
            message = decode(frames)
        except ProtocolError as exc:
            return self._refuse(peer, exc)
        return self._guarded(peer, message, frames)

    def _guarded(self, peer: bytes, message: Message, frames: Sequence[Frame]) -> Answers:
        try:
            return self._on_message(peer, message, frames)
        except ProtocolError as exc:
            return self._refuse(peer, exc)

    def _refuse(self, peer: bytes, exc: ProtocolError) -> Answers:
        self._history.counts[f"refused.{exc.code}"] += 1
        session = self._sessions.get(peer)
        expected = session.received if session is not None and exc.code is Refusal.GAP else 0
        return [(peer, Refused(exc.code, "", exc.detail, expected, exc.incarnation))]

    def _on_message(self, peer: bytes, message: Message, frames: Sequence[Frame]) -> Answers:
        if isinstance(message, Hello):
            return self._on_hello(peer, message)
        stream = self._sessions.get(peer)
        if stream is None:
            raise ProtocolError(Refusal.NO_SESSION, "say HELLO first")
        stream.last_seen = self._heard[stream.actor_id] = self.now
        match message:
            case Submit():
                self.client.dirty.add(stream.actor_id)
                self._on_submit(stream, message, frames)
            case Heartbeat():
                self._wish(stream, message.want_steps)
                self.client.dirty.add(stream.actor_id)
            case Fetch():
                pass
            case Bye():
                self.hang_up(peer, stream)
            case StatusRequest() | Command() | ToActor() | ToThread() | FromThread():
                raise ProtocolError(Refusal.DIRECTION, f"{type(message).__name__} is not for a learner")
            case _:
                assert_never(message)
        return []

    def _on_hello(self, peer: bytes, hello: Hello) -> Answers:
        client, history = self.client, self._history
        if not self.ready:
            self._waiting[peer] = hello
            return []
        try:
            opened = self._table.open(hello, peer, self.now)
        except ProtocolError as exc:
            if exc.code is Refusal.EXPIRED:
                history.expire((hello.actor_id, hello.origin or hello.incarnation))
            raise
        stream = opened.stream
        if opened.old_peer is not None:
            self._sessions.pop(opened.old_peer, None)
        self._sessions[peer] = stream
        self._heard[stream.actor_id] = self.now
        history.begin_stream(stream.key, hello.first_seq, opened.gap)
        if opened.gap:
            client.accepted += opened.gap
            client.gap += opened.gap
            client.rolled_back += opened.gap
            self._ledger.add_gap("sim", opened.gap)
        self._ledger.put_stream(client.stream_row(stream))
        if not self._ledger.durable:
            history.write_stream(stream.key, stream.durable)
            if opened.gap:
                history.write_gap()
        self._reclaim(stream)
        client.dirty.add(stream.actor_id)
        history.say(stream.key, stream.received, stream.durable)
        welcome = Welcome(
            policy_id=b"sim     ",
            topic=b"        ",
            ledger_id=self._ledger.ledger_id,
            gap=opened.gap,
            generation=client.publications.generation,
            version=0,
            digest=0,
            spec={},
            pub="",
            received=stream.received,
            durable=stream.durable,
            accepted_steps=stream.accepted_steps,
            algorithm_name="SIM",
            algorithm_type="onpolicy",
            rollout_length=0,
            max_policy_lag=-1,
            on_lag="drop",
            max_message_bytes=1 << 26,
            max_segment_steps=MAX_STEPS,
            heartbeat_s=1.0,
        )
        return [(peer, welcome)]

    def _on_submit(self, stream: Stream, message: Submit, frames: Sequence[Frame]) -> None:
        client = self.client
        if self.now - stream.progress_at >= IDLE_S:  # its credit may have been granted once more, to another
            client.slack_steps += max(0, stream.credit_steps - stream.accepted_steps)
        before, credit = stream.accepted_steps, max(stream.credit_steps, stream.accepted_steps)
        intake = take_submit(stream, SCHEMA, message, frames)
        self._wish(stream, message.want_steps)
        client.verdicts[Verdict.DUPLICATE] += intake.duplicates
        client.verdicts[Verdict.REFUSED] += len(intake.refused)
        client.accepted += intake.accepted
        over = max(0, stream.accepted_steps - credit) if stream.accepted_steps > before else 0
        if self._schedule.clean and over > MAX_STEPS:
            raise Violation("credit", f"{over} steps came beyond the credit")
        client.slack_steps += over
        stream.progress_at = self.now
        if intake.entry is None:
            return
        for index, head in enumerate(read_heads(message)[intake.entry.skip :]):
            seq = message.first_seq + intake.entry.skip + index
            self._history.take(stream.key, seq, int(head["episode_id"]), refused=bool(head["steps"] > MAX_STEPS))
        client.pool.transit.accept(Load(intake.entry.steps, intake.accepted, intake.entry.nbytes))
        self._ledger.append([intake.entry])

    def hang_up(self, peer: bytes, stream: Stream) -> None:
        """Ends a session; its credit goes to others."""
        self._sessions.pop(peer, None)
        self._table.hang_up(stream)
        self._reclaim(stream)

    def _wish(self, stream: Stream, want_steps: int) -> None:
        before = stream.credit_steps
        stream.wish(want_steps)
        self.client.slack_steps += before - stream.credit_steps

    def _reclaim(self, stream: Stream) -> None:
        """What is taken back may be on its way all the same."""
        self.client.slack_steps += max(0, stream.credit_steps - stream.accepted_steps)
        self.client.pool.reclaim(stream)
