"""A client of a service: `call` and wait, `submit` for a future, `acall` to await, `subscribe` to hear.

`call` does all of its work in the calling thread, over a connection (a *line*) that no other thread uses meanwhile, because a
change of threads would cost as much as the network: lines are kept in a pool, and a thread that finds none makes one. `submit`,
`acall` and `subscribe` share one thread of the client (`rl4sys_zmq.rpc.caller_thread`), which starts with the first of them.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from numbers import Real
from pathlib import Path
from typing import Any

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallTimeout, Closed, ConfigError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc.caller_thread import CallerThread, Subscription
from rl4sys_zmq.rpc.session import HELLO, Session
from rl4sys_zmq.security import curve_client, read_user_keys
from rl4sys_zmq.transports import Address, Secure, SendResult, Socket, TooManyFrames
from rl4sys_zmq.wire.rpc import Call, check_topic, encode_call
from rl4sys_zmq.wire.trees import MAX_TREE_FRAMES, Tree

__all__ = ["Caller"]

TIMEOUT_S = 10.0
LOOK_S = 0.5
"""How often a call that waits looks whether the client was closed, in seconds."""
MAX_TIMEOUT_S = 86_400.0


class _Connection(Resource):
    """One connection, used by one thread at a time. It is dialled when it is needed."""

    def __init__(self, address: Address, session: Session, secure: Secure | None) -> None:
        self._address, self._secure = address, secure
        self.session = session
        self._socket: Socket | None = None

    def call(self, method: str, payload: Tree, timeout_s: float, once: bool, closed: threading.Event) -> Tree:
        session, socket = self.session, self._dialled()
        now = time.monotonic()
        pending = session.begin(method, payload, now, timeout_s, once=bool(once))
        try:
            while not pending.done:
                if closed.is_set():
                    raise Closed(f"the client of {self._address.uri} was closed during {method}")
                if session.silent(now):
                    self.close_connection()
                    socket = self._dialled()
                for due in session.due(now):
                    if socket.send(due.frames) is SendResult.FULL:
                        session.not_sent(due, now)
                try:
                    frames = socket.recv_wait(min(session.wait_s(now), LOOK_S), MAX_TREE_FRAMES + 2)
                except TooManyFrames:
                    frames = []
                now = time.monotonic()
                if frames is not None:
                    session.take(frames, now)
                else:
                    session.expire(now)
        finally:
            if not pending.done:  # Ctrl-C, or the client was closed: it must not be said again with the line's next call
                session.end(pending, Closed(f"the wait for {method} was ended"))
                self.close_connection()
        if pending.error is None:
            return pending.answer
        if isinstance(pending.error, CallTimeout):
            self.close_connection()
        raise pending.error

    def close_connection(self) -> None:
        """What the connection may still have queued must not reach a server that comes later."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.adopt()
        self.close_connection()

    def _dialled(self) -> Socket:
        """The connection, as the calling thread's."""
        if self._socket is None:
            self._socket = Socket.dealer(self._address, secure=self._secure)
        else:
            self._socket.adopt()
        return self._socket


