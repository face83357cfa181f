"""The gateway thread: owner of the ROUTER, the XPUB, one PUSH per learner thread and the PULL they all answer on.

It never blocks: it polls, sends without waiting, and leaves the disk and the learning to others. It routes messages; what
they mean for delivery is decided in `rl4sys_zmq.delivery`, who may join in `admission`, what a client is in `client`.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from rl4sys_zmq.config import AccessList, LearnerConfig, Peer
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import Entry, Ledger, Page, Restored, Stream, take_submit
from rl4sys_zmq.errors import Closed, ConfigError, ProtocolError, Refusal, RL4SysError
from rl4sys_zmq.learner.access import Door
from rl4sys_zmq.learner.admission import check_names, require_match
from rl4sys_zmq.learner.client import QUEUE_ITEMS, Client, ClientState, new_topic
from rl4sys_zmq.learner.guard import Guard
from rl4sys_zmq.learner.publisher import BEACON_TOPIC, WEIGHTS_TOPIC, Publications
from rl4sys_zmq.learner.roster import Roster
from rl4sys_zmq.learner.thread import MAX_MESSAGE_FRAMES, MAX_SEGMENT_STEPS, LearnerThread
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Address, Poller, Sent, Socket, TooManyFrames, Wakeup, read_subscription
from rl4sys_zmq.wire import decode, encode, segment_steps
from rl4sys_zmq.wire.messages import (
    Bye,
    Checkpointed,
    DeadLetter,
    Demand,
    Disposed,
    Failed,
    Fetch,
    Forget,
    Frame,
    Heartbeat,
    Hello,
    Message,
    Metrics,
    Published,
    Ready,
    Refused,
    Save,
    Status,
    StatusRequest,
    Submit,
    Verdict,
    Welcome,
)

__all__ = ["Gateway", "Sink"]

log = logging.getLogger(__name__)

PUB_HWM = 32
BACKLOG_RETRY_S = 0.005
BEACON_S = 1.0
HEARTBEAT_S = 1.0
MAX_MESSAGE_BYTES = 1 << 26
ROUTER_BURST = 256
LEDGER_FILLS, LEDGER_FULL = 0.5, 0.9
PAGE_BYTES = 16 << 20
"""How much of the ledger is read at a time to feed a learner thread again."""
_unique = itertools.count()

T = TypeVar("T")


class Sink(Protocol):
    """Where figures for people go; must not block."""

    def metrics(self, client_id: str, metrics: Metrics) -> None:
        """A learner thread's scalars and episodes."""

    def event(self, name: str, **fields: Any) -> None:
        """Something happened that a person may want to know."""

    def dead_letter(self, client_id: str, letter: DeadLetter) -> None:
        """A segment that was quarantined."""


