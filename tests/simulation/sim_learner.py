"""The learner's core in a simulation, on a virtual clock.

`SimLearner` gives a `LearnerCore` its inputs, and records the messages in both directions, the calls of the journal, and the
counters of the production objects before and after. All decisions are those of the core.
"""

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import rl4sys_zmq.delivery.credit as credit_module
import rl4sys_zmq.learner.gateway.actor_sessions as sessions_module
import rl4sys_zmq.learner.gateway.client as client_module
import rl4sys_zmq.learner.gateway.client_registry as registry_module
import rl4sys_zmq.learner.gateway.core as core_module
import rl4sys_zmq.learner.gateway.dispatcher as dispatcher_module
from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.delivery.credit import CreditAllocator, DataAmount, StallTimer, stall_reason
from rl4sys_zmq.delivery.journal import (
    CountSegmentsLostByJournal,
    DropStream,
    JournalContent,
    JournalEntry,
    JournalPage,
    StreamRow,
    Write,
)
from rl4sys_zmq.delivery.stream import Key, SegmentStream
from rl4sys_zmq.delivery.table import StreamTable
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.interfaces import Journal, WorkerHandle
from rl4sys_zmq.learner.alarms import CREDIT_CORRECTED, STALLED
from rl4sys_zmq.learner.gateway.actor_sessions import ActorSessionHandler
from rl4sys_zmq.learner.gateway.client import ClientState, LearnerThreadState
from rl4sys_zmq.learner.gateway.client_registry import ClientRegistry
from rl4sys_zmq.learner.gateway.core import LearnerCore
from rl4sys_zmq.learner.gateway.core_callbacks import CoreCallbacks
from rl4sys_zmq.learner.gateway.dispatcher import SegmentDispatcher
from rl4sys_zmq.learner.gateway.operator import RESTART, OperatorCommandExecutor
from rl4sys_zmq.learner.run.recorder import NullEventSink
from rl4sys_zmq.security.authorizer import Authorizer
from rl4sys_zmq.transports import SendResult
from rl4sys_zmq.values import space_to_json
from rl4sys_zmq.wire import decode, read_heads
from rl4sys_zmq.wire.messages import Ack, Frame, Hello, Message, OperatorCommand, Refused, Submit, Verdict, Welcome
from rl4sys_zmq.wire.thread_messages import AssignClient, DeliverSegments
from simulation.history import History
from simulation.schedule import Schedule
from simulation.sim_disk import SimDisk, SimJournal, SlowJournal
from simulation.sim_rules import JUDGED, Books, Violation
from simulation.sim_thread import MAX_STEPS, SPEC, Given, SimThread, ThreadSite

CLIENT_ID = "sim"
CREDIT_ITEMS = 64
BEGAN_S = 1.8e9
FAILS = 0.3
"""The chance that a learner thread fails before its restart."""

GONE = 0.5
"""The chance that the learner detects a closed connection when it sends."""

MAX_STALL_S = 2.0
"""The longest time for which a client may be stalled. It allows for a turn of the learner and the delays of the network."""

Answers = list[tuple[bytes, list[Frame]]]
"""The messages to send, as (peer, frames)."""


@dataclass(frozen=True, kw_only=True)
class LearnerParts:
    """The classes that a learner is built from. A test plants a bug by replacing one of them."""

    core: type[LearnerCore] = LearnerCore
    actor_sessions: type[ActorSessionHandler] = ActorSessionHandler
    dispatcher: type[SegmentDispatcher] = SegmentDispatcher
    operator: type[OperatorCommandExecutor] = OperatorCommandExecutor
    registry: type[ClientRegistry] = ClientRegistry
    client: type[ClientState] = ClientState
    table: type[StreamTable] = StreamTable
    pool: type[CreditAllocator] = CreditAllocator
    journal: Callable[[], Journal] = SlowJournal
    disk_journal: type[SimJournal] = SimJournal
    thread: type[SimThread] = SimThread


