"""A server of named functions, and its client. Payloads of several calls can form one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc import BatchLimits, Caller, Server
from rl4sys_zmq.serving.config import bind_address, connect_address
from rl4sys_zmq.values.trees import Structure, Tree, flatten, leaf_paths, unflatten, unflatten_each

_Form = tuple[Structure, tuple[object, ...]]


def batched(fn: Callable[[Tree], Tree]) -> Callable[[Sequence[Tree]], list[Tree]]:
    """Convert a function of a batch, stacked along axis 0, to a function of a list of payloads.

    The result calls `fn` once for each group of payloads with the same structure, shapes and dtypes. The keys of
    stacked dicts are sorted.
    """

    def run(payloads: Sequence[Tree]) -> list[Tree]:
        flat = [_flat(payload) for payload in payloads]
        if len(flat) == 1:
            return unstack(fn(_stack(flat)), 1)
        groups: dict[object, list[int]] = {}
        for index, (_, form) in enumerate(flat):
            groups.setdefault(form, []).append(index)
        answers: list[Tree] = [None] * len(payloads)
        for members in groups.values():
            answer = fn(_stack([flat[i] for i in members]))
            for i, part in zip(members, unstack(answer, len(members)), strict=True):
                answers[i] = part
        return answers

    return run


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack ``N`` payloads of the same structure to one payload with a new first axis of length ``N``.

    Dicts and tuples keep their structure. Arrays, numbers and lists of numbers become arrays ``[N, ...]``. Any other value,
    such as a string, becomes a list of ``N`` values.
    """
    return _stack([_flat(tree) for tree in trees])


def unstack(tree: Tree, count: int) -> list[Tree]:
    """Split a stacked payload into a list of payloads. This is the inverse of `stack`.

    Args:
        tree: The stacked payload: nested dicts and tuples of arrays or torch tensors ``[count, ...]``, or lists of length
            `count`.
        count: Number of payloads.

    Raises:
        ValueError: If the first axis of an array or the length of a list is not `count`. The message has the path of the value.
    """
    leaves, structure = flatten(tree)
    columns = []
    for index, leaf in enumerate(leaves):
        rows = leaf if isinstance(leaf, list) else _array(leaf)
        if (not isinstance(rows, list) and rows.ndim == 0) or len(rows) != count:
            size = "no axis" if not isinstance(rows, list) and rows.ndim == 0 else f"{len(rows)} entries"
            path = [*leaf_paths(structure, "answer")][index]
            raise ValueError(f"{path} has {size}; a batch of {count} needs as many along the first axis")
        columns.append(rows)
    return unflatten_each(structure, columns, count)


def _flat(tree: Tree) -> tuple[list[Any], _Form]:
    """Return a payload's leaf values, and its form (structure, shapes, dtypes). Payloads with equal forms can be stacked."""
    leaves, structure = flatten(tree, by_key=True)
    kinds: list[object] = []
    for index, leaf in enumerate(leaves):
        kind = type(leaf)
        if kind is list:
            leaves[index] = leaf = _numbers(leaf)
            kind = type(leaf)
        if kind is np.ndarray:
            kinds += leaf.dtype, leaf.shape
        else:
            kinds.append(leaf.dtype if isinstance(leaf, np.generic) else kind)
    return leaves, (structure, tuple(kinds))


def _stack(flat: Sequence[tuple[list[Any], _Form]]) -> Tree:
    return unflatten(flat[0][1][0], [_column(leaves) for leaves in zip(*[leaves for leaves, _ in flat], strict=True)])


def _column(leaves: Sequence[Any]) -> Tree:
    first = leaves[0]
    if type(first) is np.ndarray:
        out = np.empty((len(leaves), *first.shape), first.dtype)  # several times as fast as numpy.stack for small arrays
        for index, leaf in enumerate(leaves):
            out[index] = leaf
        return out
    if type(first) in (bool, int, float) or isinstance(first, np.generic):
        return np.asarray(leaves)
    return list(leaves)


def _numbers(value: list[Any]) -> Any:
    """Convert a list of numbers, or of rows of equal length, to an array. Return any other list unchanged."""
    try:
        array = np.asarray(value)
    except ValueError:
        return value
    return array if array.dtype.kind in "biuf" else value


