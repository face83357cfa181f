"""A learner for the simulator: what the gateway does, on a virtual clock, without a socket or a thread.

The client's accounts (`Client`) are those in earnest; only its thread and its queues are the simulator's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl4sys_zmq.delivery import CreditPool, Entry, Key, Ledger, Page, Stream, StreamRow, StreamTable, take_submit
from rl4sys_zmq.delivery.credit import IDLE_S
from rl4sys_zmq.delivery.journal_rows import DropStream, Gap, Write
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.learner.admission import ClientSettings
from rl4sys_zmq.learner.client import Client
from rl4sys_zmq.testing.history import JUDGED, Books, History, Violation
from rl4sys_zmq.testing.schedule import Schedule
from rl4sys_zmq.testing.sim_disk import SimDisk, SimJournal, SlowLedger
from rl4sys_zmq.testing.sim_thread import MAX_STEPS, SCHEMA, SimThread
from rl4sys_zmq.wire import decode
from rl4sys_zmq.wire.messages import (
    Bye,
    Demand,
    Fetch,
    Frame,
    Heartbeat,
    Hello,
    Message,
    Refused,
    Submit,
    Verdict,
    Welcome,
)

__all__ = ["LearnerParts", "SimClient", "SimLearner"]

SILENCE_S = 3.0
QUEUE_ITEMS = 64
SETTINGS = ClientSettings(
    "sim", "SIM", "onpolicy", {}, SCHEMA.observation_space, SCHEMA.action_space, 0, None, "drop", 0.0, None
)

Answers = list[tuple[bytes, Message]]


class SimClient(Client):
    """A client without sockets.

    Attributes:
        thread: its learner thread.
        slack_steps: steps that may come beyond the demand: what came without credit, was taken back, or was fed again.
    """

    thread: SimThread
    slack_steps = 0

    def begin(self, thread: SimThread, pool: CreditPool, *, durable: bool) -> None:
        """Gives it a (new) learner thread; in the place of `start`."""
        self.thread, self.pool, self.schema = thread, pool, SCHEMA
        self.life += 1
        self.replaying, self.page_after = self.life if durable else 0, None
        self.delivered_items = self.taken_items = 0
        self.delivered_bytes = self.taken_bytes = 0

    def shares(self, ledger_bytes: int) -> tuple[int, int]:
        """A small queue."""
        items = max(0, QUEUE_ITEMS - self.queued) // max(1, len(self.table.live()))
        return (items, 1 << 20) if items and ledger_bytes else (0, 0)

    def replay(self, entry: Entry) -> None:
        """What is fed again was never demanded of this thread."""
        before = self.pool.delivered_steps
        super().replay(entry)
        self.slack_steps += self.pool.delivered_steps - before

    def deliver(self, entry: Entry, skip: int) -> None:
        """Straight into the inbox."""
        self.thread.inbox.append((entry, skip))


@dataclass(frozen=True)
class LearnerParts:
    """What a learner is built from; a test plants a bug by giving another part."""

    table: type[StreamTable] = StreamTable
    pool: type[CreditPool] = CreditPool
    ledger: Callable[[], Ledger] = SlowLedger
    journal: type[SimJournal] = SimJournal
    thread: type[SimThread] = SimThread
    client: type[SimClient] = SimClient


class SimLearner:
    """One life of a learner with one client.

    `on_frames` and `turn` return what is to be sent, as (peer, message).

    Attributes:
        reach: called with the name of each of `schedule.CRASH_POINTS` that is passed; it may raise.
        client: the client.
        full: whether the disk takes nothing at the moment.
    """

    def __init__(
        self,
        now: float,
        disk: SimDisk | None,
        generation: Callable[[], int],
        schedule: Schedule,
        parts: LearnerParts,
        history: History,
        rng: random.Random,
    ) -> None:
        """Args:
        now: the time.
        disk: what it finds, or None for a ledger in memory.
        generation: a new one.
        schedule: of the simulation.
        parts: what it is built from.
        history: the onlooker.
        rng: of everything random here.
        """
        self.reach: Callable[[str], None] = lambda point: None
        self.full = False
        self._now = now
        self._disk, self._schedule, self._parts, self._history, self._rng = disk, schedule, parts, history, rng
        self._new_generation = generation
        self._journal = parts.journal(disk, random.Random(rng.random()), self._written) if disk is not None else None
        self._ledger: Ledger = self._journal or parts.ledger()
        table = parts.table(
            "sim", silence_s=SILENCE_S, lease_s=schedule.lease_s, max_actors=16, ledger_id=self._ledger.ledger_id
        )
        self.client = parts.client(SETTINGS, b"sim     ", generation(), table, "disk" if disk is not None else "")
        self._table = table
        self._sessions: dict[bytes, Stream] = {}
        self._heard: dict[str, float] = {}
        self._save_at = now + rng.expovariate(1 / schedule.checkpoint_s)
        row = disk.clients.get("sim") if disk is not None else None
        if disk is not None and row is not None:
            self.client.accepted, self.client.gap = row.accepted, row.gap
            table.restore(disk.streams.values(), now)
        self._begin_thread([])
        self._ledger.put_client(self.client.row())

    def _begin_thread(self, judged: list[tuple[int, str]]) -> None:
        """What the gateway does with `Assign` and `Ready`."""
        rng = random.Random(self._rng.random())
        thread = self._parts.thread(self._history, rng, self._schedule, judged)
        self.client.begin(thread, self._parts.pool(), durable=self._disk is not None)
        if self._disk is not None:
            self.client.rewind(thread.load(self._disk))
        else:
            self._history.begin_thread((segment for segment, _ in judged), rolls_back=self.client.life > 1)
        self._demand()

    def restart_thread(self) -> Answers:
        """The learner thread dies, perhaps with a last checkpoint, and another one takes its place."""
        client = self.client
        self._history.counts["thread_restarts"] += 1
        if self._disk is not None:
            if self._rng.random() < 0.5:
                client.thread.work(flush=self._rng.random() < 0.5)
                client.thread.save(self._disk, self.reach)  # nobody hears of it
            judged = []
        else:
            for _ in range(2):  # in earnest the ledger in memory writes at once
                self._dispatch()
            judged = client.thread.judged_now
            client.roll_back()
        client.publications = type(client.publications)(self._new_generation())
        self._begin_thread(judged)
        out: Answers = []
        for stream in self._table.live():
            peer = self._table.peer_of(stream)
            if peer is not None:
                self._hang_up(peer, stream)
                out.append((peer, Refused(Refusal.NO_SESSION, "", "the client was restarted")))
        return out

    # ---- actors

    def on_frames(self, now: float, peer: bytes, frames: Sequence[Frame]) -> Answers:
        """Takes a message as it came from the network."""
        self._now = now
        try:
            return self._on_message(peer, decode(frames), frames)
        except ProtocolError as exc:
            self._history.counts[f"refused.{exc.code}"] += 1
            session = self._sessions.get(peer)
            expected = session.received if session is not None and exc.code is Refusal.GAP else 0
            return [(peer, Refused(exc.code, "", exc.detail, expected))]

    def _on_message(self, peer: bytes, message: Message, frames: Sequence[Frame]) -> Answers:
        if isinstance(message, Hello):
            return self._on_hello(peer, message)
        stream = self._sessions.get(peer)
        if stream is None:
            raise ProtocolError(Refusal.NO_SESSION, "say HELLO first")
        stream.last_seen = self._heard[stream.actor_id] = self._now
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
                self._hang_up(peer, stream)
            case _:
                raise ProtocolError(Refusal.DIRECTION, f"{type(message).__name__} is not for a learner")
        return []

    def _on_hello(self, peer: bytes, hello: Hello) -> Answers:
        client, history = self.client, self._history
        try:
            opened = self._table.open(hello, peer, self._now)
        except ProtocolError as exc:
            if exc.code is Refusal.EXPIRED:
                history.expire((hello.actor_id, hello.origin or hello.incarnation))
            raise
        stream = opened.stream
        if opened.old_peer is not None:
            self._sessions.pop(opened.old_peer, None)
        self._sessions[peer] = stream
        self._heard[stream.actor_id] = self._now
        history.begin_stream(stream.key, hello.first_seq, opened.gap)
        if opened.gap:
            client.accepted += opened.gap
            client.gap += opened.gap
            client.rolled_back += opened.gap
            self._ledger.add_gap("sim", opened.gap)
        self._ledger.put_stream(client.stream_row(stream))
        if self._disk is None:
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
        if self._now - stream.progress_at >= IDLE_S:  # its credit may have been granted once more, to another
            client.slack_steps += max(0, stream.credit_steps - stream.accepted_steps)
        before, credit = stream.accepted_steps, max(stream.credit_steps, stream.accepted_steps)
        intake = take_submit(stream, SCHEMA, message, frames)
        self._wish(stream, message.want_steps)
        client.verdicts[Verdict.DUPLICATE] += intake.duplicates
        client.verdicts[Verdict.REFUSED] += len(intake.refused)
        client.accepted += intake.accepted
        client.delivered_items += intake.accepted
        over = max(0, stream.accepted_steps - credit) if stream.accepted_steps > before else 0
        if self._schedule.clean and over > MAX_STEPS:
            raise Violation("credit", f"{over} steps came beyond the credit")
        client.slack_steps += over
        stream.progress_at = self._now
        if intake.entry is None:
            return
        for index, header in enumerate(message.segments[intake.entry.skip :]):
            seq = message.first_seq + intake.entry.skip + index
            self._history.take(stream.key, seq, header[1], refused=header[6] > MAX_STEPS)
        client.pool.delivered(intake.entry.steps)
        client.delivered_bytes += intake.entry.nbytes
        self._ledger.append([intake.entry])

    def _hang_up(self, peer: bytes, stream: Stream) -> None:
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

    # ---- turns

    def turn(self, now: float, *, flush: bool = False) -> Answers:
        """Dispatches what is written, lets the learner thread work, writes checkpoints, grants credit and acknowledges."""
        self._now = now
        self.reach("before_commit")
        self._dispatch()
        self.reach("after_commit")
        self._hear_thread(flush=flush)
        if self._disk is not None and (flush or now >= self._save_at) and not self.full:
            self._save_at = now + self._rng.expovariate(1 / self._schedule.checkpoint_s)
            self._save(self._disk)
        return self._acknowledge()

    def _dispatch(self) -> None:
        client = self.client
        if self._journal is not None:
            self._journal.full = self.full
        for safe in self._ledger.committed():
            if isinstance(safe, Entry):
                if self._disk is None:
                    self._history.write((safe.actor_id, safe.origin), safe.first_seq, safe.end_seq)
                stream = self._table.get(safe.actor_id, safe.origin)
                if stream is not None:
                    stream.commit(safe.end_seq)
                    client.dirty.add(stream.actor_id)
                if not client.replaying:
                    if stream is not None and not stream.counted(safe.end_seq):
                        client.replay(safe)  # a read overtook it, when the disk was full: it is of the thread before
                    else:
                        client.deliver(safe, safe.skip)
            elif safe.token == client.replaying:
                self._on_page(safe)
        if client.page_after is not None and not client.thread.inbox:
            after, client.page_after = client.page_after, None
            self._ledger.read("sim", client.replaying, after, self._rng.choice([1, 2000, 1 << 20]))

    def _on_page(self, page: Page) -> None:
        for entry in page.entries:
            self.client.replay(entry)
        if page.more:
            self.client.page_after = page.last_row
            return
        self.client.caught_up()
        self.client.dirty.update(s.actor_id for s in self._table.live())
        self.check_books()

    def _written(self, operation: Write) -> None:
        match operation:
            case Entry():
                self._history.write((operation.actor_id, operation.origin), operation.first_seq, operation.end_seq)
            case Gap():
                self._history.write_gap()
            case DropStream():
                self._history.drop_stream((operation.actor_id, operation.origin))
            case StreamRow():
                self._history.write_stream((operation.actor_id, operation.origin), operation.received)

    def _hear_thread(self, *, flush: bool) -> None:
        for (actor_id, origin), seq, verdict in self.client.thread.work(flush=flush):
            stream = self._table.get(actor_id, origin)
            count = 1 if stream is None else stream.dispose([[seq, seq + 1]], verdict)
            self.client.verdicts[verdict] += count
            self.client.dirty.add(actor_id)
        self._demand()

    def _demand(self) -> None:
        thread, pool = self.client.thread, self.client.pool
        demand = Demand(
            max(pool.limit_steps, thread.taken_steps + thread.wants_steps), thread.taken_items, thread.taken_bytes, 0
        )
        if demand.steps > pool.limit_steps or demand.items > self.client.taken_items:
            self.client.demanded(demand)

    def _save(self, disk: SimDisk) -> None:
        if not self.client.thread.progress.moved:
            return
        self._history.counts["checkpoints"] += 1
        message = self.client.thread.save(disk, self.reach)
        self.reach("after_checkpoint")
        trim = self.client.checkpointed(message)
        if trim:
            self._ledger.trim("sim", trim)

    def _acknowledge(self) -> Answers:
        client = self.client
        if not client.dirty:
            return []
        live = self._table.live()
        client.dirty.update(s.actor_id for s in client.pool.grant(live, self._now))
        self._check_credit(live)
        shares = client.shares(0 if self._ledger.state().error else 1)
        out: Answers = []
        for stream in live:
            peer = self._table.peer_of(stream)
            if stream.actor_id in client.dirty and peer is not None:
                ack = client.ack(stream, shares)
                self._history.say(stream.key, ack.received, ack.durable)
                out.append((peer, ack))
        client.dirty.clear()
        return out

    def each_second(self, now: float) -> None:
        """Hangs up on the silent and ends leases."""
        for stream in self._table.silent(now):
            peer = self._table.peer_of(stream)
            if peer is not None:
                self._hang_up(peer, stream)
        current = {s.key for s in self._table.current()}
        for stream in self._table.expire(now, self.client.trimmed):
            silent_s = now - self._heard.get(stream.actor_id, 0.0)
            lease_s = self._schedule.lease_s
            self._history.forget_stream(stream.key, silent_s, lease_s, current=stream.key in current)
            self._ledger.drop_stream("sim", stream.actor_id, stream.origin)
            if self._disk is None:
                self._history.drop_stream(stream.key)
            self.client.thread.progress.forget(stream.key)
        if not self.client.replaying:
            self.check_books()

    # ---- checks

    @property
    def busy(self) -> bool:
        """There is something that a turn would do."""
        client = self.client
        return bool(client.replaying or client.thread.inbox or client.table.pending or self._ledger.state().queued_items)

    def check_books(self) -> None:
        """The client's accounts are right."""
        client = self.client
        judged = sum(client.verdicts[verdict] for verdict in JUDGED)
        refused = client.verdicts[Verdict.REFUSED]
        self._history.check_books(
            Books(client.accepted, refused, judged, client.table.pending, client.rolled_back, client.gap)
        )

    def stream(self, key: Key) -> Stream | None:
        """One of its streams."""
        return self._table.get(*key)

    def _check_credit(self, live: Sequence[Stream]) -> None:
        pool = self.client.pool
        promised = sum(max(0, s.credit_steps - s.accepted_steps) for s in live if self._now - s.progress_at < IDLE_S)
        limit = pool.limit_steps + self.client.slack_steps
        if pool.delivered_steps + promised > limit:
            raise Violation("credit", f"{pool.delivered_steps} came, {promised} are promised; the limit is {limit}")