@contextlib.contextmanager
def planted(parts: LearnerParts) -> Iterator[None]:
    """Replace the parts of the learner inside the `with` block, and use small queues and short segments there."""
    places: list[tuple[Any, str, Any]] = [
        (core_module, "ActorSessionHandler", parts.actor_sessions),
        (core_module, "SegmentDispatcher", parts.dispatcher),
        (core_module, "OperatorCommandExecutor", parts.operator),
        (core_module, "ClientRegistry", parts.registry),
        (registry_module, "ClientState", parts.client),
        (registry_module, "StreamTable", parts.table),
        (client_module, "CreditAllocator", parts.pool),
        (registry_module, "CreditAllocator", parts.pool),
        (credit_module, "CREDIT_ITEMS", CREDIT_ITEMS),
        (client_module, "MAX_SEGMENT_STEPS", MAX_STEPS),
        (sessions_module, "MAX_SEGMENT_STEPS", MAX_STEPS),
        *((module.log, "disabled", True) for module in (core_module, sessions_module, dispatcher_module, registry_module)),
    ]
    before = [getattr(owner, name) for owner, name, _ in places]
    try:
        for owner, name, value in places:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name, _), value in zip(places, before, strict=True):
            setattr(owner, name, value)


class _EventSink(NullEventSink):
    """An event sink that reports the alarms and failures that must never occur."""

    def __init__(self, wrong: Callable[[str, str], None]) -> None:
        self._wrong = wrong

    def event(self, name: str, /, **fields: Any) -> None:
        if name == "alarm" and fields["alarm"] in (STALLED, CREDIT_CORRECTED):
            self._wrong("stalled" if fields["alarm"] == STALLED else "transit", fields["text"])
        elif name == "client_failed":
            self._wrong("internal", f"the client failed: {fields['error']}")


@dataclass(frozen=True, slots=True)
class _Before:
    """The counters of a stream before an input."""

    received: int
    accepted_steps: int
    credit_steps: int

    @classmethod
    def of(cls, stream: SegmentStream) -> Self:
        return cls(stream.received, stream.accepted_steps, stream.credit_steps)


