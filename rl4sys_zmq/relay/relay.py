"""The relay: its thread with the sockets, ROUTER and XPUB for the children, DEALER and SUB towards the upstream."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, Self

from rl4sys_zmq.config import RelayConfig
from rl4sys_zmq.errors import Closed, LearnerUnavailable, RL4SysError
from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.liveness import BUSY_CONNECTION_S, IDLE_CONNECTION_S
from rl4sys_zmq.memory_watch import MemoryLimitThread
from rl4sys_zmq.relay.core import MAX_REQUEST_BYTES, RelayCallbacks, RelayCore
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.security.access import AccessList
from rl4sys_zmq.security.authenticator import Authenticator
from rl4sys_zmq.security.authorizer import Authorizer
from rl4sys_zmq.security.keys import curve_client, read_user_keys
from rl4sys_zmq.transports import (
    MAX_FRAMES,
    Address,
    ConnectionLimitThread,
    Poller,
    SendResult,
    Socket,
    ThreadCallQueue,
    TooManyFrames,
    explain,
    subscribed_topics,
)
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire.messages import Frame

PUB_HWM = 32
"""Largest number of publications that wait for a child. A slow child loses further ones, and then fetches the weights."""
REPLY_HWM, REQUEST_HWM = 4, 16
"""Limits for each child: on the replies that wait for it, and on the requests that wait for the relay."""
SUB_HWM = 64
BURST = 256
"""Largest number of messages that are read from one socket in a row, so that no socket keeps the others waiting."""
MAX_WAIT_S = 1.0
TIDY_S = 5.0
"""The interval between two searches for connections of children that complete no message."""


class RelayThread(Worker):
    """The thread of a relay, which uses the sockets and runs the `RelayCore`."""

    def __init__(self, config: RelayConfig, authenticator: Authenticator | None) -> None:
        """Create the sockets, which the thread then adopts."""
        super().__init__("rl4sys-relay")
        self._config, self._authenticator = config, authenticator
        self._upstream = Address.parse(config.upstream)
        keys = config.upstream_keys
        self._secure_upstream = curve_client(read_user_keys(keys)[1]) if keys is not None else None
        self._calls = ThreadCallQueue("relay")
        self._started_at = time.monotonic()
        self._sub: Socket | None = None
        self._poller = Poller()
        self._sockets: list[Socket] = []
        self._heard_at: dict[int, float] = {}  # the last complete message of each connection of the ROUTER, by descriptor
        self._tidy_at = 0.0
        authorizer = Authorizer(authenticator.watcher.access if authenticator is not None else None)
        callbacks = RelayCallbacks(
            send=self._send,
            cut=self._cut,
            publish=self._publish,
            ask=self._ask,
            listen=self._listen,
            subscribe=self._subscribe,
            unsubscribe=self._unsubscribe,
            redial=self._redial,
            status=self._report,
        )
        self.core = RelayCore(config, authorizer, callbacks)
        self._limit = ConnectionLimitThread(self.core.counters)
        try:
            self._bind()
        except BaseException:
            self.release()
            raise

    def stop(self) -> None:
        self._calls.stop()

    def release(self) -> None:
        """Close what the thread leaves open: now, or at its end if it still runs. Call `stop` first."""
        if self.ident is None:  # it never ran
            self._close()
        self._calls.release(alive=self.alive)

    def run(self) -> None:
        try:
            for socket in self._sockets:
                socket.adopt()
            self._limit.start()
            self._loop()
        finally:
            self._limit.stop()
            self._limit.join()
            self._close()

    def _close(self) -> None:
        self._poller.close()
        for socket in self._sockets:
            socket.close()
        self._calls.refuse_all()

    def _bind(self) -> None:
        config, core = self._config, self.core
        secure = self._authenticator.secure if self._authenticator is not None else None
        self._router = self._add(
            Socket.router(config.bind, send_hwm=REPLY_HWM, recv_hwm=REQUEST_HWM, max_frame_bytes=MAX_REQUEST_BYTES, secure=secure)
        )
        bound = self._router.bound
        beside = bound.with_port(0).uri if bound.scheme == "tcp" else f"{bound.uri}.pub"
        self._xpub = self._add(Socket.xpub(config.pub or beside, hwm=PUB_HWM, secure=secure, grants=True))
        self._dealer = self._add(Socket.dealer(self._upstream, secure=self._secure_upstream, watch=True))
        self._poller.register(self._calls.wakeup)
        pub = self._xpub.bound
        self.address, self.pub_address = bound.uri, pub.uri
        core.address = f"tcp://{config.advertise}:{bound.port}" if config.advertise and bound.scheme == "tcp" else bound.uri
        core.pub = f"tcp://{config.advertise or '*'}:{pub.port}" if pub.scheme == "tcp" else pub.uri

    def _add(self, socket: Socket) -> Socket:
        self._sockets.append(socket)
        self._poller.register(socket)
        return socket

    def _remove(self, socket: Socket) -> None:
        self._poller.unregister(socket)
        self._sockets.remove(socket)
        socket.close()

    def _loop(self) -> None:
        core = self.core
        while not self._calls.stopping:
            self._poller.poll(min(MAX_WAIT_S, max(0.0, core.next_deadline() - time.monotonic())))
            self._calls.serve()
            for frames in self._received(self._sub):
                core.on_published(frames, time.monotonic())
            for frames in self._received(self._dealer, MAX_MESSAGE_FRAMES):
                core.on_upstream(frames, time.monotonic())
            self._read_children()
            self._read_subscriptions()
            now = time.monotonic()
            core.tick(now, time.time(), self._read_events())
            if now >= self._tidy_at:
                self._tidy_at = now + TIDY_S
                self._limit.raise_if_dead()
                self._cut_all(self._silent_connections(now, IDLE_CONNECTION_S))

    def _received(self, socket: Socket | None, max_frames: int = MAX_FRAMES) -> Iterator[list[Frame]]:
        """Yield the waiting messages, at most 256. A message with too many frames is only counted."""
        if socket is None:
            return
        for _ in range(BURST):
            try:
                frames = socket.recv(max_frames)
            except TooManyFrames as exc:
                self.core.counters.add(f"refused.{exc.code.value}")
                continue
            if frames is None:
                return
            yield frames

    def _read_children(self) -> None:
        for frames in self._received(self._router):
            now = self._heard_at[self._router.descriptor()] = time.monotonic()
            key = self._router.user if self._router.authenticated else None
            self.core.on_child(bytes(frames[0]), key, frames[1:], now)

    def _read_subscriptions(self) -> None:
        """Accept new subscriptions of children that may read the weights."""
        for topic in subscribed_topics(self._xpub, self.core.counters, BURST):
            if self.core.may_subscribe(topic, self._xpub.user if self._xpub.authenticated else None):
                self._xpub.grant(topic)

    def _read_events(self) -> str:
        """Return the reason for which the connection to the upstream fails, as text; empty if there is none."""
        problem = ""
        for event in self._dealer.events():
            if event.is_failure:
                self.core.counters.add(f"connections.{event.name}")
                problem = explain(event, "actor")
        return problem

    def _silent_connections(self, now: float, silent_s: float) -> list[int]:
        """Return the children's connections that have completed no message for `silent_s` seconds."""
        self._heard_at = {fd: self._heard_at.get(fd, now) for fd in self._router.connections()}
        return [fd for fd, heard_at in self._heard_at.items() if now - heard_at >= silent_s]

    def _cut_all(self, descriptors: Sequence[int]) -> int:
        count = sum(self._router.cut(fd) for fd in descriptors)
        if count:
            self.core.counters.add("connections.cut", count)
        return count

    def _send(self, peer: bytes, frames: Sequence[Frame]) -> SendResult:
        return self._router.send([peer, *frames])

    def _cut(self) -> bool:
        return self._router.cut_off()

    def _publish(self, topic: bytes, frames: Sequence[Frame]) -> None:
        self._xpub.send([topic, *frames])

    def _ask(self, frames: Sequence[Frame]) -> None:
        if not self._dealer.send(frames):
            self.core.counters.add("sends_refused.full")  # the core repeats its requests

    def _listen(self, pub: str, topics: Sequence[bytes]) -> None:
        if self._sub is not None:
            self._remove(self._sub)
            self._sub = None
        try:
            address = Address.parse(pub).seen_from(self._upstream)
            self._sub = self._add(Socket.sub(address, hwm=SUB_HWM, secure=self._secure_upstream))
        except RL4SysError:  # an address that this machine cannot reach; the core tries again
            self.core.counters.add("refused.pub")
            return
        for topic in topics:
            self._sub.subscribe(topic)

    def _subscribe(self, topic: bytes) -> None:
        if self._sub is not None:
            self._sub.subscribe(topic)

    def _unsubscribe(self, topic: bytes) -> None:
        if self._sub is not None:
            self._sub.unsubscribe(topic)

    def _redial(self) -> None:
        self._remove(self._dealer)
        self._dealer = self._add(Socket.dealer(self._upstream, secure=self._secure_upstream, watch=True))

    def relieve(self, all_connections: bool) -> int:
        """Close connections to free memory, and return their number; 0 if the thread does not answer in time. Any thread can
        call this.
        """
        try:
            return self._calls.call(lambda: self._relieve(all_connections)).result(RELIEF_S)
        except FutureTimeout:
            return 0

    def change_access(self, access: AccessList) -> None:
        """Apply a new access list soon. Any thread can call this."""
        with suppress(Closed):
            self._calls.call(lambda: self.core.change_access(access))

    def status(self) -> dict[str, Any]:
        """Return the relay's status as a JSON document. Any thread but the relay's can call this."""
        try:
            return self._calls.call(self._report).result(CALL_TIMEOUT_S)
        except FutureTimeout:
            raise LearnerUnavailable(self.address, "the relay's thread", CALL_TIMEOUT_S) from None

    def _relieve(self, all_connections: bool) -> int:
        """Close connections of children to free the memory of incomplete messages, and return how many were closed."""
        if not all_connections:
            return self._cut_all(self._silent_connections(time.monotonic(), BUSY_CONNECTION_S))
        return self._cut_all(self._router.connections()) + sum(self._xpub.cut(fd) for fd in self._xpub.connections())

    def _report(self) -> dict[str, Any]:
        now = time.monotonic()
        return {
            "relay": True,
            "address": self.address,
            "pub": self.pub_address,
            "version": package_version(),
            "pid": os.getpid(),
            "uptime_s": round(now - self._started_at, 3),
            "security": self._authenticator.report() if self._authenticator is not None else None,
            **self.core.report(now),
        }


