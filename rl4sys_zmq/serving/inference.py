"""Inference as a service: named functions that are called remotely and batched over callers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc import Batching, Caller, Server
from rl4sys_zmq.serving.addresses import bind_address, connect_address
from rl4sys_zmq.serving.stacking import batched
from rl4sys_zmq.wire.trees import Tree

__all__ = ["Batching", "InferenceClient", "InferenceServer"]


class InferenceServer(Resource):
    """A server that offers named functions (*interfaces*) to any number of callers.

    Each interface runs by itself: one that takes long delays only its own callers. A request is not run if its caller no
    longer waits. What an interface raises goes to its caller, and the server continues.
    """

    def __init__(
        self,
        port_num: int | None = None,
        *,
        bind: str | None = None,
        keys: str | Path | None = None,
        users: str | Path | None = None,
        insecure: bool = False,
    ) -> None:
        """Create the server. It binds no address before `start`.

        Args:
            port_num: Port that only this machine reaches; 0 picks a free one. Give this or `bind`.
            bind: ``host:port``, or a URI (tcp, ipc, inproc).
            keys: Folder of the server's keys (`rl4sys-learner keys DIR`). Other machines then need a key to connect.
            users: Access list; None: ``users.toml`` in `keys`. A user needs the role ``call``.
            insecure: Accept calls from other machines without keys.

        Raises:
            ConfigError: If both or neither of `port_num` and `bind` are given, or if other machines can reach the address and
                neither `keys` nor `insecure` is given.
            TransportError: If the address is invalid.
        """
        if (port_num is None) == (bind is None):
            raise ConfigError("give either port_num or bind", key="port_num")
        where = bind_address(bind if bind is not None else port_num or 0)
        self._server = Server(where, name="inference", keys=keys, users=users, insecure=insecure)
        self._names: set[str] = set()

    def register_interface(
        self,
        name: str,
        fn: Callable[[Tree], Tree],
        batch: Batching | bool | None = None,
        *,
        max_queue: int = 1024,
    ) -> None:
        """Register a function; also while the server runs.

        Args:
            name: Name of the interface.
            fn: Function to call. Without `batch` it takes a payload and returns a reply. With `batch` it takes the stacked
                payloads of several callers, with a leading axis ``N`` (`rl4sys_zmq.serving.stack`), and returns a reply whose
                leaves have that axis too. If it raises for a batch, each request is tried by itself, so that an invalid
                request does not affect the others; the function should therefore have no side effects.
            batch: Parameters of batching; True: `Batching` with its defaults; None: one call at a time.
            max_queue: Number of calls that can wait; further calls are refused (``busy``).

        Raises:
            ConfigError: If the name is invalid, already registered or begins with ``$``, or `batch` is invalid.
        """
        if str(name).startswith("$"):
            raise ConfigError(f"{name!r} cannot be the name of an interface: names that begin with $ are reserved", key=name)
        batching = Batching() if batch is True else batch or None
        self._server.register(name, batched(fn) if batching is not None else fn, batching=batching, max_queue=max_queue)
        self._names.add(name)

    def interfaces(self) -> set[str]:
        """Return the names of the registered functions."""
        return set(self._names)

    @property
    def address(self) -> str:
        """The bound address, as a URI. Raises `Closed` before `start`."""
        return self._server.address

    def start(self, threaded: bool = False) -> None:
        """Bind the address and serve.

        Args:
            threaded: Serve in threads of the server and return. Otherwise serve until `stop` or Ctrl-C.

        Raises:
            AddressInUse: If another process has bound the address.
            ConfigError: If keys are missing, invalid, or readable by others.
            TransportError: If the address cannot be bound.
        """
        if threaded:
            self._server.start()
        else:
            self._server.run()

    def status(self) -> dict[str, Any]:
        """Return the address, the registered functions, the callers, the queues and the counters."""
        return self._server.status()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Refuse waiting calls, join the threads, and close the sockets. A second call does nothing.

        Raises:
            CallbackStuck: If a function still runs after `timeout_s` seconds.
        """
        self._server.stop(timeout_s)

    def close(self) -> None:
        """Call `stop` with its default timeout."""
        self.stop()


class InferenceClient(Resource):
    """A client that calls the interfaces of one server. Several threads can use it at the same time."""

    def __init__(
        self, server_ip: str, port_num: int | None = None, *, timeout_s: float = 10.0, keys: str | Path | None = None
    ) -> None:
        """Create the client. It does not connect yet, so the server can start later.

        Args:
            server_ip: Host of the server, or a URI, which needs no port.
            port_num: Port of the server.
            timeout_s: Default time that a call waits, in seconds.
            keys: The user's key file (``NAME.keys``).

        Raises:
            ConfigError: If the port, the timeout or the keys are invalid.
            TransportError: If the address is invalid.
        """
        self._client = Caller(connect_address(server_ip, port_num), timeout_s=timeout_s, keys=keys)

    def interfaces(self) -> set[str]:
        """Return the names of the interfaces that the server offers.

        Raises:
            CallTimeout: If the server does not answer.
        """
        return set(self._client.call("$hello", {"terms": None})["methods"])

    def call(self, name: str, payload: Tree, timeout_s: float | None = None) -> Tree:
        """Call an interface and wait for the reply.

        Args:
            name: Name of the interface.
            payload: Tree of arrays, scalars, strings and bytes.
            timeout_s: Longest time to wait, in seconds; None: the client's.

        Returns:
            The reply. Its arrays are read-only.

        Raises:
            CallTimeout: If no reply arrived in time. A late one is dropped and counted.
            CallRefused: If there is no such interface, or the server is busy or stopping.
            CallFailed: If the interface raised.
            PayloadError: If the payload cannot be sent.
            Closed: If the client is closed.
        """
        return self._client.call(name, payload, timeout_s)

    def submit(self, name: str, payload: Tree, timeout_s: float | None = None) -> Future[Tree]:
        """Start a call and return its future. The arrays of the payload must not change until it is done."""
        return self._client.submit(name, payload, timeout_s)

    async def acall(self, name: str, payload: Tree, timeout_s: float | None = None) -> Tree:
        """Call an interface from asyncio; see `call`."""
        return await self._client.acall(name, payload, timeout_s)

    def stats(self) -> dict[str, Any]:
        """Return the counters: ``again``, ``late``, ``refused``."""
        return self._client.stats()

    def close(self) -> None:
        """End the connections. Calls in progress raise `Closed`."""
        self._client.close()
