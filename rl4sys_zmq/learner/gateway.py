"""The gateway thread: owner of the ROUTER, the XPUB, one PUSH per learner thread and the PULL they all answer on.

It never blocks: it polls, sends without waiting, and leaves the disk and the learning to others. It routes frames; what a
message means for delivery is decided in `rl4sys_zmq.delivery`, who may join in `admission`.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, cast

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import Entry, Ledger, MemoryLedger, Stream
from rl4sys_zmq.errors import Closed, ConfigError, ProtocolError, Refusal, RL4SysError
from rl4sys_zmq.learner.admission import check_hello, mismatch, settle
from rl4sys_zmq.learner.client import Client, ClientState
from rl4sys_zmq.learner.publisher import BEACON_TOPIC, WEIGHTS_TOPIC, Publications
from rl4sys_zmq.learner.thread import MAX_MESSAGE_FRAMES, MAX_SEGMENT_STEPS, LearnerThread
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Address, Poller, Sent, Socket, Wakeup, read_subscription
from rl4sys_zmq.wire import decode, encode, read_submit, spec_from_document
from rl4sys_zmq.wire.messages import (
    Bye,
    Deliver,
    Demand,
    Disposed,
    Failed,
    Fetch,
    Frame,
    Heartbeat,
    Hello,
    Message,
    Metrics,
    Published,
    Ready,
    Refused,
    Status,
    StatusRequest,
    Stop,
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
SILENT_BEATS = 3.0
QUEUE_ITEMS = 4096
MAX_MESSAGE_BYTES = 1 << 26
ROUTER_BURST = 256
_unique = itertools.count()


class Sink(Protocol):
    """Where figures for people go; must not block."""

    def metrics(self, client_id: str, metrics: Metrics) -> None:
        """A learner thread's scalars and episodes."""

    def event(self, name: str, **fields: Any) -> None:
        """Something happened that a person may want to know."""