class Caller(Resource):
    """Calls one server. Any thread may use it, several at a time.

    Attributes:
        counters: see `Session`, and ``calls``, ``notices``, ``skipped`` (notices that a newer one overtook).
    """

    def __init__(
        self,
        address: Address | str,
        *,
        timeout_s: float = TIMEOUT_S,
        terms: Mapping[str, Tree] | None = None,
        keys: str | Path | None = None,
    ) -> None:
        """Dials nobody yet: a server that comes later is found.

        Args:
            address: the server's.
            timeout_s: how long a call waits for its answer unless it says so itself, in seconds.
            terms: what the server must agree with; see `Server`.
            keys: the file of this client's keys (``NAME.keys``), for a server that has keys.

        Raises:
            TransportError: for an address that nobody can be at.
            ConfigError: for keys that can't be read, or a time that is none.
            PayloadError: for terms that can't travel.
        """
        encode_call(Call(0, 0, 0, 0, False, HELLO, terms if terms is None else dict(terms)))
        self._address = Address.parse(address)
        self._address.check_dialled()
        self._timeout_s = _checked(timeout_s)
        self._terms = terms
        self._secure = curve_client(read_user_keys(Path(keys))[1]) if keys is not None else None
        self.counters = Counters()
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._caller_thread: CallerThread | None = None
        self._closed = threading.Event()
        _clients.add(self)

    @property
    def address(self) -> str:
        """Whom it calls, as a URI."""
        return self._address.uri

    def call(self, method: str, payload: Tree = None, timeout_s: float | None = None, *, once: bool = False) -> Tree:
        """Calls and waits for the answer.

        Args:
            method: what is called.
            payload: a tree of arrays, scalars, strings and bytes.
            timeout_s: how long to wait, in seconds; None: the client's.
            once: it must not run twice, whatever becomes of messages, connections and servers. Otherwise it is said again until
                it is answered, which is right for what does no harm when it runs twice.

        Returns:
            The answer; its arrays are read-only.

        Raises:
            CallTimeout: no answer came in time.
            CallRefused: the server would not run it.
            CallFailed: the callback raised.
            CallLost: with `once`, when the server has forgotten this client: whether it ran is unknown.
            PayloadError: the payload can't travel, or `method` is no name.
            ConfigError: `timeout_s` is no such time.
            TransportError: no connection could be made, for want of descriptors, say.
            Closed: the client was closed.
        """
        line = self._take_line()
        try:
            return line.call(method, payload, self._timeout_s if timeout_s is None else _checked(timeout_s), once, self._closed)
        finally:
            self._give_back(line)

    def submit(self, method: str, payload: Tree = None, timeout_s: float | None = None, *, once: bool = False) -> Future[Tree]:
        """Calls without waiting: the future gets the answer, or raises what `call` would. Arrays must not change until then.

        Raises:
            PayloadError: the payload can't travel, or `method` is no name.
            ConfigError: `timeout_s` is no such time.
            WorkerDied: the client's thread has died.
            Closed: the client was closed.
        """
        return self._pumping().submit(method, payload, self._timeout_s if timeout_s is None else _checked(timeout_s), once)

    async def acall(self, method: str, payload: Tree = None, timeout_s: float | None = None, *, once: bool = False) -> Tree:
        """`call` for asyncio. Cancelling it gives the wait up, not the call."""
        return await asyncio.wrap_future(self.submit(method, payload, timeout_s, once=once))

    def subscribe(self, topic: str, callback: Callable[[Tree, int], None]) -> Subscription:
        """Has `callback` called with the payload and number of each notice of a topic, in a thread of the subscription.

        The newest wins: what comes while the callback runs replaces what waits, numbers never go back within one life of the
        server, and a newcomer gets the newest that there is. What the callback raises is logged and counted
        (``callback_failed``).

        Raises:
            PayloadError: `topic` is no name.
            WorkerDied: the client's thread has died.
            Closed: the client was closed.
        """
        check_topic(topic)
        return self._pumping().subscribe(topic, callback)

    def stats(self) -> dict[str, Any]:
        """Its counters."""
        return self.counters.snapshot()

    def close(self) -> None:
        """Ends its connections and threads; calls under way raise `Closed`. A second call does nothing."""
        with self._lock:
            self._closed.set()
            lines, self._idle = self._idle, []
            caller_thread, self._caller_thread = self._caller_thread, None
        for line in lines:
            line.close()
        if caller_thread is not None:
            caller_thread.close()

    def new_session(self) -> Session:
        """The state of a further connection to the same server."""
        return Session(self._address.uri, self.counters, self._terms)

    def _after_fork(self) -> None:
        """In a forked child: makes its own connections and thread when they are needed. Subscriptions stay with the parent."""
        self._lock = threading.Lock()
        self._idle, self._caller_thread = [], None

    def _take_line(self) -> _Connection:
        with self._lock:
            if self._closed.is_set():
                raise Closed(f"the client of {self._address.uri} is closed")
            line = self._idle.pop() if self._idle else None
        return line if line is not None else _Connection(self._address, self.new_session(), self._secure)

    def _give_back(self, line: _Connection) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._idle.append(line)
                return
        line.close()

    def _pumping(self) -> CallerThread:
        with self._lock:
            if self._closed.is_set():
                raise Closed(f"the client of {self._address.uri} is closed")
            if self._caller_thread is None:
                self._caller_thread = CallerThread(self._address, self.new_session(), self._secure)
                self._caller_thread.start()
            return self._caller_thread


_clients: weakref.WeakSet[Caller] = weakref.WeakSet()


def _fork() -> None:
    for client in list(_clients):
        client._after_fork()


os.register_at_fork(after_in_child=_fork)


def _checked(timeout_s: object) -> float:
    if isinstance(timeout_s, Real) and 0 < (seconds := float(timeout_s)) <= MAX_TIMEOUT_S:
        return seconds
    raise ConfigError(
        f"timeout_s is {timeout_s!r:.60}; it is a number of seconds, more than 0 and at most a day", key="timeout_s"
    )