def _array(value: Any) -> np.ndarray[Any, Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


class ThreadedServer(Resource):
    """The base class of servers that run in background threads, or in the thread that calls `start`."""

    _server: Server

    @property
    def address(self) -> str:
        """The bound address, as a URI. Raises `Closed` before `start`."""
        return self._server.address

    def start(self, threaded: bool = False) -> None:
        """Bind the address and serve.

        Args:
            threaded: True to serve in background threads and return at once. False to block until another thread calls `stop` or
                Ctrl-C is pressed.

        Raises:
            AddressInUse: If another process has bound the address.
            ConfigError: If keys are missing, invalid, or readable by others.
            TransportError: If the address cannot be bound.
            Closed: After `stop`.
        """
        if threaded:
            self._server.start()
        else:
            self._server.run()

    def status(self) -> dict[str, Any]:
        """Return the address, the registered functions, the callers, the queues and the counters."""
        return self._server.status()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Refuse waiting calls with the code ``closing``, join the threads and close the sockets. A second call does nothing.

        Raises:
            CallbackStuck: If a function still runs after `timeout_s` seconds. Its thread ends when the function returns.
        """
        self._server.stop(timeout_s)

    def close(self) -> None:
        """Call `stop` with its default timeout."""
        self.stop()


class InferenceServer(ThreadedServer):
    """A server that offers named functions (*interfaces*), such as a policy's forward pass, to any number of callers.

    The interfaces run independently, so a slow interface delays only its own callers. A request is skipped if its caller no
    longer waits. If an interface raises an exception, the caller gets `CallFailed` and the server continues.
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
            port_num: Port of 127.0.0.1. 0: any free port. Give either this or `bind`.
            bind: ``host:port``, or a URI (tcp, ipc, inproc).
            keys: Folder of the server's keys (`rl4sys-learner keys DIR`). Other machines then need a key to connect.
            users: Path of the access list. None: ``users.toml`` in `keys`. A user needs the role ``call``.
            insecure: True to let other machines connect without keys.

        Raises:
            ConfigError: If both or neither of `port_num` and `bind` are given, or if other machines can reach the address and
                neither `keys` nor `insecure` is given.
            TransportError: If the address is invalid.
        """
        if (port_num is None) == (bind is None):
            raise ConfigError("give either port_num or bind", key="port_num")
        where = bind_address(bind if bind is not None else port_num if port_num is not None else 0)
        self._server = Server(where, name="inference", keys=keys, users=users, insecure=insecure)

    def register_interface(
        self,
        name: str,
        fn: Callable[[Tree], Tree],
        batch: BatchLimits | bool | None = None,
        *,
        max_queue: int = 1024,
    ) -> None:
        """Register a function. This also works while the server runs.

        Args:
            name: Name of the interface.
            fn: Function to call. Without `batch`, the function takes the payload of one call and returns the reply. With `batch`,
                the function takes the payloads of ``N`` calls, stacked along a new first axis (`rl4sys_zmq.serving.stack`), and
                returns the replies stacked in the same way. If the function raises an exception for a batch, it is called again
                for each request alone, so that an invalid request does not affect the others. Therefore the function should
                have no side effects.
            batch: Limits of a batch. True: `BatchLimits` with its defaults. None: one call at a time.
            max_queue: Largest number of waiting calls. Further calls are refused with the code ``busy``.

        Raises:
            ConfigError: If the name is invalid, already registered or begins with ``$``, or `batch` is invalid.
        """
        if str(name).startswith("$"):
            raise ConfigError(f"{name!r} cannot be the name of an interface: names that begin with $ are reserved", key=name)
        batching = BatchLimits() if batch is True else batch or None
        self._server.register(name, batched(fn) if batching is not None else fn, batching=batching, max_queue=max_queue)

    def interfaces(self) -> set[str]:
        """Return the names of the registered functions."""
        return set(self._server.status()["methods"])


class InferenceClient(Resource):
    """A client that calls the named functions (*interfaces*) of an `InferenceServer`. Any thread can use it."""

    def __init__(
        self, server_ip: str, port_num: int | None = None, *, timeout_s: float = 10.0, keys: str | Path | None = None
    ) -> None:
        """Create the client. The first call connects, so the server can start later.

        Args:
            server_ip: Host of the server, or a URI; then no port is needed.
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
            payload: Numpy arrays, numbers, strings and bytes, also nested in dicts, lists and tuples.
            timeout_s: Longest time to wait, in seconds. None: the timeout of this client.

        Returns:
            The reply. Its arrays are read-only.

        Raises:
            CallTimeout: If no reply arrived in time. A later reply is dropped and counted.
            CallRefused: If there is no such interface, or the server is busy or stopping.
            CallFailed: If the function raised an exception.
            PayloadError: If the payload cannot be sent.
            Closed: If the client is closed.
        """
        return self._client.call(name, payload, timeout_s)

    def submit(self, name: str, payload: Tree, timeout_s: float | None = None) -> Future[Tree]:
        """Start a call of an interface, and return a future for the reply.

        Do not change the arrays of the payload until the future is done.
        """
        return self._client.submit(name, payload, timeout_s)

    async def acall(self, name: str, payload: Tree, timeout_s: float | None = None) -> Tree:
        """Call an interface and await the reply. The arguments are those of `call`."""
        return await self._client.acall(name, payload, timeout_s)

    def stats(self) -> dict[str, Any]:
        """Return the counters of this client.

        ``again``: resent requests. ``late``: replies after the timeout. ``refused``: invalid messages.
        """
        return self._client.stats()

    def close(self) -> None:
        """End the connections. Calls in progress raise `Closed`."""
        self._client.close()