class Gateway(Worker):
    """The learner's only thread with network sockets."""

    def __init__(self, config: LearnerConfig, sink: Sink) -> None:
        super().__init__("rl4sys-gateway")
        self.address = ""
        self.pub_address = ""
        self.published = threading.Condition()
        self._config, self._sink = config, sink
        self._counters = Counters()
        self._clients: dict[str, Client] = {}
        self._by_key: dict[bytes, Client] = {}
        self._sessions: dict[bytes, tuple[Client, Stream]] = {}
        self._retired: list[LearnerThread] = []
        self._ledger: Ledger = MemoryLedger()
        self._commands: list[Callable[[], None]] = []
        self._commands_lock = threading.Lock()
        self._wakeup = Wakeup()
        self._stopping = threading.Event()
        self._open = threading.Event()
        self._bind_error: RL4SysError | None = None
        self._started_at = time.time()
        self._up = f"inproc://rl4sys-up-{os.getpid()}-{next(_unique)}"
        self._policy_ids = itertools.count(1)

    # ---- for other threads

    def wait_open(self) -> None:
        """Returns when the sockets are bound.

        Raises:
            RL4SysError: what went wrong in binding.
        """
        self._open.wait()
        if self._bind_error is not None:
            raise self._bind_error

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Runs `function` in the gateway thread."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as exc:  # handed to the caller, not swallowed
                future.set_exception(exc)

        with self._commands_lock:
            if not self.alive or self._stopping.is_set():
                raise Closed("the learner is closed")
            self._commands.append(run)
        self._wakeup.set()
        return future

    def publications(self, client_id: str) -> Publications | None:
        """What a client has published, or None; read under `published`."""
        client = self._clients.get(client_id)
        return client.publications if client is not None and client.state is not ClientState.STARTING else None

    def failure(self, client_id: str) -> str:
        """The error on which a client's learner thread stopped, or an empty string."""
        client = self._clients.get(client_id)
        return client.error if client is not None and client.state is ClientState.FAILED else ""

    def stop(self) -> None:
        """Ends the gateway and, with a `Stop`, its learner threads."""
        self._stopping.set()
        self._wakeup.set()

    def on_death(self, error: BaseException) -> None:
        """Lets the owner see an error in binding."""
        self._open.set()

    def join_all(self, deadline: float) -> bool:
        """Joins the gateway and its learner threads until `deadline` (monotonic); True when all have ended."""
        done = self.join(max(0.0, deadline - time.monotonic()))
        threads = [*self._retired, *(c.thread for c in self._clients.values() if c.thread is not None)]
        for thread in threads:
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
                poller = Poller()
                for source in (*sockets, self._wakeup):
                    poller.register(source)
                self._open.set()
                self._loop(poller)
                self._say_goodbye()
                self._drain()
        finally:
            for client in self._clients.values():
                if client.push is not None:
                    client.push.close()
            for socket in sockets:
                socket.close()
            self._open.set()

    def _drain(self) -> None:
        """Hears the learner threads out, until they have ended or the time to shut down is over."""
        deadline = time.monotonic() + self._config.shutdown_timeout_s
        threads = [*self._retired, *(c.thread for c in self._clients.values() if c.thread is not None)]
        with Poller() as poller:
            poller.register(self._upstream)
            while any(t.alive for t in threads) and time.monotonic() < deadline:
                poller.poll(0.02)
                self._read_upstream()
        self._read_upstream()

    def _bind(self, sockets: list[Socket]) -> bool:
        """Makes the sockets; False when an address is taken, which is for the owner to hear."""
        try:
            self._router = Socket.router(self._config.bind, max_frame_bytes=MAX_MESSAGE_BYTES)
            sockets.append(self._router)
            self._xpub = Socket.xpub(self._config.pub or _beside(self._router.bound), hwm=PUB_HWM)
            sockets.append(self._xpub)
            self._upstream = Socket.pull(bind=self._up)
            sockets.append(self._upstream)
        except RL4SysError as exc:
            self._bind_error = exc
            return False
        self.pub_address = self._xpub.bound.uri
        self.address = self._router.bound.uri
        return True

    def _loop(self, poller: Poller) -> None:
        next_beacon = time.monotonic()
        while not self._stopping.is_set():
            backlog = any(c.backlog for c in self._clients.values())
            poller.poll(BACKLOG_RETRY_S if backlog else max(0.0, next_beacon - time.monotonic()))
            self._wakeup.clear()
            self._run_commands()
            self._read_upstream()
            self._read_router()
            self._read_subscriptions()
            self._dispatch()
            now = time.monotonic()
            for client in self._clients.values():
                self._settle_accounts(client)
            if now >= next_beacon:
                next_beacon = now + BEACON_S
                self._each_second(now)

    def _run_commands(self) -> None:
        with self._commands_lock:
            commands, self._commands = self._commands, []
        for command in commands:
            command()

    # ---- actors

    def _read_router(self) -> None:
        for _ in range(ROUTER_BURST):
            try:
                frames = self._router.recv(MAX_MESSAGE_FRAMES)
            except ProtocolError as exc:
                self._counters.add(f"refused.{exc.code.value}")
                continue
            if frames is None:
                return
            peer = bytes(frames[0])
            try:
                self._on_message(peer, decode(frames[1:], max_bytes=MAX_MESSAGE_BYTES), frames[1:])
            except ProtocolError as exc:
                self._refuse(peer, exc.code, exc.detail)

    def _on_message(self, peer: bytes, message: Message, frames: list[Frame]) -> None:
        match message:
            case Hello():
                self._on_hello(peer, message)
                return
            case StatusRequest():
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
        stream.last_seen = time.monotonic()
        if client.state is ClientState.FAILED:
            raise ProtocolError(Refusal.FAILED, client.error)
        match message:
            case Submit():
                self._on_submit(peer, client, stream, message, tuple(frames))
            case Heartbeat():
                stream.want_steps = max(stream.want_steps, message.want_steps)
                client.dirty.add(stream.actor_id)
            case Fetch():
                self._send(peer, client.publications.catch_up(message.held_generation, message.held_version))
            case Bye():
                self._drop_session(peer, client, stream)

    def _on_submit(self, peer: bytes, client: Client, stream: Stream, message: Submit, frames: tuple[Frame, ...]) -> None:
        segments = read_submit(message)
        stream.want_steps = max(stream.want_steps, message.want_steps)
        client.dirty.add(stream.actor_id)
        try:
            skip = stream.admit(message.first_seq, message.count)
        except ProtocolError as exc:
            self._refuse(peer, exc.code, exc.detail, expected_seq=stream.received)
            return
        if not stream.submits:
            raise ProtocolError(Refusal.QUOTA, "an actor that only evaluates may not submit")
        fresh = segments[skip:]
        client.counters.add("segments.duplicate", skip)
        client.verdicts[Verdict.DUPLICATE] += skip
        if not fresh:
            return
        if client.pending + len(fresh) > 2 * QUEUE_ITEMS:
            raise ProtocolError(Refusal.QUOTA, f"{client.pending} segments are pending; the limit is {2 * QUEUE_ITEMS}")
        schema = client.schema
        assert schema is not None
        first = stream.received
        good_steps = 0
        for index, segment in enumerate(fresh):
            error = segment if isinstance(segment, ProtocolError) else schema.check(segment)
            steps = 0 if isinstance(segment, ProtocolError) else segment.steps
            stream.accept(1, steps)
            if error is None:
                client.accepted += 1
                good_steps += steps
            else:
                stream.dispose([[first + index, first + index + 1]], Verdict.REFUSED)
                client.verdicts[Verdict.REFUSED] += 1
                client.counters.add(f"items_refused.{error.code.value}")
                self._sink.event("item_refused", client_id=client.client_id, actor_id=stream.actor_id, reason=str(error))
        client.pool.delivered(good_steps)
        entry = Entry(client.client_id, stream.actor_id, stream.incarnation, first, stream.received, good_steps, skip, frames)
        self._ledger.append([entry])

    # ---- joining

    def _on_hello(self, peer: bytes, hello: Hello) -> None:
        self._counters.add("hellos")
        refused = check_hello(hello)
        if refused is None:
            client = self._clients.get(hello.client_id)
            if client is None:
                refused = self._found(hello)
                client = self._clients.get(hello.client_id)
            else:
                refused = mismatch(client.settings, hello)
        if refused is not None or client is None:
            self._counters.add(f"refused.{refused.code if refused else Refusal.CONFIG}")
            self._send(peer, cast(Message, refused))
            return
        match client.state:
            case ClientState.STARTING:
                client.waiting[peer] = hello
            case ClientState.FAILED:
                self._refuse(peer, Refusal.FAILED, client.error)
            case ClientState.RUNNING:
                self._welcome(peer, client, hello)

    def _found(self, hello: Hello) -> Refused | None:
        """Makes a client of which nothing was known."""
        if len(self._clients) >= self._config.max_clients:
            return Refused(Refusal.QUOTA, "client_id", f"this learner takes {self._config.max_clients} clients (max_clients)")
        try:
            settings = settle(self._config, hello)
        except ConfigError as exc:
            return Refused(Refusal.CONFIG, exc.key, str(exc))
        except (TypeError, ValueError) as exc:
            return Refused(Refusal.CONFIG, "algorithm_parameters", str(exc))
        policy_id = next(self._policy_ids).to_bytes(8, "little")
        client = Client(settings, policy_id, _generation(0))
        self._clients[hello.client_id] = client
        self._start(client)
        self._sink.event("client_started", client_id=client.client_id, algorithm=settings.algorithm_name, seed=settings.seed)
        return None

    def _start(self, client: Client) -> None:
        """Gives a client a learner thread (again)."""
        client.life += 1
        client.state = ClientState.STARTING
        down = f"{self._up}-{client.policy_id.hex()}-{client.life}"
        client.push = Socket.push(bind=down, hwm=2 * QUEUE_ITEMS + 16)
        self._by_key[client.key] = client
        client.thread = LearnerThread(f"rl4sys-learner-{client.client_id}", client.key, down, self._up)
        client.thread.start()
        assign = client.settings.assign(client.policy_id, client.publications.generation, self._config.max_parameters)
        client.backlog.append(encode(assign))

    def _welcome(self, peer: bytes, client: Client, hello: Hello) -> None:
        now = time.monotonic()
        stream = client.streams.get(hello.actor_id)
        if stream is not None and stream.incarnation != hello.incarnation:
            if hello.incarnation < stream.incarnation:
                self._refuse(peer, Refusal.FENCED, f"incarnation {hello.incarnation}; {stream.incarnation} is on record")
                return
            if hello.actor_id in client.peers and now - stream.last_seen < SILENT_BEATS * HEARTBEAT_S:
                self._refuse(peer, Refusal.CONFLICT, f"actor {hello.actor_id!r} is live as incarnation {stream.incarnation}")
                return
            stream = None
        if stream is None:
            if hello.actor_id not in client.streams and len(client.streams) >= self._config.max_actors:
                self._refuse(peer, Refusal.QUOTA, f"this client has {len(client.streams)} actors (max_actors)")
                return
            stream = Stream(
                client.client_id, hello.actor_id, hello.incarnation, hello.first_seq, now, submits=hello.submits
            )
            client.streams[hello.actor_id] = stream
            if hello.first_seq:
                client.counters.add("unknown_to_this_learner.segments", hello.first_seq)
            self._sink.event("actor_joined", client_id=client.client_id, actor_id=hello.actor_id)
        stream.last_seen = now
        old = client.peers.get(hello.actor_id)
        if old is not None and old != peer:
            self._sessions.pop(old, None)
        client.peers[hello.actor_id] = peer
        self._sessions[peer] = client, stream
        client.pool.reclaim(stream)
        pub, settings = client.publications, client.settings
        self._send(
            peer,
            Welcome(
                client.policy_id,
                pub.generation,
                pub.version,
                pub.digest,
                client.spec,
                _advertised(self.pub_address, self._config.advertise),
                stream.received,
                stream.durable,
                stream.accepted_steps,
                settings.algorithm_name,
                client.rollout_length,
                -1 if settings.max_policy_lag is None else settings.max_policy_lag,
                settings.on_lag,
                MAX_MESSAGE_BYTES,
                MAX_SEGMENT_STEPS,
                HEARTBEAT_S,
            ),
        )
        client.dirty.add(stream.actor_id)

    def _drop_session(self, peer: bytes, client: Client, stream: Stream) -> None:
        self._sessions.pop(peer, None)
        client.peers.pop(stream.actor_id, None)
        client.pool.reclaim(stream)

    # ---- learner threads

    def _read_upstream(self) -> None:
        while (frames := self._upstream.recv()) is not None:
            client = self._by_key.get(bytes(frames[0]))
            if client is not None:  # else the last words of an earlier life of the thread
                self._on_upstream(client, decode(frames[1:]))

    def _on_upstream(self, client: Client, message: Message) -> None:
        match message:
            case Ready():
                client.ready(spec_from_document(message.spec), message.spec, message.rollout_length, MAX_SEGMENT_STEPS)
            case Published():
                self._on_published(client, message)
            case Disposed():
                self._on_disposed(client, message)
            case Demand():
                client.pool.demand(message.steps, message.min_version)
                client.dirty.update(client.peers)
            case Metrics():
                client.note(message)
                self._sink.metrics(client.client_id, message)
            case Failed():
                self._on_failed(client, message)
            case _:
                raise ProtocolError(Refusal.DIRECTION, f"{type(message).__name__} from a learner thread")

    def _on_published(self, client: Client, message: Published) -> None:
        with self.published:
            out = client.publications.publish(message)
            starting = client.state is ClientState.STARTING
            if starting:
                client.state = ClientState.RUNNING
            self.published.notify_all()
        self._xpub.send([WEIGHTS_TOPIC + client.policy_id, *out])
        if starting:
            waiting, client.waiting = client.waiting, {}
            for peer, hello in waiting.items():
                self._welcome(peer, client, hello)

    def _on_disposed(self, client: Client, message: Disposed) -> None:
        stream = client.streams.get(message.actor_id)
        count = sum(end - first for first, end in message.ranges)
        client.verdicts[message.verdict] += count
        if message.reason:
            client.counters.add("quarantined.items", count)
            self._sink.event("quarantined", client_id=client.client_id, actor_id=message.actor_id, reason=message.reason)
        if stream is not None and stream.incarnation == message.incarnation:
            stream.dispose(message.ranges, message.verdict)
            client.dirty.add(stream.actor_id)

    def _on_failed(self, client: Client, message: Failed) -> None:
        log.error("client %s failed: %s\n%s", client.client_id, message.error, message.trace)
        self._by_key.pop(client.key, None)
        with self.published:
            client.state, client.error, client.trace = ClientState.FAILED, message.error, message.trace
            self.published.notify_all()
        if client.push is not None:
            client.push.close()
            client.push = None
        self._counters.add("clients_failed")
        self._sink.event("client_failed", client_id=client.client_id, error=message.error)
        for peer in [*client.peers.values(), *client.waiting]:
            self._refuse(peer, Refusal.FAILED, message.error)
        client.waiting.clear()

    @staticmethod
    def _end_thread(client: Client) -> None:
        """Tells a learner thread to finish what it has been given, and to end."""
        if client.push is not None:
            client.push.send(encode(Stop()))
            client.push.close()
            client.push = None
        if client.thread is not None:
            client.thread.stop()

    def restart(self, client_id: str) -> None:
        """Gives a client a new learner thread and a new generation; in the gateway thread."""
        client = self._clients.get(client_id)
        if client is None:
            raise ConfigError(f"no client {client_id!r}; there are: {', '.join(sorted(self._clients)) or 'none'}", key="client_id")
        if client.state is not ClientState.FAILED:
            self._by_key.pop(client.key, None)
            self._end_thread(client)
        if client.thread is not None:
            self._retired.append(client.thread)
        rolled_back = client.pending
        client.rolled_back += rolled_back
        for stream in client.streams.values():
            stream.roll_back()
            client.pool.reclaim(stream)
        client.backlog.clear()
        for peer in client.peers.values():
            self._sessions.pop(peer, None)
            self._refuse(peer, Refusal.NO_SESSION, "the client was restarted: say HELLO again")
        client.peers.clear()
        with self.published:
            client.publications = Publications(_generation(client.publications.generation))
            client.error = client.trace = ""
            client.pool = type(client.pool)()
            client.restarts += 1
            self._start(client)
            self.published.notify_all()
        self._sink.event("client_restarted", client_id=client_id, rolled_back=rolled_back)

    # ---- sending and the clock

    def _dispatch(self) -> None:
        """Hands what the ledger has made safe to the learner threads."""
        for entry in self._ledger.committed():
            client = self._clients[entry.client_id]
            stream = client.streams.get(entry.actor_id)
            if stream is not None and stream.incarnation == entry.incarnation:
                stream.commit(entry.end_seq)
            client.backlog.append(encode(Deliver(entry.actor_id, entry.incarnation, entry.skip, entry.frames)))
        for client in self._clients.values():
            while client.backlog and client.push is not None and client.push.send(client.backlog[0]):
                client.backlog.popleft()

    def _settle_accounts(self, client: Client) -> None:
        """Grants credit and sends the acks that are due."""
        if not client.dirty:
            return
        live = [client.streams[a] for a in client.peers]
        for stream in client.pool.grant(live):
            client.dirty.add(stream.actor_id)
        free = max(0, QUEUE_ITEMS - client.pending) // max(1, len(live))
        for actor_id in client.dirty:
            peer = client.peers.get(actor_id)
            if peer is not None:
                ack = client.streams[actor_id].ack(free_items=free, min_version=client.pool.min_version)
                self._send(peer, ack)
        client.dirty.clear()

    def _each_second(self, now: float) -> None:
        for client in self._clients.values():
            if client.state is ClientState.RUNNING:
                self._xpub.send([BEACON_TOPIC + client.policy_id, *encode(client.publications.beacon())])
            for actor_id, peer in list(client.peers.items()):
                stream = client.streams[actor_id]
                if now - stream.last_seen > SILENT_BEATS * HEARTBEAT_S:
                    self._drop_session(peer, client, stream)
                    self._sink.event("actor_silent", client_id=client.client_id, actor_id=actor_id)
            for actor_id, stream in list(client.streams.items()):
                if actor_id not in client.peers and now - stream.last_seen > self._config.lease_s and not stream.pending:
                    del client.streams[actor_id]

    def _read_subscriptions(self) -> None:
        """A new subscriber gets a beacon at once: what was published before it was there is invisible to it."""
        while (frames := self._xpub.recv()) is not None:
            notice = read_subscription(frames)
            for client in self._clients.values():
                topic = BEACON_TOPIC + client.policy_id
                if notice == (True, topic) and client.state is ClientState.RUNNING:
                    self._xpub.send([topic, *encode(client.publications.beacon())])

    def _refuse(self, peer: bytes, code: Refusal, reason: str, *, expected_seq: int = 0) -> None:
        self._counters.add(f"refused.{code.value}")
        self._send(peer, Refused(code.value, "", reason, expected_seq))

    def _send(self, peer: bytes, message: Message) -> None:
        sent = self._router.send([peer, *encode(message)])
        if sent is not Sent.OK:
            self._counters.add(f"replies_dropped.{sent.name.lower()}")
            if sent is Sent.GONE and peer in self._sessions:
                self._drop_session(peer, *self._sessions[peer])

    def _say_goodbye(self) -> None:
        for client in self._clients.values():
            self._end_thread(client)
        for peer in list(self._sessions):
            self._send(peer, Refused(Refusal.CLOSING.value, "", "the learner is shutting down"))

    def status(self) -> dict[str, Any]:
        """The state of everything, as a JSON document; in the gateway thread."""
        now = time.monotonic()
        return {
            "address": self.address,
            "pub": self.pub_address,
            "pid": os.getpid(),
            "uptime_s": round(time.time() - self._started_at, 3),
            "counters": self._counters.snapshot(),
            "clients": {name: client.report(now) for name, client in self._clients.items()},
        }


def _generation(last: int) -> int:
    return max(last + 1, int(time.time() * 1000))


def _beside(address: Address) -> str:
    """Where the PUB goes when nothing else is said: a free place next to the ROUTER."""
    return address.with_port(0).uri if address.scheme == "tcp" else f"{address.uri}.pub"


def _advertised(pub: str, host: str | None) -> str:
    """The PUB's address as an actor should dial it; a ``*`` stands for the host that the actor dialled."""
    address = Address.parse(pub)
    if address.scheme != "tcp":
        return pub
    return f"tcp://{host or '*'}:{address.port}"
