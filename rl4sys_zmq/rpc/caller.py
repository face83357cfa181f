"""`Caller`, with which a program calls the methods of a `Server` and subscribes to topics.

`Caller.call` does all of its work in the calling thread, because a switch to another thread costs as much as the network. It
takes a connection from a pool, or creates one if the pool is empty. No other thread uses that connection until the call is
over. `submit`, `acall` and `subscribe` share one thread per `Caller` (`rl4sys_zmq.rpc.caller_thread`), which starts at the
first use.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rl4sys_zmq.config.options import CALL_TIMEOUT_S, check_value, mapping, optional, path
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import Closed
from rl4sys_zmq.resource import Resource, call_in_child
from rl4sys_zmq.rpc.caller_thread import AsyncCallThread, ServerConnection, Subscription
from rl4sys_zmq.rpc.session import HELLO, CallerSession
from rl4sys_zmq.security.keys import curve_client, read_user_keys
from rl4sys_zmq.transports import Address
from rl4sys_zmq.values.trees import Tree
from rl4sys_zmq.wire.rpc import Call, check_topic, encode_call

TIMEOUT_S = 10.0


class Caller(Resource):
    """An object that calls the methods of one `Server` and subscribes to its topics. Several threads can use it at once.

    Attributes:
        counters: The counters of the calls, such as ``again`` (calls sent again), and ``notices`` (publications that a callback
            got), ``skipped`` (publications that a newer one replaced before the callback got them), ``callback_failed``
            (exceptions of callbacks for publications).
    """

    def __init__(
        self,
        address: Address | str,
        *,
        timeout_s: float = TIMEOUT_S,
        terms: Mapping[str, Tree] | None = None,
        keys: str | Path | None = None,
    ) -> None:
        """Create a caller without connecting. The server can start later.

        Args:
            address: The address of the server.
            timeout_s: Default time to wait for a reply, in seconds.
            terms: Settings, such as a version, that must equal the server's own `terms`. None: no comparison.
            keys: The file with this user's keys (``NAME.keys``). Needed if the server uses keys.

        Raises:
            TransportError: If the address is invalid or cannot be connected to, such as one with the port 0.
            ConfigError: If the keys cannot be read, `timeout_s` is out of range, or an argument has the wrong type.
            PayloadError: If `terms` cannot be encoded.
        """
        terms = check_value("terms", terms, optional(mapping))
        encode_call(Call(0, 0, 0, 0, False, HELLO, terms))
        self._address = Address.parse(address)
        self._address.check_connectable()
        self._timeout_s = check_value("timeout_s", timeout_s, CALL_TIMEOUT_S)
        self._terms = terms
        key_file = check_value("keys", keys, optional(path))
        self._secure = curve_client(read_user_keys(key_file)[1]) if key_file is not None else None
        self.counters = Counters()
        self._lock = threading.Lock()
        self._idle: list[ServerConnection] = []
        self._caller_thread: AsyncCallThread | None = None
        self._closed = threading.Event()
        call_in_child(self, Caller._drop_connections)

    @property
    def address(self) -> str:
        """The address of the server, as a URI."""
        return self._address.uri

    def call(self, method: str, payload: Tree = None, timeout_s: float | None = None, *, once: bool = False) -> Tree:
        """Call a method and wait for the reply.

        Args:
            method: The name of the method.
            payload: The argument for the server's callback: arrays, scalars, strings and bytes, also in nested lists and dicts.
            timeout_s: Longest time to wait, in seconds. None: the default of this caller.
            once: True to run the call at most once, even if messages are lost, connections break or the server restarts. With
                False, the call is resent until a reply arrives, and can run more than once. Use False only where a second run
                does no harm.

        Returns:
            The payload of the reply. Its arrays are read-only.

        Raises:
            CallTimeout: If no reply arrives in time.
            CallRefused: If the server refuses the call.
            CallFailed: If the callback on the server raises.
            CallLost: If a call with `once` was sent and the server has since lost its record of this caller's calls, for
                example by a restart. It is unknown whether the call ran.
            PayloadError: If the payload cannot be encoded, or `method` is not a valid name.
            ConfigError: If `timeout_s` is out of range.
            TransportError: If no connection can be created, for example because no file descriptor is left.
            Closed: If the caller is closed before or during the call.
        """
        line = self._acquire()
        try:
            return line.call(method, payload, self._limit_s(timeout_s), once, self._closed)
        finally:
            self._give_back(line)

    def submit(self, method: str, payload: Tree = None, timeout_s: float | None = None, *, once: bool = False) -> Future[Tree]:
        """Start a call without waiting, and return a future for its result. The arguments are those of `call`.

        The future raises the same errors as `call`. Do not change the arrays of the payload before the future is done.

        Raises:
            PayloadError: If the payload cannot be encoded, or `method` is not a valid name.
            ConfigError: If `timeout_s` is out of range.
            WorkerDied: If the thread that serves futures has ended with an error.
            Closed: If the caller is closed.
        """
        return self._thread().submit(method, payload, self._limit_s(timeout_s), once)

    async def acall(self, method: str, payload: Tree = None, timeout_s: float | None = None, *, once: bool = False) -> Tree:
        """Call a method and await the reply. The arguments are those of `call`. A cancelled wait does not end the call."""
        return await asyncio.wrap_future(self.submit(method, payload, timeout_s, once=once))

    def subscribe(self, topic: str, callback: Callable[[Tree, int], None]) -> Subscription:
        """Subscribe to a topic: run a callback for its publications, in a new thread, until `Subscription.stop`.

        The callback gets the payload and the number of a publication. If the topic has a publication already, the callback gets
        the newest one first. If several publications arrive while the callback runs, it gets only the newest. The numbers of a
        topic increase, until the server restarts. An exception from the callback is logged and counted (``callback_failed``).

        Raises:
            PayloadError: If `topic` is not a valid name.
            WorkerDied: If the thread that receives publications has ended with an error.
            Closed: If the caller is closed.
        """
        check_topic(topic)
        return self._thread().subscribe(topic, callback)

    def stats(self) -> dict[str, Any]:
        """Return the values of all counters, by name."""
        return self.counters.snapshot()

    def close(self) -> None:
        """Close the connections and end the threads. Running calls raise `Closed`. A second call does nothing."""
        with self._lock:
            self._closed.set()
            lines, self._idle = self._idle, []
            caller_thread, self._caller_thread = self._caller_thread, None
        for line in lines:
            line.close()
        if caller_thread is not None:
            caller_thread.close()

    def new_session(self) -> CallerSession:
        """Return a new `CallerSession`, for one more connection to the server."""
        return CallerSession(self._address.uri, self.counters, self._terms)

    def _limit_s(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else check_value("timeout_s", timeout_s, CALL_TIMEOUT_S)

    def _drop_connections(self) -> None:
        """Drop the parent's connections and subscriptions in a forked child, which then creates its own."""
        self._lock = threading.Lock()
        self._idle, self._caller_thread = [], None

    def _connection(self) -> ServerConnection:
        return ServerConnection(self._address, self.new_session(), self._secure)

    def _acquire(self) -> ServerConnection:
        with self._lock:
            if self._closed.is_set():
                raise Closed(f"the caller of {self._address.uri} is closed")
            line = self._idle.pop() if self._idle else None
        return line if line is not None else self._connection()

    def _give_back(self, line: ServerConnection) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._idle.append(line)
                return
        line.close()

    def _thread(self) -> AsyncCallThread:
        with self._lock:
            if self._closed.is_set():
                raise Closed(f"the caller of {self._address.uri} is closed")
            if self._caller_thread is None:
                self._caller_thread = AsyncCallThread(self._connection())
                self._caller_thread.start()
            return self._caller_thread
