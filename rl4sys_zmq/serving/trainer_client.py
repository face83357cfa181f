"""An actor's connection to a `TrainerServer`: items of data stores, custom requests, and the newest network."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rl4sys_zmq.config.options import CALL_TIMEOUT_MS, check_value, flag, instance_of, mapping, number
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import (
    CallError,
    CallFailed,
    CallLost,
    CallRefusalReason,
    CallRefused,
    Closed,
    ConfigError,
    PayloadError,
    RL4SysError,
    StoreFileError,
)
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import check_name
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.rpc import Caller
from rl4sys_zmq.security.access import TokenBucket
from rl4sys_zmq.serving.config import TrainerConfig, first_call, set_log_level
from rl4sys_zmq.serving.data import DataStoreBase
from rl4sys_zmq.serving.trainer_server import INSERT, MARK, NETWORK, REQUEST, STORES
from rl4sys_zmq.serving.trainer_transfer import DATA_STORE, UnsentItemReader, UpdateResult, find_store, pack_items
from rl4sys_zmq.values.trees import Tree, copy_tree

log = get_logger(__name__)

T = TypeVar("T")


class TrainerClient(Resource):
    """An actor's connection to a `TrainerServer`. It copies the items of data stores to the server, each once and in order.

    Any thread can use this object. The data stores buffer unsent items. After a restart of this process, a store on disk
    (`ReplayBuffer(path=...)`) continues after the last item that the server acknowledged. Items that a full store drops before
    they are sent are counted.

    A host that calls this object in a loop continues while the server is restarted, as with agentlace: an update or request that
    fails is logged and counted, and returns a false `UpdateResult` or None. With ``raises=True`` it raises its exception instead.
    Errors of the program itself, such as a payload that cannot be sent, are raised in both cases.

    Attributes:
        name: Name of this trainer client at the server. Two trainer clients with the same name do not disturb each other, because
            the server also distinguishes their data stores, by a random number.
        data_stores: The data stores, by name at the server.
        network_version: Version of the newest network that was received. 0 before the first.
        raises: True if failed updates and requests raise their exceptions.
        last_error: Exception of the last update or request that failed. None before the first, and after an update that
            succeeded.
        counters: ``items``, ``messages``, ``dropped_at_source``, ``unsendable`` (items that cannot be sent), ``updates``,
            ``update_failed``, ``requests``, ``request_failed``, ``refused.rate``. `stats` adds those of `rl4sys_zmq.rpc.Caller`.
    """

    def __init__(  # noqa: PLR0913 - its call shape is agentlace's
        self,
        name: str,
        server_ip: str,
        config: TrainerConfig,
        data_store: DataStoreBase | None = None,
        data_stores: Mapping[str, DataStoreBase] | None = None,
        log_level: int | None = None,
        wait_for_server: bool = False,
        timeout_ms: float = 800,
        *,
        raises: bool = False,
        keys: str | Path | None = None,
    ) -> None:
        """Connect to the server, compare the configurations, and send the items in the data stores.

        Args:
            name: Name of this trainer client.
            server_ip: Host name, IP address, or URI of the server.
            config: Configuration, equal to the server's; see `TrainerConfig`.
            data_store: The only data store. Its name at the server is `name`.
            data_stores: Data stores, by name at the server. Give either this or `data_store`.
            log_level: Level of the logger ``rl4sys_zmq``; None leaves it unchanged.
            wait_for_server: True to wait without limit until a server answers. Later calls wait at most `timeout_ms`.
            timeout_ms: Longest time to wait for each reply, in milliseconds.
            raises: True to raise the exceptions of failed updates and requests. False to log and count them.
            keys: The user's key file, if the server requires keys.

        Raises:
            ConfigError: If an argument is invalid.
            CallTimeout: If no server answered and `wait_for_server` is False.
            CallRefused: Code ``mismatch`` if the configurations differ; the message names the field. Code ``unknown`` if the
                server does not have a data store of this name, and `raises` is True.
            CallFailed: If the server's store or data callback failed, and `raises` is True. The other items were sent.
            PayloadError: If an item cannot be sent, and `raises` is True. The other items were sent.
            StoreFileError: If a data store on disk was replaced by an older copy, or your own data store raised an exception.
        """
        self.name = check_name(name, "name")
        self.config = check_value("config", config, instance_of(TrainerConfig))
        if data_store is not None and data_stores:
            raise ConfigError("both data_store and data_stores were given; give one", key="data_store")
        given: Mapping[str, Any] = check_value("data_stores", {} if data_stores is None else data_stores, mapping)
        stores = {name: data_store} if data_store is not None else given
        timeout_s = check_value("timeout_ms", timeout_ms, CALL_TIMEOUT_MS) / 1000
        for key, store in stores.items():
            check_name(key, "data_stores")
            check_value("data_stores", store, DATA_STORE)
        set_log_level(log_level)
        self.data_stores: Mapping[str, DataStoreBase] = stores
        self.network_version = 0
        self.raises = check_value("raises", raises, flag)
        self.last_error: RL4SysError | None = None
        self._failing: dict[str, type[RL4SysError]] = {}  # the class of the last error of updates and of requests
        self.counters = Counters()
        self._feeds = {key: UnsentItemReader(store) for key, store in stores.items()}
        self._lock = threading.Lock()
        self._bucket = TokenBucket(config.rate_limit, time.monotonic()) if config.rate_limit is not None else None
        self._on_network: Callable[[Any], object] | None = None
        self._updater: _UpdateThread | None = None
        self._stopped = False
        self._client = Caller(config.dial_address(server_ip), timeout_s=timeout_s, terms=config.terms(), keys=keys)
        try:
            self._connect(check_value("wait_for_server", wait_for_server, flag))
        except BaseException:
            self._client.close()
            raise

    def update(self) -> UpdateResult:
        """Send the items that the server does not have, and return when the server has them.

        Items that are inserted during the call wait for the next update. If an update fails, the items that were already sent
        stay at the server.

        Returns:
            The result. It is false if the update failed, and `UpdateResult.error` then has the exception: one of the first four
            below.

        Raises:
            CallTimeout: If a reply did not arrive in time. The next update continues after the last item that the server has.
            CallRefused: Code ``unknown``: the server does not have a data store of this name. Code ``busy``: the server's journal
                or store cannot accept items at the moment.
            CallFailed: If the server's store rejected an item or cannot insert items at the moment, or if the server's data
                callback raised an exception. The server has all items, so nothing is resent.
            PayloadError: If an item is too large or has a type that cannot be sent. This item is skipped and counted, and the
                others were sent.
            StoreFileError: If a data store on disk was replaced by an older copy, so that the server has later items; or if your
                own data store raised an exception (see ``__cause__``). This is raised even if `raises` is False.
            Closed: After `stop`. This is raised even if `raises` is False.
        """
        return self._conclude(_result_of(self._update_all))

    def _update_all(self) -> UpdateResult:
        result = UpdateResult()
        for name in self._feeds:
            part = self._update(name, None)
            result = UpdateResult(
                result.items + part.items,
                {**result.acked, **part.acked},
                result.dropped_at_source + part.dropped_at_source,
                result.error or part.error,
            )
        if result:
            self.counters.add("updates")
        return result

    def update_datastore(self, name: str, from_id: int | None, confirm_update: bool = False) -> UpdateResult:
        """Send the items of one data store after `from_id`.

        The server inserts no item twice, so a small `from_id` is safe. If `from_id` is larger than the last number that the
        server has, the items between these two numbers are sent too.

        Args:
            name: Name of the data store.
            from_id: Number of the last item that need not be sent. None: the last item that the server has.
            confirm_update: True to ask the server afterwards for the number of its last item, as a check.

        Returns:
            The result, as `update`.

        Raises:
            ConfigError: If this trainer client has no such data store.
            CallLost: With `confirm_update`, if the server was restarted and has lost items that it had acknowledged.
            RL4SysError: If the update failed (`update` lists the exceptions).
        """

        def update() -> UpdateResult:
            result = self._update(name, from_id)
            if confirm_update and self._mark(name) < result.acked.get(name, -1):
                raise CallLost(INSERT + name, self._client.address)
            return result

        return self._conclude(_result_of(update))

    def get_server_last_update_id(self, name: str) -> int | None:
        """Return the number of the last item of a data store that the server has, or -1 if the server has none.

        Returns:
            The number. None if the call failed and `raises` is False.

        Raises:
            ConfigError: If this trainer client has no such data store.
            CallTimeout: If no reply arrived.
            CallRefused: If the server has no such data store.
            Closed: After `stop`. This is raised even if `raises` is False.
        """
        return self._unless_it_fails("update", lambda: self._mark(name))

    def _mark(self, name: str) -> int:
        feed = find_store(self._feeds, name)
        acked: int = self._client.call(MARK, {"client": self.name, "store": name, "lineage": feed.store.lineage})
        return acked

    def request(self, type: str, payload: Tree) -> Tree:
        """Make a custom request, which the server's callback answers. The callback runs at most once.

        If the request fails and `raises` is False, the exception, one of the first four below, is logged and counted.

        Args:
            type: One of the configuration's `request_types`.
            payload: Numpy arrays, numbers, strings and bytes, also nested in dicts, lists and tuples.

        Returns:
            The return value of the server's callback. Its arrays are read-only. None if the request failed and `raises` is False.

        Raises:
            CallRefused: Code ``unknown`` if `type` is not in `request_types`, code ``rate`` above the rate limit. Nothing was
                sent.
            CallTimeout: If no reply arrived. The callback may have run, or may still run.
            CallLost: If the server was restarted during the call. The callback may have run.
            CallFailed: If the server's callback raised an exception.
            PayloadError: If the payload cannot be sent. This is raised even if `raises` is False.
            Closed: After `stop`. This is raised even if `raises` is False.
        """
        return self._unless_it_fails("request", lambda: self._request(type, payload))

    def _request(self, type: str, payload: Tree) -> Tree:
        method = f"{REQUEST}{type}"
        if type not in self.config.request_types:
            known = ", ".join(self.config.request_types) or "none"
            raise CallRefused(
                method, self._client.address, CallRefusalReason.UNKNOWN, f"no request type {type!r:.60}; the types are: {known}"
            )
        with self._lock:
            allowed = self._bucket is None or self._bucket.take(1.0, time.monotonic())
        self.counters.add("requests" if allowed else "refused.rate")
        if not allowed:
            detail = f"more than {self.config.rate_limit:g} requests a second"
            raise CallRefused(method, self._client.address, CallRefusalReason.RATE, detail)
        answer = self._client.call(method, {"client": self.name, "payload": payload}, once=True)
        self._failing.pop("request", None)
        return answer

    def recv_network_callback(self, callback: Callable[[Any], object]) -> None:
        """Set the callback that receives published networks, beginning with the newest that exists.

        The callback runs in a separate thread. Its argument is the network's parameters as nested dicts and lists of writable
        numpy arrays. A slow callback misses networks: only the newest waits until the callback returns. An exception of the
        callback is logged and counted. A second callback replaces the first.

        Raises:
            Closed: After `stop`.
        """
        with self._lock:
            first, self._on_network = self._on_network is None, callback
        if first:
            self._client.subscribe(NETWORK, self._on_published)

    def start_async_update(self, interval: float = 10.0) -> None:
        """Start a background thread that calls `update` at once and then every `interval` seconds.

        If an update raises an exception, the exception is logged, counted (``update_failed``) and kept in `last_error`, and the
        next update tries again. A second call of this method does nothing.

        Raises:
            ConfigError: If the interval is not a number above 0 and at most ten years.
            Closed: After `stop`.
        """
        check_value("interval", interval, number(0, above=True))
        with self._lock:
            if self._stopped:
                raise Closed("the trainer client was stopped")
            if self._updater is None:
                self._updater = _UpdateThread(self, interval)
                self._updater.start()

    def stats(self) -> dict[str, float]:
        """Return `counters`, together with the counters of the RPC calls (`rl4sys_zmq.rpc.Caller`)."""
        return {**self._client.counters.snapshot(), **self.counters.snapshot()}

    def stop(self) -> None:
        """End the threads and connections. Unsent items stay in the data stores. A second call does nothing.

        Raises:
            WorkerDied: If the thread of `start_async_update` ended with an exception.
        """
        with self._lock:
            self._stopped = True
        if self._updater is not None:
            self._updater.stop()
        self._client.close()
        if self._updater is not None and self._updater.ident != threading.get_ident():
            self._updater.join()
            self._updater.raise_if_dead()

    def close(self) -> None:
        """Call `stop`."""
        self.stop()

    def _connect(self, wait: bool) -> None:
        """Make the first call and the first update. With `wait`, repeat both until a server answers."""

        def connect() -> UpdateResult:
            self._client.call(STORES)
            return self._update_all()

        try:
            result = first_call(self.name, connect, wait=wait, codes=[CallRefusalReason.CLOSING], level=logging.INFO)
        except CallRefused as exc:
            if exc.code is not CallRefusalReason.UNKNOWN:  # then the trainer can register the data store later
                raise
            result = UpdateResult(error=exc)
        self._conclude(result)

    def _conclude(self, result: UpdateResult) -> UpdateResult:
        """Return `result`. If the update failed, raise its error if `raises` is True, otherwise count and log the error."""
        if result.error is not None and self.raises:
            raise result.error
        self._note(result)
        return result

    def _note(self, result: UpdateResult) -> None:
        if result.error is not None:
            self._failed("update", result.error)
        else:
            self.last_error = None
            self._failing.pop("update", None)

    def _unless_it_fails(self, what: str, call: Callable[[], T]) -> T | None:
        """Return the result of `call`. Raise its failure if `raises` is True, otherwise count and log it, and return None."""
        try:
            return call()
        except CallError as exc:
            if self.raises:
                raise
            self._failed(what, exc)
            return None

    def _failed(self, what: str, error: RL4SysError) -> None:
        """Count a failed update or request (`what`), and log it unless the last failure was of the same kind."""
        self.counters.add("update_failed" if what == "update" else "request_failed")
        self.last_error = error
        if self._failing.get(what) is not type(error):
            self._failing[what] = type(error)
            log.warning("%s: the %s failed, and %s continues: %s", self.name, what, type(self).__name__, error)

    def _update(self, name: str, from_id: int | None) -> UpdateResult:
        """Send the items of a data store that the server does not have. With `from_id`, also send all above this number."""
        feed = find_store(self._feeds, name)
        acked, latest = self._mark(name), feed.latest()
        if acked > latest:
            raise StoreFileError(
                name,
                f"the trainer has the items up to {acked}, and this store ends at {latest}: the trainer would skip new items "
                "under old numbers; delete the store's folder to begin a new one",
            )
        with feed.lock:
            return self._send_all(name, feed, acked if from_id is None else max(-1, min(from_id, acked)))

    def _send_all(self, name: str, feed: UnsentItemReader, from_id: int) -> UpdateResult:
        """Send all items above `from_id` that the store has at the start of this call, and return the result."""
        acked, target = from_id, feed.latest()
        items = dropped = 0
        error: RL4SysError | None = None
        while acked < target:
            first, batch = feed.next_message(acked)
            reply = None
            while reply is None:
                try:
                    reply = self._send(name, feed, acked, first, batch)
                except PayloadError as exc:
                    if len(batch) > 1:
                        batch = batch[: len(batch) // 2]
                        continue
                    error = error or exc
                    first, batch = first + 1, []
                    self.counters.add("unsendable")
            items, dropped, acked = items + reply["fresh"], dropped + reply["dropped"], reply["acked"]
            feed.known = max(feed.known, acked)
            if reply["error"] is not None:
                error = error or CallFailed(INSERT + name, self._client.address, *reply["error"])
        self.counters.add("items", items)
        self.counters.add("dropped_at_source", dropped)
        return UpdateResult(items, {name: acked}, dropped, error)

    def _send(self, name: str, feed: UnsentItemReader, after: int, first: int, batch: list[Any]) -> dict[str, Any]:
        payload = {
            **pack_items(batch),
            "client": self.name,
            "lineage": feed.store.lineage,
            "after": after,
            "known": feed.known,
            "first": first,
        }
        try:
            reply: dict[str, Any] = self._client.call(INSERT + name, payload)
        except CallRefused as exc:
            if exc.code is CallRefusalReason.TOO_LARGE:
                raise PayloadError("payload", exc.detail) from exc
            raise
        self.counters.add("messages")
        return reply

    def _on_published(self, params: Tree, number: int) -> None:
        with self._lock:
            callback, self.network_version = self._on_network, number
        if callback is not None:
            callback(copy_tree(params))


def _result_of(update: Callable[[], UpdateResult]) -> UpdateResult:
    try:
        return update()
    except CallError as exc:
        return UpdateResult(error=exc)


class _UpdateThread(Worker):
    """The thread that calls `TrainerClient.update` every `interval_s` seconds."""

    def __init__(self, client: TrainerClient, interval_s: float) -> None:
        super().__init__(f"rl4sys-trainer-update-{client.name}")
        self._client, self._interval_s = client, interval_s

    def run(self) -> None:
        """Update until `stop`."""
        client = self._client
        while not self._stop_asked.is_set():
            try:
                result = client._update_all()
            except RL4SysError as exc:
                result = UpdateResult(error=exc)
            if self._stop_asked.is_set():
                return
            client._note(result)
            self._stop_asked.wait(self._interval_s)
