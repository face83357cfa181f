"""`Relay` starts the relay's thread and its key check, and closes them."""

from __future__ import annotations

import threading
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, Self

from rl4sys_zmq.config import RelayConfig
from rl4sys_zmq.errors import Closed, LearnerUnavailable
from rl4sys_zmq.memory_watch import MemoryLimitThread
from rl4sys_zmq.relay.thread import RelayThread
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.security import AccessList, Authenticator, read_user_keys

CALL_TIMEOUT_S = 5.0
JOIN_S = 5.0
RELIEF_S = 2.0


class Relay(Resource):
    """A relay: it takes the weights of policies from a learner or another relay, verifies them, and passes them on.

    It follows a client when the first child asks for it, and drops it when no child asks any more. Use it as a context manager,
    or call `start` and `close`.
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
                upstream_keys = read_user_keys(config.upstream_keys)[1] if config.upstream_keys is not None else None
                if config.keys is not None:
                    self._authenticator = Authenticator(config.keys, config.users_file)
                self._thread = RelayThread(config, self._authenticator, upstream_keys)
                self._thread.start()
                self._thread.wait_open()
                self._thread.raise_if_dead()
                if self._authenticator is not None:
                    self._authenticator.open(self._change_access)
                if config.max_memory_bytes is not None:
                    self._memory = MemoryLimitThread(config.max_memory_bytes, self._relieve, self._thread.stop)
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
            LearnerUnavailable: If the relay's thread does not answer within `CALL_TIMEOUT_S` seconds.
            Closed: If the relay is not running.
        """
        thread = self._running
        try:
            return thread.call(thread.status).result(CALL_TIMEOUT_S)
        except FutureTimeout:
            raise LearnerUnavailable(thread.address, "the relay's thread", CALL_TIMEOUT_S) from None

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

    def _relieve(self, all_connections: bool) -> int:
        """Close connections to free memory, and return their number; 0 if the relay's thread does not answer in time."""
        thread = self._thread
        if thread is None:
            return 0
        try:
            return thread.call(lambda: thread.relieve(all_connections=all_connections)).result(RELIEF_S)
        except FutureTimeout:
            return 0

    def _change_access(self, access: AccessList) -> None:
        thread = self._thread
        if thread is not None:
            with suppress(Closed):
                thread.call(lambda: thread.core.change_access(access))
