"""Inference as a service: functions by name, called from afar, batched over callers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc import Batching, Caller, Server
from rl4sys_zmq.serving.addresses import dialled, listening
from rl4sys_zmq.serving.stacking import batched
from rl4sys_zmq.wire.trees import Tree

__all__ = ["Batching", "InferenceClient", "InferenceServer"]


class InferenceServer(Resource):
    """Offers functions (*interfaces*) to any number of clients.

    Each interface runs by itself: one that takes long holds up its own callers alone. A request whose caller has stopped to wait
    is not run; what an interface raises goes to its caller, and the server lives on.
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
        """Binds nothing yet.

        Args:
            port_num: a port of this machine, which no other machine reaches; 0 picks a free one. Or say `bind`.
            bind: ``host:port``, or a URI (tcp, ipc, inproc).
            keys: the folder of the server's keys (`rl4sys-learner keys DIR`); other machines then reach it with keys alone.
            users: the access list; None: ``users.toml`` in `keys`. A caller needs the role ``call``.
            insecure: let other machines call without keys.

        Raises:
            ConfigError: for both or neither of `port_num` and `bind`, or an address that other machines reach without keys.
            TransportError: for an address that is none.
        """
        if (port_num is None) == (bind is None):
            raise ConfigError("say either port_num or bind", key="port_num")
        where = listening(bind if bind is not None else port_num or 0)
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
        """Offers a function; also while the server runs.

        Args:
            name: what callers say.
            fn: without `batch` a payload in, an answer out. With `batch` the payloads of several callers in as one, with a
                leading axis ``N`` (`rl4sys_zmq.serving.stack`), and an answer out whose leaves have that axis too. If it raises
                for several, each is tried by itself, so that one bad request spoils no other: it should have no side effects.
            batch: how calls are put together; True: `Batching` with its defaults; None: one at a time.
            max_queue: how many calls may wait; more are refused (``busy``).

        Raises:
            ConfigError: when the name is none or taken, or begins with ``$``, and for a `batch` that is none.
        """
        if str(name).startswith("$"):
            raise ConfigError(f"{name!r} is no name for an interface: names with $ are the library's", key=name)
        batching = Batching() if batch is True else batch or None
        self._server.register(name, batched(fn) if batching is not None else fn, batching=batching, max_queue=max_queue)
        self._names.add(name)

    def interfaces(self) -> set[str]:
        """The names that are offered."""
        return set(self._names)

    @property
    def address(self) -> str:
        """Where it is bound, as a URI. Raises `Closed` before `start`."""
        return self._server.address

    def start(self, threaded: bool = False) -> None:
        """Serves.

        Args:
            threaded: return at once and serve in threads; else serve until `stop`, or Ctrl-C.

        Raises:
            AddressInUse: when somebody else binds the address.
            ConfigError: for keys that are missing, wrong, or readable by others.
            TransportError: when it cannot be bound.
        """
        if threaded:
            self._server.start()
        else:
            self._server.run()

    def status(self) -> dict[str, Any]:
        """Address, interfaces, callers, what waits, counters."""
        return self._server.status()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Refuses what waits, joins the threads, closes the sockets. A second call does nothing.

        Raises:
            CallbackStuck: when a function still runs after `timeout_s` seconds.
        """
        self._server.stop(timeout_s)

    def close(self) -> None:
        """`stop` with its default time."""
        self.stop()


class InferenceClient(Resource):
    """Calls the interfaces of one server. Any thread may use it, several at a time."""

    def __init__(
        self, server_ip: str, port_num: int | None = None, *, timeout_s: float = 10.0, keys: str | Path | None = None
    ) -> None:
        """Dials nobody yet: a server that comes later is found.

        Args:
            server_ip: the server's host, or a URI, which needs no port.
            port_num: its port.
            timeout_s: how long a call waits unless it says so itself, in seconds.
            keys: the file of this client's keys (``NAME.keys``).

        Raises:
            ConfigError: for a port, a time or keys that are none.
            TransportError: for an address that is none.
        """
        self._client = Caller(dialled(server_ip, port_num), timeout_s=timeout_s, keys=keys)

    def interfaces(self) -> set[str]:
        """The names that the server offers.

        Raises:
            CallTimeout: when it does not answer.
        """
        return set(self._client.call("$hello", {"terms": None})["methods"])

    def call(self, name: str, payload: Tree, timeout_s: float | None = None) -> Tree:
        """Calls an interface and waits for the answer.

        Args:
            name: which.
            payload: a tree of arrays, scalars, strings and bytes.
            timeout_s: how long to wait, in seconds; None: the client's.

        Returns:
            The answer; its arrays are read-only.

        Raises:
            CallTimeout: no answer in time. A late one is dropped and counted.
            CallRefused: no such interface, or the server is busy or stopping.
            CallFailed: the interface raised.
            PayloadError: the payload can't travel.
            Closed: the client is closed.
        """
        return self._client.call(name, payload, timeout_s)

    def submit(self, name: str, payload: Tree, timeout_s: float | None = None) -> Future[Tree]:
        """`call` as a future. Arrays of the payload must not change until it is done."""
        return self._client.submit(name, payload, timeout_s)

    async def acall(self, name: str, payload: Tree, timeout_s: float | None = None) -> Tree:
        """`call` for asyncio."""
        return await self._client.acall(name, payload, timeout_s)

    def stats(self) -> dict[str, Any]:
        """Its counters: ``again``, ``late``, ``refused``."""
        return self._client.stats()

    def close(self) -> None:
        """Ends its connections; calls under way raise `Closed`."""
        self._client.close()