class SimLearner:
    """One start of a learner with one client.

    `on_frames`, `turn`, `each_second` and `restart_thread` return the messages to send.

    Attributes:
        core: The learner's core.
        now: The virtual time.
        reach: Called with the name of each of `schedule.CRASH_POINTS` that the learner passes. It may raise.
        is_gone: Return whether the actor has left the connection of a peer.
        full: True while the disk is full.
        thread: The present learner thread, or None before the client exists.
    """

    def __init__(
        self, now: float, disk: SimDisk | None, schedule: Schedule, parts: LearnerParts, history: History, rng: random.Random
    ) -> None:
        self.reach: Callable[[str], None] = lambda point: None
        self.is_gone: Callable[[bytes], bool] = lambda peer: False
        self.now, self.full = now, False
        self.thread: SimThread | None = None
        self._disk, self._schedule, self._parts, self._history, self._rng = disk, schedule, parts, history, rng
        self._began, self._save_at = now, now + rng.expovariate(1 / schedule.checkpoint_s)
        self._watch = StallTimer()
        self._fails = False
        self._heard: dict[str, float] = {}
        self._hellos: dict[bytes, Hello] = {}
        self._keys: dict[bytes, Key] = {}
        self._current: set[Key] = set()
        self._is_actor_live: dict[str, bytes] = {}
        self._out: list[tuple[bytes, list[Frame], bool]] = []
        self._writes: list[Callable[[], None]] = []
        self._wrong: list[tuple[str, str]] = []
        self._disk_journal = parts.disk_journal(disk, random.Random(rng.random()), self._written) if disk is not None else None
        self._journal: Journal = self._disk_journal or parts.journal()
        self._watch_journal()
        callbacks = CoreCallbacks(
            monotonic=lambda: self.now,
            unix=lambda: BEGAN_S + self.now,
            send=self._send,
            publish=lambda topic, frames: None,
            start_worker=self._start_thread,
            poll_workers=self._hear,
            abandon_checkpoints=_never,
            offer_policy=lambda client: False,
            forget_policy=lambda client_id: None,
            status=dict,
            history=lambda since, may_see: (b"[]", since),
        )
        config = _config(schedule.lease_s, disk is not None)
        sink = _EventSink(self._on_wrong)
        self.core = parts.core(config, self._journal, sink, Authorizer(None), callbacks)
        self.core.actor_sessions.pub_address = self.core.actor_sessions.inference_address = "inproc://sim"
        if disk is not None:
            self.core.restore(JournalContent(disk.journal_id, tuple(disk.clients.values()), tuple(disk.streams.values())))

    @property
    def client(self) -> ClientState | None:
        return self.core.registry.get(CLIENT_ID)

    @property
    def judged(self) -> list[tuple[int, str]]:
        return self.thread.judged if self.thread is not None else []

    @property
    def _ready(self) -> ClientState | None:
        """The client, if its learner thread runs and has received all entries of the journal."""
        client = self.client
        return client if client is not None and client.is_caught_up else None

    def _on_wrong(self, rule: str, detail: str) -> None:
        if not (rule == "internal" and self._fails):
            self._wrong.append((rule, detail))

    def _send(self, peer: bytes, frames: Sequence[Frame]) -> SendResult:
        gone = self.is_gone(peer) and self._rng.random() < GONE
        self._out.append((peer, list(frames), not gone))
        return SendResult.GONE if gone else SendResult.OK

    def _start_thread(self, assign: AssignClient, key: bytes) -> WorkerHandle:
        """Start a learner thread. It is ready a few turns later."""
        before = self.thread
        judged = before.judged_now if before is not None and self._disk is None else None
        site = ThreadSite(key=key, disk=self._disk, is_full=lambda: self.full, reach=self._pass)
        self.thread = self._parts.thread(self._history, random.Random(self._rng.random()), self._schedule, judged, site)
        return self.thread

    def _hear(self) -> None:
        if self.thread is not None:
            words, self.thread.words = self.thread.words, []
            for frames in words:
                self.core.on_worker(frames)

    def _pass(self, point: str) -> None:
        self.reach(point)

    def _watch_journal(self) -> None:
        """Record the content of a journal in memory, and the streams that are dropped from any journal."""
        journal: Any = self._journal
        drop_stream = journal.drop_stream

        def dropping(client_id: str, actor_id: str, origin: int, *, expires: bool = True) -> None:
            key = actor_id, origin
            if expires:
                silent_s = self.now - self._heard.get(actor_id, self._began)
                self._history.forget_stream(key, silent_s, self._schedule.lease_s, current=key in self._current)
            drop_stream(client_id, actor_id, origin, expires=expires)
            if self._disk is None:
                self._history.drop_stream(key)

        journal.drop_stream = dropping
        if self._disk is None:
            committed, history = journal.committed, self._history

            def committing() -> list[JournalEntry | JournalPage]:
                found: list[JournalEntry | JournalPage] = committed()
                for safe in found:
                    if isinstance(safe, JournalEntry):
                        history.write((safe.actor_id, safe.origin), safe.first_seq, safe.end_seq)
                return found

            def putting(row: StreamRow) -> None:
                self._writes.append(lambda: history.write_stream((row.actor_id, row.origin), row.received))

            def adding(client_id: str, count: int, stream: StreamRow | None = None) -> None:
                self._writes.append(history.write_gap)
                if stream is not None:
                    putting(stream)

            journal.committed, journal.put_stream, journal.add_gap = committing, putting, adding

    def _written(self, operation: Write) -> None:
        match operation:
            case JournalEntry():
                self._history.write((operation.actor_id, operation.origin), operation.first_seq, operation.end_seq)
            case CountSegmentsLostByJournal():
                self._history.write_gap()
                if operation.stream is not None:
                    self._written(operation.stream)
            case DropStream():
                self._history.drop_stream((operation.actor_id, operation.origin))
            case StreamRow():
                self._history.write_stream((operation.actor_id, operation.origin), operation.received)

    def on_frames(self, now: float, peer: bytes, frames: Sequence[Frame]) -> Answers:
        self.now = now
        message = _decoded(frames)
        if isinstance(message, Hello):
            self._hellos[peer] = message
        session = self.core.actor_sessions.sessions.get(peer)
        before = _Before.of(session[1]) if session is not None else None
        if session is not None and message is not None:
            self._heard[session[1].actor_id] = now
        self.core.actor_sessions.receive(peer, None, frames, now)
        if isinstance(message, Submit) and session is not None and before is not None:
            self._on_submit(peer, session[1], before, message)
        return self._answers()

    def turn(self, now: float, *, flush: bool = False) -> Answers:
        """Dispatch the written entries, let the learner thread work and save checkpoints, and send credit and acks."""
        self.now = now
        self.reach("before_commit")
        self._dispatch()
        self.reach("after_commit")
        thread = self.thread
        if thread is not None:
            thread.work(flush=flush)
            if thread.is_ready and self._disk is not None and (flush or now >= self._save_at):
                self._save_at = now + self._rng.expovariate(1 / self._schedule.checkpoint_s)
                if thread.progress.moved:
                    thread.save_and_say()
            self.reach("after_checkpoint")
            self._hear()
        self._check_transit()
        self._check_stall()
        self._turn_core()
        return self._answers()

    def each_second(self, now: float) -> Answers:
        """Let the core do the work of each second, and check the counters."""
        self.now = now
        client = self.client
        self._current = {s.key for s in client.table.current()} if client is not None else set()
        self.core.each_second(now)
        if self._ready:
            self.check_books()
        return self._answers()

    def restart_thread(self) -> Answers:
        """Let the learner thread die or fail, perhaps with a last checkpoint, and restart it by the operator's command."""
        client, thread = self.client, self.thread
        if client is None or thread is None:
            return []
        self._history.counts["thread_restarts"] += 1
        late: list[list[Frame]] = []
        if self._disk is not None:
            if thread.is_ready and not self.full and self._rng.random() < 0.5:
                thread.work(flush=self._rng.random() < 0.5)
                thread.save(self._disk, self.reach)
                late = thread.words  # these messages arrive after the start of its successor
        else:
            for _ in range(2):  # the production journal in memory commits at once
                self._dispatch()
        if client.state is LearnerThreadState.RUNNING and self._rng.random() < FAILS:
            self._history.counts["thread_failures"] += 1
            thread.fail()
            self._fails = True
            self._hear()
            self._fails = False
        self.core.operator.do(OperatorCommand(RESTART, CLIENT_ID))
        for frames in late:
            self.core.on_worker(frames)
        return self._answers()

    def _dispatch(self) -> None:
        if self._disk_journal is not None:
            self._disk_journal.full = self.full
        client = self.client
        replaying = client is not None and client.replay.token
        self.core.dispatcher.dispatch()
        if replaying and self._ready:
            self.check_books()

    def _answers(self) -> Answers:
        out, self._out = self._out, []
        for peer, frames, leaves in out:
            self._note(peer, decode(frames, verify=False), leaves=leaves)
        writes, self._writes = self._writes, []
        for write in writes:
            write()
        if self._wrong:
            raise Violation(*self._wrong[0])
        return [(peer, frames) for peer, frames, leaves in out if leaves]

    def _note(self, peer: bytes, message: Message, *, leaves: bool) -> None:
        """Record a message of the core to a peer. `leaves` is false if the core found the connection closed."""
        history = self._history
        match message:
            case Welcome():
                hello = self._hellos[peer]
                key = self._keys[peer] = hello.actor_id, hello.origin or hello.incarnation
                self._heard[hello.actor_id] = self.now
                self._is_actor_live[hello.actor_id] = peer
                history.begin_stream(key, hello.first_seq, message.gap)
                history.say(key, message.received, message.durable)
            case Ack() if leaves:
                history.say(self._keys[peer], message.received, message.durable)
            case Refused():
                history.counts[f"refused.{message.code}"] += 1
                if message.code == RefusalReason.EXPIRED:
                    hello = self._hellos[peer]
                    history.expire((hello.actor_id, hello.origin or hello.incarnation))
                if message.code == RefusalReason.INTERNAL:
                    raise Violation("internal", message.reason)

    def _on_submit(self, peer: bytes, stream: SegmentStream, before: _Before, message: Submit) -> None:
        """Record the segments of a SUBMIT by which the received mark has moved."""
        moved, key = stream.received - before.received, self._keys[peer]
        if moved <= 0:
            return
        if self._is_actor_live[key[0]] != peer:
            raise Violation("session", f"{moved} segments of {key} came on a connection that another has followed")
        over = max(0, stream.accepted_steps - max(before.credit_steps, before.accepted_steps))
        if self._schedule.clean and over > MAX_STEPS:
            raise Violation("credit", f"{over} steps came beyond the credit")
        heads = read_heads(message)
        for index in range(max(0, len(heads) - moved), len(heads)):
            steps, segment = int(heads[index]["steps"]), int(heads[index]["episode_id"])
            self._history.take(key, message.first_seq + index, segment, refused=steps > MAX_STEPS)

    @property
    def busy(self) -> bool:
        """True if there is work for another turn."""
        client, thread = self.client, self.thread
        if client is None or thread is None:
            return False
        waits = client.worker.backlog or thread.inbox or client.table.pending or self._journal.state().queued_items
        return bool(not client.is_caught_up or waits)

    def check_books(self) -> None:
        client = self.client
        if client is not None:
            books = client.books
            judged = sum(books.verdicts[verdict] for verdict in JUDGED)
            refused, pending = books.verdicts[Verdict.REFUSED], client.table.pending
            self._history.check_books(Books(books.accepted, refused, judged, pending, books.rolled_back, books.gap))

    def _turn_core(self) -> None:
        """Let the core grant credit. No actor may get more than the learner thread can use in addition to what is on the way."""
        client = self.client
        free = max(0, client.pool.free_steps) if client is not None else 0
        before = {stream.key: stream.credit_steps for stream in client.table.live()} if client is not None else {}
        self.core.turn()
        for stream in client.table.live() if client is not None else ():
            unused = stream.credit_steps - stream.accepted_steps
            if stream.credit_steps > before.get(stream.key, 0) and unused > free:
                raise Violation("credit", f"{unused} steps are granted to {stream.key}; the learner thread can use {free}")

    def _check_transit(self) -> None:
        """Check that the allocator's counts of the waiting segments and of those in transit are right."""
        client, thread = self._ready, self.thread
        if client is None or thread is None:
            return
        transit, in_transit, waiting = client.pool.transit, DataAmount(), DataAmount()
        for given in thread.inbox:
            if isinstance(given, Given):
                in_transit.add(given.load)
        for message in client.worker.backlog:
            if isinstance(message, DeliverSegments):
                in_transit.add(Given(message).load)
        for entry in self._journal.waiting() if isinstance(self._journal, SimJournal | SlowJournal) else ():
            stream = client.table.get(entry.actor_id, entry.origin)
            if stream is not None and entry.accepted and stream.counted(entry.end_seq):
                waiting.add(_load_of_entry(entry))
        for name, counted, real in ("on their way", transit.in_transit, in_transit), ("waiting", transit.waiting, waiting):
            if counted != real:
                raise Violation("transit", f"{counted} are counted as {name}, {real} are")

    def _check_stall(self) -> None:
        """Check that the client is never stalled for longer than `MAX_STALL_S`."""
        client, thread = self.client, self.thread
        if client is None or thread is None:
            return
        able = client.is_caught_up and not self.full and not thread.inbox and not client.worker.backlog
        reason = stall_reason(client.pool, client.table.live()) if able else ""
        books, messages = client.books, client.pool.transit.messages
        progress = (books.accepted, messages, tuple(books.verdicts.values()), client.worker.starts)
        still_s = self._watch.look(self.now, progress, reason)
        if still_s > MAX_STALL_S:
            raise Violation("stalled", f"for {still_s:.1f} s: {reason}")


def _decoded(frames: Sequence[Frame]) -> Message | None:
    try:
        return decode(frames)
    except ProtocolError:
        return None


@functools.lru_cache(maxsize=1024)
def _load_of_entry(entry: JournalEntry) -> DataAmount:
    return Given(DeliverSegments(entry.actor_id, entry.origin, entry.skip, entry.refused, entry.frames)).load


@functools.lru_cache
def _config(lease_s: float, durable: bool) -> LearnerConfig:
    client = {
        "algorithm_name": "PPO",
        "observation_space": space_to_json(SPEC.observation_space),
        "action_space": space_to_json(SPEC.action_space),
    }
    options = {
        "bind": "inproc://sim",
        "lease_s": lease_s,
        "idle_client_s": 1e8,
        "seed": 0,
        "max_actors": 16,
        "clients": {CLIENT_ID: client},
    }
    return LearnerConfig.from_mapping({**options, "run_dir": "sim" if durable else None})


def _never(*_: object) -> Any:
    raise AssertionError("no client is forgotten here")
