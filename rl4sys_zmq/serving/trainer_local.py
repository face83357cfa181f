"""A replacement for `TrainerServer` and `TrainerClient` within one process, without sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rl4sys_zmq.config.options import check_value
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallFailed, CallRefusalReason, CallRefused, ConfigError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import check_name
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.serving.data import DataStoreBase
from rl4sys_zmq.serving.trainer_transfer import DATA_STORE, UpdateResult, copy_params, find_store, params_as_arrays

log = get_logger(__name__)

ADDRESS = "this process"


class TrainerSMInterface(Resource):
    """A replacement for `TrainerServer` and `TrainerClient` if the trainer and its actors are threads of one process.

    The class has the methods of both. The threads share their data stores, so the trainer has an inserted item at once, and
    `update` has nothing to send. Payloads of requests and their replies are passed without a copy. A network is copied for each
    callback, because the trainer continues to change its own.

    Attributes:
        counters: ``requests``, ``networks`` (published), ``callback_failed``, ``refused.unknown`` (requests without a callback).
    """

    def __init__(self) -> None:
        self.counters = Counters()
        self._lock = threading.Lock()
        self._requests = threading.Lock()
        self._telling = threading.RLock()  # reentrant: a callback can publish
        self._stores: dict[str, DataStoreBase] = {}
        self._listeners: list[Callable[[Any], object]] = []
        self._on_request: Callable[[str, Any], Any] | None = None
        self._network: Any = None
        self._version = 0
        self._stopped = False

    def register_data_store(self, name: str, data_store: DataStoreBase) -> None:
        """Register a data store under a name, for `data_store` and `update`.

        Raises:
            ConfigError: If the name is invalid or already registered, or the store is not a `DataStoreBase`.
        """
        check_name(name, "name")
        check_value("data_store", data_store, DATA_STORE)
        with self._lock:
            if name in self._stores:
                raise ConfigError(f"a data store {name!r} is already registered", key="name")
            self._stores[name] = data_store

    def data_store(self, name: str) -> DataStoreBase:
        """Return a registered data store.

        Raises:
            ConfigError: If no store has this name.
        """
        return find_store(self._stores, name)

    def store_names(self) -> set[str]:
        """Return the names of the registered data stores."""
        return set(self._stores)

    def recv_network_callback(self, callback_fn: Callable[[Any], object]) -> None:
        """Add a callback that receives published networks, beginning with the newest that exists.

        The callback runs in the thread that publishes the network; the first time, in the thread that calls this method. It never
        runs in two threads at once, and never gets an older network after a newer one. Its argument is its own copy of the
        network's parameters, as nested dicts and lists of numpy arrays. An exception of the callback is logged and counted.
        """
        with self._telling:
            self._listeners.append(callback_fn)
            if self._version:
                self._tell(callback_fn)

    def publish_network(self, params: object) -> int:
        """Pass a network to every callback, and return the network's version, from 1. See `TrainerServer.publish_network`.

        Raises:
            PayloadError: If a part of `params` has a type that `TrainerServer` could not send. The message has its path.
        """
        arrays = params_as_arrays(params)
        with self._telling:
            self._network, self._version = arrays, self._version + 1
            version = self._version
            self.counters.add("networks")
            for callback in list(self._listeners):
                if version == self._version:  # otherwise a callback has published a newer one, which all have
                    self._tell(callback)
            return version

    def register_request_callback(self, callback_fn: Callable[[str, Any], Any]) -> None:
        """Set the function that answers requests. It gets the type and the payload, and returns the reply.

        The function runs in the thread that makes the request, for one request at a time.
        """
        self._on_request = callback_fn

    def request(self, type: str, payload: Any) -> Any:
        """Make a custom request, and return what the callback returns.

        Raises:
            CallRefused: Code ``unknown`` if no callback is registered.
            CallFailed: If the callback raised an exception (see ``__cause__``).
        """
        method, callback = f"request/{type}", self._on_request
        if callback is None:
            self.counters.add("refused.unknown")
            raise CallRefused(method, ADDRESS, CallRefusalReason.UNKNOWN, "no callback for requests is registered")
        with self._requests:
            self.counters.add("requests")
            try:
                return callback(type, payload)
            except Exception as exc:
                raise CallFailed(method, ADDRESS, exc.__class__.__name__, str(exc)) from exc

    def update(self) -> UpdateResult:
        """Return the number of the newest item of each data store. Nothing is sent, because the stores are shared."""
        return UpdateResult(acked={name: store.latest_data_id() for name, store in self._stores.items()})

    def update_datastore(self, name: str, from_id: int | None, confirm_update: bool = False) -> UpdateResult:
        """Return the number of the newest item of one data store. Nothing is sent, because the stores are shared.

        The arguments `from_id` and `confirm_update` have no effect. They exist for compatibility with `TrainerClient`.

        Raises:
            ConfigError: If no store has this name.
        """
        return UpdateResult(acked={name: self.data_store(name).latest_data_id()})

    def get_server_last_update_id(self, name: str) -> int:
        """Return the number of the newest item of a registered data store.

        Raises:
            ConfigError: If no store has this name.
        """
        return self.data_store(name).latest_data_id()

    def start_async_update(self, interval: float = 10.0) -> None:
        """Do nothing, because the data stores are shared. The method exists for compatibility with `TrainerClient`."""

    def start(self, threaded: bool = False) -> None:
        """Do nothing, because there are no sockets. The method exists for compatibility with `TrainerServer`."""

    @property
    def address(self) -> str:
        """A text in place of an address. There is no address, because there is no server."""
        return ADDRESS

    def stats(self) -> dict[str, float]:
        """Return a copy of `counters`."""
        with self._lock:
            return dict(self.counters.snapshot())

    def status(self) -> dict[str, Any]:
        """Return the state and the counters, as `TrainerServer.status` does, without the parts about sockets.

        Returns:
            A dict with ``address``, ``stores`` (for each data store ``items`` and ``latest_data_id``), ``network_version``,
            ``journal`` (None) and ``counters``.
        """
        stores = self._stores.copy().items()
        return {
            "address": ADDRESS,
            "stores": {name: {"items": len(store), "latest_data_id": store.latest_data_id()} for name, store in stores},
            "network_version": self._version,
            "journal": None,
            "counters": self.stats(),
        }

    def stop(self) -> None:
        """Refuse all further requests, and call no callback for new networks any more. A callback that runs now continues."""
        with self._lock:
            self._stopped, self._on_request = True, None

    def close(self) -> None:
        """Call `stop`."""
        self.stop()

    def _tell(self, callback: Callable[[Any], object]) -> None:
        """Pass a copy of the newest network to a callback. Log and count its exception."""
        if self._stopped:
            return
        try:
            callback(copy_params(self._network))
        except Exception:
            self.counters.add("callback_failed")
            log.exception("the callback for networks failed")
