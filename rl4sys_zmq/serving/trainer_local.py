"""A trainer and its actors in one process: the calls of both, and nothing between them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallFailed, CallRefusal, CallRefused, ConfigError
from rl4sys_zmq.names import check_name
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.serving.data import DataStoreBase
from rl4sys_zmq.serving.trainer_client import UpdateResult
from rl4sys_zmq.serving.trainer_params import params_as_arrays
from rl4sys_zmq.values.trees import copy_tree

__all__ = ["TrainerSMInterface"]

log = logging.getLogger(__name__)

PLACE = "this process"


class _Listener:
    """A callback for networks, and the version of the last one that it got."""

    def __init__(self, callback: Callable[[Any], object]) -> None:
        self.callback, self.version = callback, 0


class TrainerSMInterface(Resource):
    """Stands in for a `TrainerServer` and clients (`TrainerClient`), where both are threads of one process.

    They share their data stores: what an actor inserts is there, and an update has nothing to do. Payloads of requests and
    their answers are handed over as they are. Networks are copied, once for each callback, because the trainer goes on writing
    into its own.

    Attributes:
        counters: ``requests``, ``networks``, ``callback_failed``, ``refused.unknown``.
    """

    def __init__(self) -> None:
        self.counters = Counters()
        self._lock = threading.Lock()
        self._requests = threading.Lock()
        self._telling = threading.RLock()  # a callback may publish
        self._stores: dict[str, DataStoreBase] = {}
        self._listeners: list[_Listener] = []
        self._on_request: Callable[[str, Any], Any] | None = None
        self._network: Any = None
        self._version = 0
        self._stopped = False

    def register_data_store(self, name: str, data_store: DataStoreBase) -> None:
        """Gives a data store a name, for `data_store` and `update`.

        Raises:
            ConfigError: when the name is taken or can't be one, or the store is no `DataStoreBase`.
        """
        check_name(name, "name")
        if not isinstance(data_store, DataStoreBase):
            raise ConfigError(f"data_store is a DataStoreBase, not a {type(data_store).__qualname__}", key="data_store")
        with self._lock:
            if name in self._stores:
                raise ConfigError(f"there is a data store {name!r} already", key="name")
            self._stores[name] = data_store

    def data_store(self, name: str) -> DataStoreBase:
        """A registered data store.

        Raises:
            ConfigError: when there is none of that name.
        """
        store = self._stores.get(name)
        if store is None:
            known = ", ".join(sorted(self._stores)) or "none"
            raise ConfigError(f"there is no data store {name!r:.60}; there is {known}", key=str(name)[:100])
        return store

    def store_names(self) -> set[str]:
        """The names of the registered data stores."""
        return set(self._stores)

    def recv_network_callback(self, callback_fn: Callable[[Any], object]) -> None:
        """Has a callback called with each network, beginning with the newest that there is.

        It runs in the thread that publishes (the first time in the one that calls this), never in two at once, and gets a tree of
        numpy arrays of its own. It never gets an older network after a newer one. What it raises is logged and counted.
        """
        listener = _Listener(callback_fn)
        with self._lock:
            self._listeners.append(listener)
            network, version = self._network, self._version
        self._tell([listener], network, version)

    def publish_network(self, params: object) -> int:
        """Gives a network to every callback; returns its version. See `TrainerServer.publish_network`.

        Raises:
            PayloadError: for what could not travel either, with its path.
        """
        arrays = params_as_arrays(params)
        with self._lock:
            self._version += 1
            version, self._network, listeners = self._version, arrays, list(self._listeners)
            self.counters.add("networks")
        self._tell(listeners, arrays, version)
        return version

    def register_request_callback(self, callback_fn: Callable[[str, Any], Any]) -> None:
        """What answers requests: called with their type and payload, in the thread that asks, one request after another."""
        self._on_request = callback_fn

    def request(self, type: str, payload: Any) -> Any:
        """Makes a custom request; returns what the callback returns.

        Raises:
            CallRefused: ``unknown``, when there is no callback.
            CallFailed: the callback raised (its ``__cause__``).
        """
        method, callback = f"request/{type}", self._on_request
        if callback is None:
            with self._lock:
                self.counters.add("refused.unknown")
            raise CallRefused(method, PLACE, CallRefusal.UNKNOWN, "no callback for requests is registered")
        with self._requests:
            self.counters.add("requests")
            try:
                return callback(type, payload)
            except Exception as exc:
                raise CallFailed(method, PLACE, exc.__class__.__name__, str(exc)) from exc

    def update(self) -> UpdateResult:
        """Nothing: the data stores are shared. Says what they hold."""
        return UpdateResult(acked={name: store.latest_data_id() for name, store in self._stores.items()})

    def get_server_last_update_id(self, name: str) -> int:
        """The number of the newest item of a registered data store.

        Raises:
            ConfigError: when there is none of that name.
        """
        return self.data_store(name).latest_data_id()

    def start_async_update(self, interval: float = 10.0) -> None:
        """Nothing, as `update`."""

    def start(self, threaded: bool = False) -> None:
        """Nothing: there are no sockets."""

    def stop(self) -> None:
        """Calls the callbacks no more: nobody gets networks, and requests are refused. What runs is not waited for."""
        with self._lock:
            self._stopped, self._on_request = True, None

    def close(self) -> None:
        """`stop`."""
        self.stop()

    def _tell(self, listeners: list[_Listener], arrays: Any, version: int) -> None:
        """Gives a network to those that have no newer one."""
        with self._telling:
            for listener in listeners:
                if self._stopped or version <= listener.version:
                    continue
                listener.version = version
                try:
                    listener.callback(copy_tree(arrays))
                except Exception:
                    with self._lock:
                        self.counters.add("callback_failed")
                    log.exception("the callback for networks failed")
