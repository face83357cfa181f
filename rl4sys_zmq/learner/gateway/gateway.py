"""The gateway thread and its sockets: a ROUTER for actors, an XPUB for weights and beacons, and PULLs for learner threads.

It never blocks in a send and never accesses a disk.
"""

from __future__ import annotations

import itertools
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from rl4sys_zmq.child_process import start_error_text
from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.delivery.journal import JournalContent
from rl4sys_zmq.delivery.weight_history import WeightHistory
from rl4sys_zmq.errors import Closed, RL4SysError, TransportError
from rl4sys_zmq.interfaces import Engine, EventSink, Journal, WorkerHandle
from rl4sys_zmq.learner.engines.base import ENGINES, GatewayEndpoints, WorkerAssignment
from rl4sys_zmq.learner.engines.checkpoint_thread import AbandonCheckpointsThread
from rl4sys_zmq.learner.engines.worker_link import RemoteWorkerLinks
from rl4sys_zmq.learner.gateway.actor_sessions import MAX_MESSAGE_BYTES
from rl4sys_zmq.learner.gateway.client import ClientState, LearnerThreadState
from rl4sys_zmq.learner.gateway.connections import RouterReader
from rl4sys_zmq.learner.gateway.core import LearnerCore
from rl4sys_zmq.learner.gateway.core_callbacks import CoreCallbacks
from rl4sys_zmq.learner.gateway.evaluators import PolicyEvaluators
from rl4sys_zmq.learner.gateway.inference import InferenceService
from rl4sys_zmq.learner.run.history import HistorySink
from rl4sys_zmq.limits import MAX_REPORT_FRAMES, NO_FRAME_LIMIT
from rl4sys_zmq.liveness import BEACON_S, SilenceTimer
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.machine import Usage
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.security.access import AccessList
from rl4sys_zmq.security.authenticator import Authenticator
from rl4sys_zmq.security.authorizer import Authorizer
from rl4sys_zmq.transports import Address, ConnectionLimitThread, Poller, Socket, ThreadCallQueue, subscribed_topics
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire.thread_messages import AssignClient

log = get_logger(__name__)

PUB_HWM = 32
LAST_MESSAGES_S = 0.05
"""Time without a message after which all messages of workers that have ended count as read, in seconds."""

LAST_REQUESTS_S = 0.5
"""Shortest time that the thread of checkpoints has for its last requests when the learner closes, in seconds."""

RELIEF_S = 1.0
"""Longest time for the closing of connections while memory runs out, in seconds."""

_unique = itertools.count()

T = TypeVar("T")