class Gateway(Worker):
    """The learner's only thread with network sockets."""

    def __init__(
        self,
        config: LearnerConfig,
        sink: Sink,
        ledger: Ledger,
        restored: Restored | None = None,
        door: Door | None = None,
    ) -> None:
        """Makes it; `start` starts it.

        Args:
            config: the learner's.
            sink: where figures and events go.
            ledger: opened, and owned by the caller, who makes it call `wake` when there is something to hear from it.
            restored: what it knew when it was opened.
            door: keys and rights; None lets everybody do everything.
        """
        super().__init__("rl4sys-gateway")
        self.address = ""
        self.pub_address = ""
        self.published = threading.Condition()
        self._config, self._sink = config, sink
        self._counters = Counters()
        self._sessions: dict[bytes, tuple[Client, Stream]] = {}
        self._ledger, self._restored, self._door = ledger, restored, door
        self._guard = Guard(door.watcher.access if door is not None else None)
        self._saves: dict[int, tuple[set[str], Future[dict[str, str]], dict[str, str]]] = {}
        self._save_tokens = itertools.count(1)
        self._commands: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._commands_lock = threading.Lock()
        self._wakeup = Wakeup()
        self._stopping = threading.Event()
        self._open = threading.Event()
        self._bind_error: RL4SysError | None = None
        self._started_at = time.monotonic()
        self._up = f"inproc://rl4sys-up-{os.getpid()}-{next(_unique)}"
        self._roster = Roster(config, self._up, ledger)

    # ---- for other threads

    def wait_open(self) -> None:
        """Returns when the sockets are bound.

        Raises:
            RL4SysError: what went wrong in binding.
        """
        self._open.wait()
        if self._bind_error is not None:
            raise self._bind_error

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs `function` in the gateway thread.

        Raises:
            Closed: when that thread has ended or is about to.
        """
        future: Future[T] = Future()
        with self._commands_lock:
            if not self.alive or self._stopping.is_set():
                raise Closed("the learner is closed")
            self._commands.append((function, future))
        self._wakeup.set()
        return future

    def wake(self) -> None:
        """Makes the thread look at the ledger; from any thread."""
        self._wakeup.set()

    def publications(self, client_id: str) -> Publications | None:
        """What a client has published, or None; read under `published`."""
        client = self._roster.get(client_id)
        return client.publications if client is not None and client.state is not ClientState.STARTING else None

    def failure(self, client_id: str) -> RL4SysError | None:
        """Why a client has stopped, or could not be built; None when neither is so."""
        return self._roster.failure(client_id)

    def learner_threads(self) -> list[LearnerThread]:
        """All learner threads that may still run."""
        return self._roster.threads()

    def stop(self) -> None:
        """Ends the gateway and its learner threads."""
        with self._commands_lock:
            self._stopping.set()
        self._wakeup.set()

    def on_death(self, error: BaseException) -> None:
        """Lets nobody wait for a thread that is gone."""
        self._open.set()

    def join_all(self, deadline: float) -> bool:
        """Joins the gateway and its learner threads until `deadline` (monotonic); True when all have ended."""
        done = self.join(max(0.0, deadline - time.monotonic()))
        for thread in self.learner_threads():
            done &= thread.join(max(0.0, deadline - time.monotonic()))
        if not self.alive:
            self._wakeup.close()
        return done

    # ---- the thread

    def run(self) -> None:
        """The thread's body."""
        sockets: list[Socket] = []
        try:
            if self._bind(sockets):
                with Poller() as poller:
                    for socket in sockets:
                        poller.register(socket)
                    poller.register(self._wakeup)
                    self._open.set()
                    self._loop(poller)
                self._say_goodbye()
                self._drain()
        finally:
            pending = {c.client_id: c.table.pending for c in self._roster if c.table.pending}
            if pending:
                self._sink.event("closed_with_pending_segments", pending=pending)
            for client in self._roster:
                client.end_thread()
            for socket in sockets:
                socket.close()
            self._open.set()
            with self._commands_lock:
                self._stopping.set()
                commands, self._commands = self._commands, []
            for future in (*(f for _, f in commands), *(f for _, f, _ in self._saves.values())):
                future.set_exception(Closed("the learner is closed"))

    def _bind(self, sockets: list[Socket]) -> bool:
        """Makes the sockets; False when an address is taken, which is for the owner to hear."""
        try:
            secure = self._door.secure if self._door is not None else None
            self._router = Socket.router(self._config.bind, max_frame_bytes=MAX_MESSAGE_BYTES, secure=secure, watch=True)
            sockets.append(self._router)
            pub = self._config.pub or _beside(self._router.bound)
            self._xpub = Socket.xpub(pub, hwm=PUB_HWM, secure=secure, grants=True)
            sockets.append(self._xpub)
            self._upstream = Socket.pull(bind=self._up)
            sockets.append(self._upstream)
            if self._restored is not None:
                self._roster.restore(self._restored)
        except RL4SysError as exc:
            self._bind_error = exc
            return False
        self.pub_address = self._xpub.bound.uri
        self.address = self._router.bound.uri
        return True

    def _loop(self, poller: Poller) -> None:
        next_beacon = time.monotonic()
        while not self._stopping.is_set():
            backlog = any(c.backlog for c in self._roster)
            poller.poll(BACKLOG_RETRY_S if backlog else max(0.0, next_beacon - time.monotonic()))
            self._wakeup.clear()
            self._run_commands()
            self._read_upstream()
            self._read_router()
            self._read_subscriptions()
            self._read_events()
            self._dispatch()
            for client in self._roster:
                self._settle_accounts(client)
            now = time.monotonic()
            if now >= next_beacon:
                next_beacon = now + BEACON_S
                self._each_second(now)

    def _run_commands(self) -> None:
        with self._commands_lock:
            commands, self._commands = self._commands, []
        for function, future in commands:
            try:
                future.set_result(function())
            except Exception as exc:  # noqa: BLE001 - handed to the caller
                future.set_exception(exc)

    def _say_goodbye(self) -> None:
        for client in self._roster:
            client.end_thread()
        for peer in list(self._sessions):
            self._refuse(peer, Refusal.CLOSING, "the learner is shutting down")

    def _drain(self) -> None:
        """Hears the learner threads out, until they have ended or the time to shut down is over."""
        deadline = time.monotonic() + self._config.shutdown_timeout_s
        with Poller() as poller:
            poller.register(self._upstream)
            while any(t.alive for t in self.learner_threads()) and time.monotonic() < deadline:
                poller.poll(0.02)
                self._read_upstream()
        self._read_upstream()

    # ---- actors

    def _read_router(self) -> None:
        for _ in range(ROUTER_BURST):
            try:
                frames = self._router.recv(MAX_MESSAGE_FRAMES)
            except TooManyFrames as exc:
                self._refuse(exc.first, exc.code, exc.detail)
                continue
            if frames is None:
                return
            peer = bytes(frames[0])
            try:
                sender = self._admit(peer, frames)
                self._on_message(peer, sender, decode(frames[1:], max_bytes=MAX_MESSAGE_BYTES), frames[1:])
            except ProtocolError as exc:
                self._refuse(peer, exc.code, exc.detail)
            except Exception as exc:  # one peer's message, whatever it is, must not end everybody's gateway
                log.exception("a message of one peer was not handled")
                self._refuse(peer, Refusal.INTERNAL, f"{type(exc).__name__} in the learner; see its log")

    def _admit(self, peer: bytes, frames: Sequence[Frame]) -> Peer | None:
        """Checks rights and rates before anything is decoded. Over inproc, and without keys, everybody may do everything.

        Raises:
            ProtocolError: when this sender may not speak (any more); its session, if it has one, is over then.
        """
        if not self._router.authenticated:
            return None
        try:
            return self._guard.admit(self._router.user, sum(len(f) for f in frames), time.monotonic())
        except ProtocolError as exc:
            session = self._sessions.get(peer)
            if exc.code is Refusal.FORBIDDEN and session is not None:
                self._hang_up(peer, *session)
            raise

    def _on_message(self, peer: bytes, sender: Peer | None, message: Message, frames: Sequence[Frame]) -> None:
        match message:
            case Hello():
                self._on_hello(peer, sender, message)
                return
            case StatusRequest():
                self._guard.check_role(sender, "admin")
                self._send(peer, Status(self.status()))
                return
            case Submit() | Heartbeat() | Fetch() | Bye():
                pass
            case _:
                raise ProtocolError(Refusal.DIRECTION, f"{type(message).__name__} is not for a learner")
        session = self._sessions.get(peer)
        if session is None:
            raise ProtocolError(Refusal.NO_SESSION, "say HELLO first")
        client, stream = session
        if sender is not None and stream.owner != sender.name:
            raise ProtocolError(Refusal.IDENTITY, "this session belongs to another key")
        stream.last_seen = time.monotonic()
        if client.state is ClientState.FAILED:
            raise ProtocolError(Refusal.FAILED, client.error)
        match message:
            case Submit():
                self._guard.check_role(sender, "submit")
                self._guard.check_steps(sender, segment_steps(message))
                self._on_submit(peer, client, stream, message, frames)
            case Heartbeat():
                stream.wish(message.want_steps)
                client.dirty.add(stream.actor_id)
            case Fetch():
                self._guard.check_fetch(sender, stream.last_seen)
                self._send(peer, client.publications.catch_up(message.held_generation, message.held_version))
            case Bye():
                self._hang_up(peer, client, stream)

    def _on_submit(self, peer: bytes, client: Client, stream: Stream, message: Submit, frames: Sequence[Frame]) -> None:
        if not stream.submits:
            raise ProtocolError(Refusal.QUOTA, "an actor that only evaluates may not submit")
        if client.queued + message.count > 2 * QUEUE_ITEMS:
            raise ProtocolError(Refusal.QUOTA, f"{client.queued} segments are queued; the limit is {2 * QUEUE_ITEMS}")
        assert client.schema is not None  # a session begins after the learner thread is ready
        client.dirty.add(stream.actor_id)
        try:
            intake = take_submit(stream, client.schema, message, frames)
        except ProtocolError as exc:
            self._refuse(peer, exc.code, exc.detail, expected_seq=stream.received)
            return
        stream.wish(message.want_steps)
        client.verdicts[Verdict.DUPLICATE] += intake.duplicates
        client.verdicts[Verdict.REFUSED] += len(intake.refused)
        for error in intake.refused:
            client.counters.add(f"items_refused.{error.code.value}")
            self._sink.event("item_refused", client_id=client.client_id, actor_id=stream.actor_id, reason=str(error))
        client.accepted += intake.accepted
        client.delivered_items += intake.accepted
        stream.progress_at = stream.last_seen
        if intake.entry is not None:
            client.pool.delivered(intake.entry.steps)
            client.delivered_bytes += intake.entry.nbytes
            self._ledger.append([intake.entry])

    # ---- joining

    def _on_hello(self, peer: bytes, sender: Peer | None, hello: Hello) -> None:
        self._counters.add("hellos")
        code = Refusal.CONFIG
        try:
            check_names(hello)
            client = self._roster.get(hello.client_id)
            if sender is not None:
                owner = client.table.owner_of(hello.actor_id) if client is not None else ""
                self._guard.check_hello(sender, hello, owner, self._live_actors(sender.name, hello.actor_id))
            if client is None:
                client = self._found(hello)
            else:
                code = Refusal.MISMATCH
                require_match(client.settings, hello)
        except ConfigError as exc:
            self._refuse(peer, code, str(exc), field=exc.key)
            return
        match client.state:
            case ClientState.STARTING:
                client.waiting[peer] = hello, sender.name if sender is not None else ""
            case ClientState.FAILED:
                raise ProtocolError(Refusal.FAILED, client.error)
            case ClientState.RUNNING:
                self._welcome(peer, client, hello, sender.name if sender is not None else "")

    def _live_actors(self, user: str, but: str) -> int:
        return sum(s.owner == user and s.actor_id != but for client in self._roster for s in client.table.live())

    def _found(self, hello: Hello) -> Client:
        client = self._roster.found(hello)
        settings = client.settings
        self._sink.event("client_started", client_id=client.client_id, algorithm=settings.algorithm_name, seed=settings.seed)
        return client

    def _welcome(self, peer: bytes, client: Client, hello: Hello, user: str) -> None:
        opened = client.table.open(hello, peer, time.monotonic())
        stream = opened.stream
        stream.owner = user
        if opened.old_peer is not None:
            self._sessions.pop(opened.old_peer, None)
        self._sessions[peer] = client, stream
        if opened.gap:
            self._on_gap(client, stream, opened.gap)
        self._ledger.put_stream(client.stream_row(stream))
        client.pool.reclaim(stream)
        client.dirty.add(stream.actor_id)
        pub, settings = client.publications, client.settings
        answer = Welcome(
            policy_id=client.policy_id,
            topic=client.topic,
            ledger_id=self._ledger.ledger_id,
            gap=opened.gap,
            generation=pub.generation,
            version=pub.version,
            digest=pub.digest,
            spec=client.welcome_spec,
            pub=_advertised(self.pub_address, self._config.advertise),
            received=stream.received,
            durable=stream.durable,
            accepted_steps=stream.accepted_steps,
            algorithm_name=settings.algorithm_name,
            algorithm_type=client.algorithm_type,
            rollout_length=client.rollout_length,
            max_policy_lag=client.max_policy_lag,
            on_lag=settings.on_lag,
            max_message_bytes=MAX_MESSAGE_BYTES,
            max_segment_steps=MAX_SEGMENT_STEPS,
            heartbeat_s=HEARTBEAT_S,
        )
        self._send(peer, answer)
        self._sink.event("actor_joined", client_id=client.client_id, actor_id=hello.actor_id, first_seq=hello.first_seq)

    def _on_gap(self, client: Client, stream: Stream, gap: int) -> None:
        """Segments that were acknowledged are unknown to this ledger: an older one was put in its place, or none."""
        log.error("client %s: %d acknowledged segments of actor %s are gone", client.client_id, gap, stream.actor_id)
        client.accepted += gap
        client.gap += gap
        client.rolled_back += gap
        self._ledger.add_gap(client.client_id, gap)
        self._sink.event("gap", client_id=client.client_id, actor_id=stream.actor_id, segments=gap)

    def _hang_up(self, peer: bytes, client: Client, stream: Stream) -> None:
        self._sessions.pop(peer, None)
        client.table.hang_up(stream)
        client.pool.reclaim(stream)

    # ---- learner threads

    def _read_upstream(self) -> None:
        while (frames := self._upstream.recv()) is not None:
            client = self._roster.speaking(bytes(frames[0]))
            if client is None:
                continue  # the last words of an earlier life of the thread
            try:
                self._on_upstream(client, decode(frames[1:]))
            except Exception as exc:  # an algorithm that says the impossible stops its client, not the gateway
                log.exception("the learner thread of %s was not understood", client.client_id)
                self._on_failed(client, Failed(f"{type(exc).__name__}: {exc}"[:1000], ""))

    def _on_upstream(self, client: Client, message: Message) -> None:
        match message:
            case Ready():
                self._on_ready(client, message)
            case Published():
                self._on_published(client, message)
            case Disposed():
                self._on_disposed(client, message)
            case Demand():
                client.demanded(message)
            case Metrics():
                client.note(message)
                self._sink.metrics(client.client_id, message)
            case Checkpointed():
                self._on_checkpointed(client, message)
            case DeadLetter():
                self._sink.dead_letter(client.client_id, message)
            case Failed():
                self._on_failed(client, message)
            case _:
                raise ProtocolError(Refusal.DIRECTION, f"{type(message).__name__} from a learner thread")

    def _on_ready(self, client: Client, message: Ready) -> None:
        client.ready(message)
        if client.settings.algorithm_type not in ("", message.kind):
            words = "%s: the configuration says type %r, but %s is %s"
            log.warning(words, client.client_id, client.settings.algorithm_type, client.settings.algorithm_name, message.kind)
        for name in message.damaged:
            log.error("client %s: checkpoint %s is damaged and was put aside", client.client_id, name)
            self._counters.add("checkpoints_damaged")
            self._sink.event("checkpoint_damaged", client_id=client.client_id, checkpoint=name)
        if client.replaying:
            client.rewind(message)
            if message.checkpoint:
                self._sink.event("checkpoint_loaded", client_id=client.client_id, checkpoint=message.checkpoint)

    def _on_checkpointed(self, client: Client, message: Checkpointed) -> None:
        trim = client.checkpointed(message)
        if trim:
            self._ledger.trim(client.client_id, trim)
        if message.error:
            self._counters.add("checkpoints_failed")
        self._sink.event(
            "checkpoint_failed" if message.error else "checkpoint",
            client_id=client.client_id,
            number=message.number,
            version=message.version,
            duration_s=round(message.duration_s, 4),
            error=message.error,
        )
        client.dirty.update(s.actor_id for s in client.table.live())
        self._saved(client.client_id, message.token, message.error)

    def _on_published(self, client: Client, message: Published) -> None:
        with self.published:
            out = client.publications.publish(message)
            first, client.state = client.state is not ClientState.RUNNING, ClientState.RUNNING
            self.published.notify_all()
        if first:
            client.known = True
            self._ledger.put_client(client.row())
        self._xpub.send([WEIGHTS_TOPIC + client.topic, *out])
        waiting, client.waiting = client.waiting, {}
        for peer, (hello, user) in waiting.items():
            try:
                self._welcome(peer, client, hello, user)
            except ProtocolError as exc:
                self._refuse(peer, exc.code, exc.detail)

    def _on_disposed(self, client: Client, message: Disposed) -> None:
        stream = client.table.get(message.actor_id, message.origin)
        count = sum(end - first for first, end in message.ranges) if stream is None else 0
        if stream is not None:
            count = stream.dispose(message.ranges, message.verdict)
            client.dirty.add(stream.actor_id)
        client.verdicts[message.verdict] += count
        if message.reason:
            self._sink.event("quarantined", client_id=client.client_id, actor_id=message.actor_id, reason=message.reason)

    def _on_failed(self, client: Client, message: Failed) -> None:
        with self.published:
            stillborn = self._roster.fail(client, message)
            self.published.notify_all()
        self._counters.add("clients_failed")
        self._sink.event("client_failed", client_id=client.client_id, error=message.error)
        peers = [client.table.peer_of(s) for s in client.table.live()]
        for peer in (*peers, *client.waiting):
            if peer is not None:
                self._refuse(peer, Refusal.CONFIG if stillborn else Refusal.FAILED, message.error)
        client.waiting.clear()
        for token in list(self._saves):
            self._saved(client.client_id, token, message.error)

    def restart(self, client_id: str) -> None:
        """Gives a client a new learner thread and a new generation; in the gateway thread."""
        with self.published:
            client, rolled_back = self._roster.restart(client_id)
            self.published.notify_all()
        for stream in client.table.live():
            peer = client.table.peer_of(stream)
            if peer is not None:
                self._hang_up(peer, client, stream)
                self._refuse(peer, Refusal.NO_SESSION, "the client was restarted: say HELLO again")
        self._sink.event("client_restarted", client_id=client_id, rolled_back=rolled_back)

    def save(self, *, partial: bool) -> Future[dict[str, str]]:
        """Asks every client for a checkpoint; the result says which could not write one, and why. In the gateway thread."""
        token, running = next(self._save_tokens), [c for c in self._roster if c.state is ClientState.RUNNING]
        future: Future[dict[str, str]] = Future()
        self._saves[token] = {c.client_id for c in running}, future, {}
        for client in running:
            client.backlog.append(encode(Save(token, partial)))
        if not running:
            self._saves.pop(token)
            future.set_result({})
        return future

    def _saved(self, client_id: str, token: int, error: str) -> None:
        waiting, future, errors = self._saves.get(token, (set(), None, {}))
        if client_id in waiting and future is not None:
            waiting.discard(client_id)
            if error:
                errors[client_id] = error
            if not waiting:
                del self._saves[token]
                future.set_result(errors)

    # ---- sending and the clock

    def _dispatch(self) -> None:
        """Hands what the ledger has made safe, or gives back, to the learner threads."""
        for safe in self._ledger.committed():
            client = self._roster.get(safe.client_id)
            if client is None:
                continue
            if isinstance(safe, Entry):
                stream = client.table.get(safe.actor_id, safe.origin)
                if stream is not None:
                    stream.commit(safe.end_seq)
                    client.dirty.add(stream.actor_id)
                if not client.replaying and client.push is not None:
                    client.deliver(safe, safe.skip)
            elif safe.token == client.replaying:
                self._on_page(client, safe)
        for client in self._roster:
            while client.backlog and client.push is not None and client.push.send(client.backlog[0]):
                client.backlog.popleft()
            if client.page_after is not None and not client.backlog:
                after, client.page_after = client.page_after, None
                self._ledger.read(client.client_id, client.replaying, after, PAGE_BYTES)

    def _on_page(self, client: Client, page: Page) -> None:
        if page.damaged:
            log.error("client %s: %d entries of the ledger are damaged and are lost", client.client_id, page.damaged)
            self._counters.add("entries_damaged", page.damaged)
        for entry in page.entries:
            client.replay(entry)
        if page.more:
            client.page_after = page.last_row
            return
        lost = client.caught_up()
        client.dirty.update(s.actor_id for s in client.table.live())
        if lost:
            log.error("client %s: %d acknowledged segments are undone and gone (rolled back)", client.client_id, lost)
        if client.replayed or lost:
            self._sink.event("fed_again", client_id=client.client_id, segments=client.replayed, rolled_back=lost)

    def _settle_accounts(self, client: Client) -> None:
        """Grants credit and sends the acks that are due."""
        if not client.dirty:
            return
        live = client.table.live()
        client.dirty.update(s.actor_id for s in client.pool.grant(live, time.monotonic()))
        shares = client.shares(self._ledger_room())
        for stream in live:
            peer = client.table.peer_of(stream)
            if stream.actor_id in client.dirty and peer is not None:
                self._send(peer, client.ack(stream, shares))
        client.dirty.clear()

    def _ledger_room(self) -> int:
        """How many bytes the ledger can take; none while it fails, so that actors keep what they have."""
        state = self._ledger.state()
        if state.error:
            return 0
        return max(0, state.max_bytes - state.used_bytes - state.queued_bytes) if state.max_bytes else MAX_MESSAGE_BYTES

    def _relieve_ledger(self) -> None:
        """Asks for checkpoints while the ledger fills up, for they let it forget; near its end after training partial batches."""
        state = self._ledger.state()
        if not state.max_bytes or state.used_bytes + state.queued_bytes < LEDGER_FILLS * state.max_bytes:
            return
        partial = state.used_bytes + state.queued_bytes > LEDGER_FULL * state.max_bytes
        for client in self._roster:
            if client.state is ClientState.RUNNING and not client.replaying and not client.backlog:
                client.backlog.append(encode(Save(0, partial)))

    def _each_second(self, now: float) -> None:
        self._relieve_ledger()
        for client in self._roster:
            if client.gone:
                self._read_upstream()  # its last words, if there are any
                if client.state is not ClientState.FAILED:
                    self._on_failed(client, Failed("its learner thread ended without a word; see the learner's log", ""))
                continue
            if client.state is ClientState.RUNNING:
                self._xpub.send([BEACON_TOPIC + client.topic, *encode(client.publications.beacon())])
            for stream in client.table.silent(now):
                peer = client.table.peer_of(stream)
                if peer is not None:
                    self._hang_up(peer, client, stream)
                    self._sink.event("actor_silent", client_id=client.client_id, actor_id=stream.actor_id)
            client.dirty.update(s.actor_id for s in client.table.live())
            for stream in client.table.expire(now, client.trimmed):
                self._ledger.drop_stream(client.client_id, stream.actor_id, stream.origin)
                if client.push is not None:
                    client.backlog.append(encode(Forget(stream.actor_id, stream.origin)))

    def _read_subscriptions(self) -> None:
        """A new subscriber gets a beacon at once: what was published before it was there is invisible to it."""
        while (frames := self._xpub.recv()) is not None:
            notice = read_subscription(frames)
            if notice is None or not notice[0]:
                continue
            topic = notice[1]
            client = self._roster.by_topic(topic[1:]) if topic[:1] in (WEIGHTS_TOPIC, BEACON_TOPIC) else None
            if client is None or (self._xpub.authenticated and not self._guard.may_read(self._xpub.user, client.client_id)):
                self._counters.add("subscriptions_refused")
                continue
            self._xpub.grant(topic)
            if topic[:1] == BEACON_TOPIC and client.state is ClientState.RUNNING:
                self._xpub.send([topic, *encode(client.publications.beacon())])

    def _read_events(self) -> None:
        """Counts who connected, and who did not get in."""
        for event in self._router.events():
            self._counters.add(f"connections.{event.name}")

    def change_access(self, access: AccessList) -> None:
        """Puts a new list of clients in force; in the gateway thread.

        Whoever has lost the right to read a policy may still be subscribed to it, and libzmq can't take that back: the policy
        gets another topic, which its actors learn in a new handshake.
        """
        losers = self._guard.replace(access)
        for client in self._roster if losers else ():
            client.topic = new_topic()
            for stream in client.table.live():
                peer = client.table.peer_of(stream)
                if peer is not None:
                    self._hang_up(peer, client, stream)
                    self._refuse(peer, Refusal.NO_SESSION, "the rights have changed: say HELLO again")
        self._sink.event("access_changed", listed=len(access.by_name), lost_rights=sorted(losers))

    def _refuse(self, peer: bytes, code: Refusal, reason: str, *, field: str = "", expected_seq: int = 0) -> None:
        self._counters.add(f"refused.{code.value}")
        self._send(peer, Refused(code.value, field, reason, expected_seq))

    def _send(self, peer: bytes, message: Message) -> None:
        sent = self._router.send([peer, *encode(message)])
        if sent is Sent.OK:
            return
        self._counters.add(f"replies_dropped.{sent.value}")
        session = self._sessions.get(peer)
        if sent is Sent.GONE and session is not None:
            self._hang_up(peer, *session)

    def status(self) -> dict[str, Any]:
        """The state of everything, as a JSON document; in the gateway thread."""
        now = time.monotonic()
        return {
            "address": self.address,
            "pub": self.pub_address,
            "pid": os.getpid(),
            "uptime_s": round(now - self._started_at, 3),
            "counters": self._counters.snapshot(),
            "security": self._door.report() if self._door is not None else None,
            "ledger": asdict(self._ledger.state()),
            "clients": {client.client_id: client.report(now) for client in self._roster},
        }


def _beside(address: Address) -> str:
    """Where the PUB goes when nothing else is said: a free place next to the ROUTER."""
    return address.with_port(0).uri if address.scheme == "tcp" else f"{address.uri}.pub"


def _advertised(pub: str, host: str | None) -> str:
    """The PUB's address as an actor should dial it; a ``*`` stands for the host that the actor dialled."""
    address = Address.parse(pub)
    return f"tcp://{host or '*'}:{address.port}" if address.scheme == "tcp" else pub
