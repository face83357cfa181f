"""The gateway thread: owner of the ROUTER, the XPUB, one PUSH per learner thread and the PULL they all answer on.

It never blocks: it polls, sends without waiting, and leaves the disk and the learning to others. The actors' side of it is
`Reception`, the ledger's is `Feeder`; what is here is the loop, the learner threads' words, and the subscribers.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, TypeVar, assert_never

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import Ledger, Restored
from rl4sys_zmq.errors import Closed, ProtocolError, Refusal, RL4SysError
from rl4sys_zmq.learner.alarms import SEGMENT_QUARANTINED
from rl4sys_zmq.learner.client import Client, ClientState, new_topic
from rl4sys_zmq.learner.feeding import Feeder
from rl4sys_zmq.learner.inference import PolicyService
from rl4sys_zmq.learner.operator import Operator, OperatorParts
from rl4sys_zmq.learner.publisher import BEACON_TOPIC, WEIGHTS_TOPIC, Publications
from rl4sys_zmq.learner.reception import MAX_MESSAGE_BYTES, Reception
from rl4sys_zmq.learner.recorder import Sink
from rl4sys_zmq.learner.roster import Roster
from rl4sys_zmq.learner.thread import LearnerThread
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.security import AccessList, Authenticator, Authorizer
from rl4sys_zmq.transports import Address, Poller, Socket, TooManyFrames, Wakeup, read_subscription
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import (
    Alarm,
    Checkpointed,
    Command,
    CommandDone,
    DeadLetter,
    Demand,
    Disposed,
    Failed,
    Message,
    Metrics,
    Published,
    Ready,
    ToActor,
    ToLearner,
    ToThread,
    Verdict,
)

__all__ = ["Gateway", "Sink"]

log = logging.getLogger(__name__)

PUB_HWM = 32
BACKLOG_RETRY_S = 0.005
BEACON_S = 1.0
_unique = itertools.count()

T = TypeVar("T")


class Gateway(Worker):
    """The learner's only thread with network sockets.

    Attributes:
        warnings: what its owner found at the start, for the status.
    """

    def __init__(
        self,
        config: LearnerConfig,
        sink: Sink,
        ledger: Ledger,
        restored: Restored | None = None,
        door: Authenticator | None = None,
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
        self.inference_address = ""
        self.warnings: tuple[str, ...] = ()
        self._service: PolicyService | None = None
        self.published = threading.Condition()
        self._config, self._sink = config, sink
        self._counters = Counters()
        self._ledger, self._restored, self._door = ledger, restored, door
        self._guard = Authorizer(door.watcher.access if door is not None else None)
        self._commands: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._commands_lock = threading.Lock()
        self._wakeup = Wakeup()
        self._stopping = threading.Event()
        self._open = threading.Event()
        self._bind_error: RL4SysError | None = None
        self._started_at = time.monotonic()
        self._up = f"inproc://rl4sys-up-{os.getpid()}-{next(_unique)}"
        self._roster = Roster(config, self._up, ledger)
        self._feeder = Feeder(self._roster, ledger, self._counters, sink)
        self._reception = Reception(config, self._roster, ledger, self._guard, self._counters, sink, self.status)
        self._operator = Operator(
            OperatorParts(
                self._roster,
                self._reception,
                self._feeder,
                ledger,
                self._counters,
                sink,
                self.published,
                self.wake,
                self._forget_policy,
                config.idle_client_s,
            )
        )
        self._feeder.heard = self._operator.heard
        self._reception.obey, self._reception.make_room = self._operator.do, self._operator.make_room

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

    def do(self, command: Command) -> Future[CommandDone]:
        """Carries out an operator's command; in the gateway thread."""
        return self._operator.do(command)

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
        for thread in (*self.learner_threads(), *self._operator.errands()):
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
                self._operator.close(Closed("the learner is closed"))  # before a learner thread ends that a command waits for
                for client in self._roster:
                    client.end_thread()
                self._reception.say_goodbye()
                self._drain()
        finally:
            pending = {c.client_id: c.table.pending for c in self._roster if c.table.pending}
            if pending:
                self._sink.event("closed_with_pending_segments", pending=pending)
            for client in self._roster:
                client.end_thread()
            for socket in sockets:
                socket.close()
            if self._service is not None:
                self._service.close()
            self._open.set()
            with self._commands_lock:
                self._stopping.set()
                commands, self._commands = self._commands, []
            closed = Closed("the learner is closed")
            self._feeder.close(closed)
            self._operator.close(closed)
            for _, future in commands:
                future.set_exception(closed)

    def _bind(self, sockets: list[Socket]) -> bool:
        """Makes the sockets; False when an address is taken, which is for the owner to hear."""
        try:
            secure = self._door.secure if self._door is not None else None
            router = Socket.router(self._config.bind, max_frame_bytes=MAX_MESSAGE_BYTES, secure=secure, watch=True)
            self._reception.open(router)
            sockets.append(router)
            pub = self._config.pub or _beside(router.bound, "pub")
            self._xpub = Socket.xpub(pub, hwm=PUB_HWM, secure=secure, grants=True)
            sockets.append(self._xpub)
            config = self._config
            if config.inference is not None:
                inference = _beside(router.bound, "inference") if config.inference == "auto" else config.inference
                self._service = PolicyService(inference, config.keys, config.users_file, insecure=True)
                self._service.start()
            self._upstream = Socket.pull(bind=self._up)
            sockets.append(self._upstream)
            if self._restored is not None:
                self._roster.restore(self._restored)
        except RL4SysError as exc:
            self._bind_error = exc
            return False
        self.pub_address = self._reception.pub_address = self._xpub.bound.uri
        self.inference_address = self._reception.inference_address = self._service.address if self._service is not None else ""
        self.address = router.bound.uri
        return True

    def _loop(self, poller: Poller) -> None:
        next_beacon, resting = time.monotonic(), False
        while not self._stopping.is_set():
            rest_s = self._reception.rest_s
            if resting is not (rest_s > 0):  # what a flood has left in the ROUTER must not end the poll at once
                resting = not resting
                (poller.unregister if resting else poller.register)(self._reception.router)
            poller.poll(self._wait_s(next_beacon, rest_s))
            self._wakeup.clear()
            self._run_commands()
            self._read_upstream()
            self._reception.read()
            self._read_subscriptions()
            self._feeder.dispatch()
            self._operator.turn()
            room_bytes = self._feeder.room_bytes()
            for client in self._roster:
                self._reception.settle(client, room_bytes)
                self._sound(client)
            now = time.monotonic()
            if now >= next_beacon:
                next_beacon = now + BEACON_S
                self._each_second(now)

    def _wait_s(self, next_beacon: float, rest_s: float) -> float:
        """How long to wait for something to happen."""
        now = time.monotonic()
        wait_s = next_beacon - now
        for client in self._roster:
            if client.backlog:
                wait_s = min(wait_s, BACKLOG_RETRY_S)
            if client.dirty:
                wait_s = min(wait_s, client.settles_at - now)
        return max(0.0, min(wait_s, rest_s) if rest_s else wait_s)

    def _run_commands(self) -> None:
        with self._commands_lock:
            commands, self._commands = self._commands, []
        for function, future in commands:
            try:
                future.set_result(function())
            except Exception as exc:  # noqa: BLE001 - handed to the caller
                future.set_exception(exc)

    def _drain(self) -> None:
        """Hears the learner threads out, until they have ended or the time to shut down is over."""
        deadline = time.monotonic() + self._config.shutdown_timeout_s
        with Poller() as poller:
            poller.register(self._upstream)
            while any(t.alive for t in self.learner_threads()) and time.monotonic() < deadline:
                poller.poll(0.02)
                self._read_upstream()
        self._read_upstream()

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
                self._feeder.checkpointed(client, message)
            case DeadLetter():
                self._sink.dead_letter(client.client_id, message)
            case Alarm():
                client.alarms.note(message.name, message.text, message.count)
            case Failed():
                self._on_failed(client, message)
            case ToLearner() | ToActor() | ToThread():
                raise ProtocolError(Refusal.DIRECTION, f"{type(message).__name__} from a learner thread")
            case _:
                assert_never(message)

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

    def _on_published(self, client: Client, message: Published) -> None:
        with self.published:
            out = client.publications.publish(message)
            first, client.state = client.state is not ClientState.RUNNING, ClientState.RUNNING
            self.published.notify_all()
        if first:
            client.known = True
            self._ledger.put_client(client.row())
        self._xpub.send([WEIGHTS_TOPIC + client.topic, *out])
        if self._service is not None and client.spec is not None:
            self._service.offer(client.client_id, client.spec, client.publications.newest)
            if client.client_id in self._service.asked:  # who acts by the service hears of a version by its beacon alone
                self._xpub.send([BEACON_TOPIC + client.topic, *encode(client.beacon())])
        self._reception.admit_waiting(client)

    def _on_disposed(self, client: Client, message: Disposed) -> None:
        stream = client.table.get(message.actor_id, message.origin)
        count = sum(end - first for first, end in message.ranges)
        if message.but:
            count = stream.correct(count, message.verdict, message.but) if stream is not None else count
            client.verdicts[message.but] -= count
        elif stream is not None:
            count = stream.dispose(message.ranges, message.verdict)
        if stream is not None:
            client.dirty.add(stream.actor_id)
        client.verdicts[message.verdict] += count
        if message.verdict == Verdict.QUARANTINED:
            text = f"{message.reason or 'no reason given'} (actor {message.actor_id})"
            client.alarms.note(SEGMENT_QUARANTINED, text, sum(end - first for first, end in message.ranges))

    def _on_failed(self, client: Client, message: Failed) -> None:
        with self.published:
            stillborn = self._roster.fail(client, message)
            self.published.notify_all()
        self._counters.add("clients_failed")
        self._sink.event("client_failed", client_id=client.client_id, error=message.error)
        peers = [client.table.peer_of(s) for s in client.table.live()]
        for peer in (*peers, *client.waiting):
            if peer is not None:
                self._reception.refuse(peer, Refusal.CONFIG if stillborn else Refusal.FAILED, message.error)
        client.waiting.clear()
        self._feeder.give_up(client, message.error)

    def _sound(self, client: Client) -> None:
        """Says a client's alarms in the log, and to its actors, if they are due."""
        for alarm in client.alarms.due():
            log.warning("client %s: alarm %s (%d so far): %s", client.client_id, alarm.name, alarm.count, alarm.text)
            fields = {"client_id": client.client_id, "alarm": alarm.name, "count": alarm.count, "text": alarm.text}
            self._sink.event("alarm", **fields)
            if client.state is ClientState.RUNNING:
                self._xpub.send([BEACON_TOPIC + client.topic, *encode(client.beacon())])

    def _forget_policy(self, client_id: str) -> None:
        if self._service is not None:
            self._service.forget(client_id)

    def relieve(self, *, everybody: bool) -> int:
        """Ends connections because memory runs out; returns how many; in the gateway thread. See `Reception.relieve`."""
        return self._reception.relieve(everybody=everybody)

    def save(self, *, partial: bool) -> Future[dict[str, str]]:
        """See `Feeder.save`; in the gateway thread."""
        return self._feeder.save(partial=partial)

    # ---- the clock, and subscribers

    def _each_second(self, now: float) -> None:
        self._reception.each_second(now)
        self._feeder.relieve()
        self._feeder.check(now)
        self._hide_from(self._guard.lapsed(time.time()))
        self._operator.expire(now)
        for event in self._reception.router.events():
            self._counters.add(f"connections.{event.name}")
        for client in self._roster:
            if client.is_wanted:
                client.busy_at = now
            if client.gone:
                self._read_upstream()  # its last words, if there are any
                if client.state is not ClientState.FAILED:
                    self._on_failed(client, Failed("its learner thread ended without a word; see the learner's log", ""))
                continue
            if client.state is ClientState.RUNNING:
                self._xpub.send([BEACON_TOPIC + client.topic, *encode(client.beacon())])
            for stream in client.table.silent(now):
                peer = client.table.peer_of(stream)
                if peer is not None:
                    self._reception.hang_up(peer, client, stream)
                    self._sink.event("actor_silent", client_id=client.client_id, actor_id=stream.actor_id)
            client.dirty.update(s.actor_id for s in client.table.live())
            self._feeder.expire(client, now)

    def _read_subscriptions(self) -> None:
        """A new subscriber gets a beacon at once: what was published before it was there is invisible to it."""
        while True:
            try:
                frames = self._xpub.recv()
            except TooManyFrames as exc:
                self._counters.add(f"refused.{exc.code.value}")
                continue
            if frames is None:
                return
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
                self._xpub.send([topic, *encode(client.beacon())])

    def change_access(self, access: AccessList) -> None:
        """Put a new access list in force; in the gateway thread.

        Whoever has lost the right to read a policy may still be subscribed to it, and libzmq can't take that back: the policy
        gets another topic, which its actors learn in a new handshake.
        """
        losers = self._guard.replace(access)
        self._hide_from(losers)
        self._sink.event("access_changed", listed=len(access.by_name), lost_rights=sorted(losers))

    def _hide_from(self, losers: set[str]) -> None:
        for client in self._roster if losers else ():
            client.topic = new_topic()
            self._reception.dismiss(client, "the rights have changed: say HELLO again")

    def status(self) -> dict[str, Any]:
        """The state of everything, as a JSON document; in the gateway thread."""
        now = time.monotonic()
        return {
            "address": self.address,
            "pub": self.pub_address,
            "inference": self._service.report() if self._service is not None else {},
            "advertise": self._config.advertise,
            "pid": os.getpid(),
            "uptime_s": round(now - self._started_at, 3),
            "counters": self._counters.snapshot(),
            "security": self._door.report() if self._door is not None else None,
            "warnings": list(self.warnings),
            "ledger": asdict(self._ledger.state()),
            "clients": {client.client_id: client.report(now) for client in self._roster},
        }


def _beside(address: Address, name: str) -> str:
    """Where another socket goes when nothing else is said: a free place next to the ROUTER."""
    return address.with_port(0).uri if address.scheme == "tcp" else f"{address.uri}.{name}"