class Gateway(Worker):
    """The learner's network thread, which uses the sockets and runs the `LearnerCore`.

    Attributes:
        core: The logic of the learner. Other threads use it through `call`.
        address: The URI that actors connect to; empty until the sockets are bound.
        pub_address: The URI at which weights are published; empty until the sockets are bound.
        inference_address: The URI of the inference service; empty if it is not configured.
        published: A condition variable that is notified when clients or policy versions change. Another thread must hold it to
            read them.
        warnings: The warnings from the start of the learner, for the status.
        rolled_back: The client that an operator has returned to an earlier checkpoint; empty for none. Set this before `start`.
    """

    def __init__(
        self,
        config: LearnerConfig,
        sink: EventSink,
        history: HistorySink,
        journal: Journal,
        restored: JournalContent | None,
        authenticator: Authenticator | None,
    ) -> None:
        super().__init__("rl4sys-gateway")
        self.address = ""
        self.pub_address = ""
        self.inference_address = ""
        self.warnings: tuple[str, ...] = ()
        self.rolled_back = ""
        self._service: InferenceService | None = None
        self._config, self._restored, self._authenticator = config, restored, authenticator
        self._authorizer = Authorizer(authenticator.watcher.access if authenticator is not None else None)
        self._calls = ThreadCallQueue("learner")
        self._open = threading.Event()
        self._bind_error: RL4SysError | None = None
        self._started_at, self._started_unix_s = time.monotonic(), round(time.time(), 6)
        self._up = f"inproc://rl4sys-up-{os.getpid()}-{next(_unique)}"
        self._sockets: list[Socket] = []
        self._upstreams: list[Socket] = []
        self._poller = Poller()
        self._engines: dict[str, Engine] = {}
        self._abandoning: list[AbandonCheckpointsThread] = []
        callbacks = CoreCallbacks(
            monotonic=time.monotonic,
            unix=time.time,
            send=lambda peer, frames: self._router.send([peer, *frames]),
            publish=lambda topic, frames: self._xpub.send([topic, *frames]),
            start_worker=self._start_worker,
            poll_workers=self._read_upstream,
            abandon_checkpoints=self._abandon_checkpoints,
            offer_policy=self._offer_policy,
            forget_policy=self._forget_policy,
            status=self.status,
            history=history.since,
            sender_host=self._sender_host,
        )
        self.core = LearnerCore(config, journal, sink, self._authorizer, callbacks)
        self._evaluators = PolicyEvaluators(config, sink, self.core.registry.get, self.call)
        self._limit = ConnectionLimitThread(self.core.counters)
        self._remote = RemoteWorkerLinks(self.core.counters, self._poller, self.wake)
        self.published = self.core.registry.published

    def wait_open(self) -> None:
        """Wait until the sockets are bound, and until all engines can start workers."""
        self._open.wait()
        if self._bind_error is not None:
            raise self._bind_error
        if not self.address:
            self.join()  # the error is stored at the end of the thread
            self.raise_if_dead()
        for engine in list(self._engines.values()):
            engine.wait_ready()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function in the gateway thread, and return a future for the result. Any thread can call this."""
        return self._calls.call(function)

    def wake(self) -> None:
        """Wake the gateway thread, for example because the journal has results. Any thread can call this."""
        self._calls.wakeup.set()

    def weight_history(self, client_id: str) -> WeightHistory | None:
        """Return the recent weights of a client; None before its learner thread is ready. Hold `published` to call this."""
        client = self.core.registry.get(client_id)
        if client is None or client.state is LearnerThreadState.STARTING:
            return None
        return client.publishing.history

    def stop(self) -> None:
        """Ask the gateway thread and its learner threads to end."""
        self._calls.stop()

    def on_death(self, error: BaseException) -> None:
        """Release the threads in `wait_open`."""
        self._open.set()

    def join_all(self, deadline: float) -> bool:
        """Wait for the end of the gateway thread and its learner threads. Return True if all have ended.

        Workers that are processes and still run at the deadline are killed.
        """

        def left_s() -> float:
            return max(0.0, deadline - time.monotonic())

        done = self.join(left_s())
        for worker in self.core.registry.workers():
            done &= worker.join(left_s()) or worker.abort()
        for thread in (*self._evaluators.threads, *self._abandoning):
            done &= thread.join(left_s())
        if not self.alive:
            done &= self._remote.join(max(LAST_REQUESTS_S, left_s()))
            for engine in self._engines.values():
                engine.close()
        self._calls.release(alive=self.alive)
        return done

    def run(self) -> None:
        """Run the thread's loop until `stop`."""
        try:
            if self._bind():
                self._poller.register(self._calls.wakeup)
                self._limit.start()
                self._open.set()
                self._loop()
                for thread in self._abandoning:  # first: a command fails now, and its checkpoints stay
                    thread.stop()
                self.core.close_sessions(self._calls.closed())
                self._drain()
        finally:
            self._limit.stop()
            self._limit.join()
            self._evaluators.stop()
            for thread in self._abandoning:
                thread.stop()
            self.core.close(self._calls.closed())
            self._remote.close()
            self._poller.close()
            for socket in self._sockets:
                socket.close()
            if self._service is not None:
                self._service.close()
            self._open.set()
            self._calls.refuse_all()

    def _bind(self) -> bool:
        """Create the sockets, and restore the clients of an earlier run. Return False if `wait_open` has to raise an error."""
        config = self._config
        try:
            secure = self._authenticator.secure if self._authenticator is not None else None
            router = self._router = self._own(
                Socket.router(config.bind, max_frame_bytes=MAX_MESSAGE_BYTES, secure=secure, watch=True)
            )
            self._connections = RouterReader(config, router, self.core.actor_sessions, self.core.counters)
            pub = config.pub or _beside(router.bound, "pub")
            self._xpub = self._own(Socket.xpub(pub, hwm=PUB_HWM, secure=secure, grants=True))
            if config.inference is not None:
                inference = _beside(router.bound, "inference") if config.inference == "auto" else config.inference
                self._service = InferenceService(inference, config.keys, config.users_file, insecure=True)
                self._service.start()
            self._listen(self._up)
            resumed = [row.client_id for row in self._restored.clients] if self._restored is not None else []
            endpoints = GatewayEndpoints(
                config=config, resumed=resumed, up=self._up, listen=self._listen, connect_worker=self._remote.open
            )
            for entry in map(ENGINES.get, config.engines):
                self._engines[entry.name] = entry.factory(endpoints)
            if self._restored is not None:
                self.core.restore(self._restored, self.rolled_back)
        except RL4SysError as exc:
            self._bind_error = exc
            return False
        sessions = self.core.actor_sessions
        self.pub_address = self._xpub.bound.uri
        sessions.pub_address = _advertised(self._xpub.bound, config.advertise)
        if self._service is not None:
            self.inference_address = self._service.address
            sessions.inference_address = _advertised(Address.parse(self._service.address), config.advertise)
        self.address = router.bound.uri
        return True

    def _loop(self) -> None:
        beacon, resting = SilenceTimer(BEACON_S, time.monotonic() - BEACON_S), False
        while not self._calls.stopping:
            rest_s = self._connections.rest_s
            if resting is not (rest_s > 0):  # during a rest, messages that wait in the ROUTER must not end the poll
                resting = not resting
                (self._poller.unregister if resting else self._poller.register)(self._router)
            now = time.monotonic()
            wait_s = self.core.poll_timeout_s(now, beacon.deadline - now)
            self._poller.poll(min(wait_s, rest_s) if rest_s else wait_s)
            self._calls.serve()
            self._read_upstream()
            self._connections.read_messages()
            self._read_subscriptions()
            self.core.dispatcher.dispatch()
            self.core.turn()
            now = time.monotonic()
            if beacon.expired(now):
                beacon.restart(now)
                self._limit.raise_if_dead()
                self._remote.each_second()
                self._connections.each_second(now)
                self.core.each_second(now, self._connections.behind_s(now))

    def _drain(self) -> None:
        """Read the last messages of the learner threads, until all have ended or ``shutdown_timeout_s`` seconds are over."""
        now = time.monotonic()
        deadline, beacon = now + self._config.shutdown_timeout_s, SilenceTimer(BEACON_S, now - BEACON_S)
        with Poller() as poller:
            for upstream in self._upstreams:
                poller.register(upstream)
            while any(worker.alive for worker in self.core.registry.workers()) and (now := time.monotonic()) < deadline:
                poller.poll(0.02)  # workers on other machines are not in this poller
                self._read_upstream()
                if beacon.expired(now):
                    beacon.restart(now)
                    self._remote.each_second()
            if len(self._upstreams) > 1:  # the last messages of an ended process can still be on their way
                while poller.poll(LAST_MESSAGES_S) and time.monotonic() < deadline:
                    self._read_upstream()
        self._read_upstream()

    def _read_upstream(self) -> None:
        for upstream in self._upstreams:
            while (frames := upstream.recv(MAX_REPORT_FRAMES)) is not None:
                self.core.on_worker(frames)
        for frames in self._remote.serve():
            self.core.on_worker(frames)

    def _listen(self, address: str) -> str:
        """Bind a further PULL socket for the messages of learner threads, and return the bound address."""
        upstream = self._own(Socket.pull(bind=address, max_frame_bytes=NO_FRAME_LIMIT))
        self._upstreams.append(upstream)
        return upstream.bound.uri

    def _own(self, socket: Socket) -> Socket:
        self._sockets.append(socket)
        self._poller.register(socket)
        return socket

    def _read_subscriptions(self) -> None:
        """Accept new subscriptions to weights and beacons, if the subscriber has the right to read the weights."""
        for topic in subscribed_topics(self._xpub, self.core.counters):
            client = self.core.client_of_topic(topic)
            if client is None or (self._xpub.authenticated and not self._authorizer.may_read(self._xpub.user, client.client_id)):
                self.core.counters.add("subscriptions_refused")
                continue
            self._xpub.grant(topic)
            self.core.on_subscribed(client, topic)

    def _start_worker(self, assign: AssignClient, key: bytes) -> WorkerHandle:
        client_id = assign.client_id
        entry = ENGINES.get(self._config.client(client_id).engine or self._config.engine)
        engine = self._engines[entry.name]

        def ended() -> None:
            with suppress(Closed):  # the learner is closing, and looks itself
                self.call(lambda: self.core.on_worker_ended(key))

        assignment = WorkerAssignment(client_id=client_id, key=key, engine=entry.name, assign=assign, ended=ended)
        try:
            return engine.start(assignment)
        except RL4SysError:
            raise
        except Exception as exc:  # an error of an engine, or of the system, costs one client and not the learner
            log.exception("client %s: its engine %s cannot start a worker", client_id, entry.name)
            raise TransportError(f"engine {entry.name}: {start_error_text(exc)}") from exc

    def _sender_host(self) -> str:
        return self._router.sender_host()

    def _abandon_checkpoints(self, client_id: str, workers: Sequence[WorkerHandle], folder: str) -> Future[int]:
        thread = AbandonCheckpointsThread(client_id, workers, Path(folder), self.wake)
        self._abandoning = [*(other for other in self._abandoning if other.alive), thread]
        try:
            thread.start()
        except RuntimeError as exc:
            thread.count.set_exception(TransportError(start_error_text(exc)))
        return thread.count

    def _offer_policy(self, client: ClientState) -> bool:
        spec, newest = client.publishing.spec, client.publishing.history.newest
        assert spec is not None  # a version follows the description of the policy
        self._evaluators.publish(client)
        if self._service is None:
            return False
        self._service.offer(client.client_id, spec, newest)
        return client.client_id in self._service.asked

    def _forget_policy(self, client_id: str) -> None:
        self._evaluators.forget(client_id)
        if self._service is not None:
            self._service.forget(client_id)

    def relieve(self, all_connections: bool) -> int:
        """Close connections because memory runs out, and return their number; 0 if the thread does not answer in time.

        Any thread can call this.
        """

        def cut() -> int:
            count = self._connections.relieve(all_connections=all_connections)
            # A subscriber can send one message and then nothing, so its silence says nothing about an incomplete message.
            return count + (sum(self._xpub.cut(fd) for fd in self._xpub.connections()) if all_connections else 0)

        try:
            return self.call(cut).result(RELIEF_S)
        except FutureTimeout:
            return 0

    def change_access(self, access: AccessList) -> None:
        """Apply a new access list. Any thread can call this."""
        with suppress(Closed):
            self.call(lambda: self.core.change_access(access))

    def note_system(self, usages: Mapping[int, Usage], clients: Mapping[int, str]) -> Future[Mapping[int, str]]:
        """Record the figures of this process and of its workers, and return the worker processes of now, with their clients."""

        def note() -> Mapping[int, str]:
            self.core.system.note_own(usages, clients)
            described = {c.client_id: c.worker.handle.describe() for c in self.core.registry if c.worker.handle is not None}
            own = platform.node()
            return {d["pid"]: name for name, d in described.items() if d.get("pid") and d.get("host", own) == own}

        return self.call(note)

    def status(self) -> dict[str, Any]:
        """Return the learner's status as a JSON document."""
        now = time.monotonic()
        report = self.core.report(now)
        for client_id, client in report["clients"].items():
            client["evaluator"] = self._evaluators.report(client_id)
        return {
            "address": self.address,
            "pub": self.pub_address,
            "inference": self._service.report() if self._service is not None else {},
            "advertise": self._config.advertise,
            "version": package_version(),
            "pid": os.getpid(),
            "started_unix_s": self._started_unix_s,
            "uptime_s": round(now - self._started_at, 3),
            "counters": self.core.counters.snapshot(),
            "security": self._authenticator.report() if self._authenticator is not None else None,
            "warnings": list(self.warnings),
            **report,
        }


def _beside(address: Address, name: str) -> str:
    """Return the default address of the socket `name`, such as that for weights, next to the ROUTER's `address`."""
    return address.with_port(0).uri if address.scheme == "tcp" else f"{address.uri}.{name}"


def _advertised(address: Address, host: str | None) -> str:
    """Return the URI for actors: with `host`, or with ``*``, which stands for the host that the actor connected to."""
    return f"tcp://{host or '*'}:{address.port}" if address.scheme == "tcp" else address.uri