CALL_TIMEOUT_S = 5.0
JOIN_S = 5.0
RELIEF_S = 2.0


class Relay(Resource):
    """A relay: it takes the weights of policies from a learner or another relay, verifies them, and passes them on.

    The relay follows a client when the first child asks for the client, and drops it when no child asks any more. Use the relay
    as a context manager, or call `start` and `close`.
    """

    def __init__(self, config: RelayConfig) -> None:
        self.config = config
        self._thread: RelayThread | None = None
        self._authenticator: Authenticator | None = None
        self._memory: MemoryLimitThread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def start(self) -> Self:
        """Bind the sockets and start the thread. The upstream can start later.

        Raises:
            AddressInUse: If another socket is bound to the address.
            TransportError: If the address cannot be bound.
            ConfigError: If the keys or the access list cannot be used.
            Closed: If this relay was closed before.
        """
        with self._lock:
            if self._closed:
                raise Closed("this relay is closed; create a new one")
            if self._thread is not None:
                return self
            config = self.config
            try:
                if config.keys is not None:
                    self._authenticator = Authenticator(config.keys, config.users_file)
                self._thread = RelayThread(config, self._authenticator)
                self._thread.start()
                if self._authenticator is not None:
                    self._authenticator.open(self._thread.change_access)
                if config.max_memory_bytes is not None:
                    self._memory = MemoryLimitThread(config.max_memory_bytes, self._thread.relieve, self._thread.stop)
                    self._memory.start()
            except BaseException:
                self._end()
                raise
        return self

    def __enter__(self) -> Self:
        return self.start()

    @property
    def address(self) -> str:
        """The URI that children connect to. If the configured port is 0, this has the port that the system chose."""
        return self._running.address

    @property
    def pub_address(self) -> str:
        """The URI of the socket that publishes the weights."""
        return self._running.pub_address

    def status(self) -> dict[str, Any]:
        """Return the state of the relay as a JSON document: its upstream, its clients and its counters.

        Raises:
            LearnerUnavailable: If the relay's thread does not answer within 5 s.
            Closed: If the relay is not running.
        """
        return self._running.status()

    def raise_if_dead(self) -> None:
        """Raise the exception that ended one of the relay's threads. Do nothing if all threads run.

        Raises:
            MemoryExceeded: If the process uses more than `RelayConfig.max_memory_bytes` and closing connections did not help.
            WorkerDied: If another thread ended with an exception.
        """
        self._running.raise_if_dead()
        if self._memory is not None:
            self._memory.raise_if_dead()
        if self._authenticator is not None:
            self._authenticator.raise_if_dead()

    def close(self) -> None:
        """End the thread and close the sockets. The children use another relay or the learner. A second call does nothing."""
        with self._lock:
            self._closed = True
            self._end()

    @property
    def _running(self) -> RelayThread:
        thread = self._thread
        if thread is None:
            raise Closed("this relay is not running; call start")
        return thread

    def _end(self) -> None:
        thread, authenticator, memory = self._thread, self._authenticator, self._memory
        self._thread = self._authenticator = self._memory = None
        try:
            if memory is not None:
                memory.stop()
            if thread is not None:
                thread.stop()
                if thread.join(JOIN_S):
                    thread.release()
            if memory is not None:
                memory.join(RELIEF_S)
        finally:
            if authenticator is not None:
                authenticator.close()
