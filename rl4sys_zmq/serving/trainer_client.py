"""The actor's side of a trainer: data stores whose items go to the server, requests, and the newest network."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import (
    CallFailed,
    CallLost,
    CallRefusal,
    CallRefused,
    CallTimeout,
    Closed,
    ConfigError,
    PayloadError,
    RL4SysError,
    StoreError,
)
from rl4sys_zmq.names import check_name
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.rpc import Caller
from rl4sys_zmq.security import TokenBucket
from rl4sys_zmq.serving.data import DataStoreBase
from rl4sys_zmq.serving.trainer_config import TrainerConfig, check_config
from rl4sys_zmq.serving.trainer_items import pack_items, payload_bytes
from rl4sys_zmq.serving.trainer_server import INSERT, MARK, NETWORK, REQUEST, STORES
from rl4sys_zmq.values.trees import Tree, copy_tree

__all__ = ["TrainerClient", "UpdateResult"]

log = logging.getLogger(__name__)

MESSAGE_BYTES = 4 << 20
"""An update is cut into messages of about this size."""
MESSAGE_ITEMS = 4096
FIRST_ITEMS = 64
"""How many items are read at first, if so many of the size of the first go into a message."""


@dataclass(frozen=True)
class UpdateResult:
    """What an update brought. It is true: an update that fails raises.

    Attributes:
        items: how many the server took that it did not have.
        acked: for each data store, the number of the last item that the server has; -1 when it has none.
        dropped_at_source: how many items the data stores had dropped before they were sent.
    """

    items: int = 0
    acked: dict[str, int] = field(default_factory=dict)
    dropped_at_source: int = 0


class _StoreFeed:
    """One data store of a client, and what is known of it at the server."""

    def __init__(self, store: DataStoreBase) -> None:
        self.store = store
        self.lock = threading.Lock()
        self.known = -1
        self.items = 0

    def latest(self) -> int:
        """The number of the store's newest item.

        Raises:
            StoreError: when the store cannot say.
        """
        with _border(self.store):
            return self.store.latest_data_id()

    def read_after(self, from_id: int) -> tuple[int, list[Any]]:
        """The next items of the store, and the number of the first.

        Raises:
            StoreError: when the store cannot read them.
        """
        with _border(self.store):
            if not self.items:
                _, one = self.store.read_after(from_id, 1)
                self.items = max(1, min(FIRST_ITEMS, MESSAGE_BYTES // (1 + payload_bytes(one))))
            return self.store.read_after(from_id, self.items)


class TrainerClient(Resource):
    """Sends the items of data stores to a `TrainerServer`, each once and in their order. Any thread may use it.

    The data stores hold what has not been sent: one that is kept on disk (`ReplayBuffer(path=...)`) goes on after a restart of
    the client where the server's acknowledgements ended. What a store drops for want of room before it was sent is counted.

    Attributes:
        name: by which the server knows it. With the lineage of a data store it names a stream of items, so two clients of one
            name do not mix.
        data_stores: by the names of the server's.
        network_version: the number of the newest network that came; 0 before.
        last_error: what the last update in the background raised; None when it went well.
        counters: ``items``, ``messages``, ``dropped_at_source``, ``unsendable`` (items that cannot travel), ``updates``,
            ``update_failed``, ``requests``, ``refused.rate``, and those of `rl4sys_zmq.rpc.Caller` in `stats`.
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
        keys: str | Path | None = None,
    ) -> None:
        """Finds the server, compares the configuration, and sends what the data stores hold.

        Args:
            name: of this client.
            server_ip: the server's host or IP address, or its URI.
            config: as the server's.
            data_store: the only data store, which goes into the server's of this client's name; or
            data_stores: data stores by the names of the server's.
            log_level: of the logger ``rl4sys_zmq``; None leaves it alone.
            wait_for_server: wait for as long as no server answers, here alone; later calls have `timeout_ms`.
            timeout_ms: how long to wait for each answer, in milliseconds.
            keys: the file of this client's keys, for a server that has keys.

        Raises:
            ConfigError: for arguments that can't be.
            CallTimeout: no server answered, and it was not to be waited for.
            CallRefused: ``mismatch``, with the name of the field, for another configuration; ``unknown`` for a data store that
                the server has not.
            CallFailed: as `update` does: what could be sent was, and the client is not made.
            PayloadError: likewise.
            StoreError: likewise.
        """
        self.name = check_name(name, "name")
        self.config = check_config(config)
        if data_store is not None and data_stores:
            raise ConfigError("data_store and data_stores are two ways to say the same; use one", key="data_store")
        stores = {name: data_store} if data_store is not None else dict(data_stores or {})
        for key, store in stores.items():
            check_name(key, "data_stores")
            if not isinstance(store, DataStoreBase):
                raise ConfigError(f"{key!r} is a DataStoreBase, not a {type(store).__qualname__}", key="data_stores")
        if log_level is not None:
            logging.getLogger("rl4sys_zmq").setLevel(log_level)
        self.data_stores: Mapping[str, DataStoreBase] = stores
        self.network_version = 0
        self.last_error: RL4SysError | None = None
        self.counters = Counters()
        self._feeds = {key: _StoreFeed(store) for key, store in stores.items()}
        self._lock = threading.Lock()
        self._bucket = TokenBucket(config.rate_limit, time.monotonic()) if config.rate_limit is not None else None
        self._on_network: Callable[[Any], object] | None = None
        self._updater: _Updater | None = None
        self._stopped = False
        self._client = Caller(config.dial_address(server_ip), timeout_s=timeout_ms / 1000, terms=config.terms(), keys=keys)
        try:
            self._begin(wait_for_server)
        except BaseException:
            self._client.close()
            raise

    def update(self) -> UpdateResult:
        """Sends what the data stores hold and the server has not; returns when the server has it.

        What is inserted meanwhile is left for the next update. An update that fails half way has sent the first half.

        Raises:
            CallTimeout: an answer did not come; the next update goes on from what the server has.
            CallRefused: the server would not take it (``unknown``: it has no such data store; ``busy``: its journal takes nothing
                for now, or its store did not take what came before; ``too_large``: an item was, which is skipped and counted, and
                the others were sent).
            CallFailed: the server's store would not have an item, or takes nothing for now, or the data callback raised. All the
                same the server has all that was sent, and it is not sent again.
            PayloadError: an item cannot travel. It is skipped and counted; the others were sent.
            StoreError: a data store on disk has lost items that the server has: an older copy was put in its place. Or a data
                store of your own raised something (its ``__cause__``).
            Closed: after `stop`.
        """
        done = UpdateResult()
        trouble: RL4SysError | None = None
        for name in self._feeds:
            try:
                part = self._update(name, None)
            except (CallFailed, CallRefused, PayloadError) as exc:
                if isinstance(exc, CallRefused) and exc.code is not CallRefusal.TOO_LARGE:
                    raise
                trouble = trouble or exc
            else:
                done = UpdateResult(
                    done.items + part.items, {**done.acked, **part.acked}, done.dropped_at_source + part.dropped_at_source
                )
        if trouble is not None:
            raise trouble
        self._count("updates")
        return done

    def update_datastore(self, name: str, from_id: int, confirm_update: bool = False) -> UpdateResult:
        """Sends what one data store holds after `from_id`.

        The server's acknowledged id counts all the same: what it has is not taken again, and what lies between it and a
        larger `from_id` is sent.

        Args:
            name: of the data store.
            from_id: the last number that need not be sent.
            confirm_update: ask the server once more afterwards.

        Raises:
            ConfigError: this client has no such data store.
            CallLost: with `confirm_update`, when the server was restarted and has forgotten what it acknowledged.
            CallError: as `update`.
        """
        done = self._update(name, from_id)
        if confirm_update and self.get_server_last_update_id(name) < done.acked[name]:
            raise CallLost(INSERT + name, self._client.address)
        return done

    def get_server_last_update_id(self, name: str) -> int:
        """The number of the last item of a data store that the server has; -1 when it has none.

        Raises:
            ConfigError: this client has no such data store.
            CallTimeout: no answer came.
            CallRefused: the server has no such data store.
            Closed: after `stop`.
        """
        feed = self._feed(name)
        acked: int = self._client.call(MARK, {"client": self.name, "store": name, "lineage": feed.store.lineage})
        return acked

    def request(self, type: str, payload: Tree) -> Tree:
        """Makes a custom request; the server's callback runs once, or not at all.

        Args:
            type: one of the configuration's `request_types`.
            payload: a tree of arrays, scalars, strings and bytes.

        Returns:
            What the server's callback returned; its arrays are read-only.

        Raises:
            CallRefused: ``unknown`` for another type, ``rate`` beyond the rate limit: then nothing was sent.
            CallTimeout: no answer came; it may have run, or run yet.
            CallLost: the server was restarted meanwhile: whether it ran is unknown.
            CallFailed: the server's callback raised.
            PayloadError: the payload can't travel.
            Closed: after `stop`.
        """
        method = f"{REQUEST}{type}"
        if type not in self.config.request_types:
            known = ", ".join(self.config.request_types) or "none"
            raise CallRefused(
                method, self._client.address, CallRefusal.UNKNOWN, f"no request type {type!r:.60}; there is {known}"
            )
        with self._lock:
            allowed = self._bucket is None or self._bucket.take(1.0, time.monotonic())
            self.counters.add("requests" if allowed else "refused.rate")
        if not allowed:
            detail = f"more than {self.config.rate_limit:g} requests a second"
            raise CallRefused(method, self._client.address, CallRefusal.RATE, detail)
        return self._client.call(method, {"client": self.name, "payload": payload}, once=True)

    def recv_network_callback(self, callback: Callable[[Any], object]) -> None:
        """Has a callback called with each network that arrives, beginning with the newest that there is.

        It runs in a thread of its own, gets a tree of numpy arrays that it may write to, and misses what a newer one overtakes.
        What it raises is logged and counted. A second callback takes the place of the first.

        Raises:
            Closed: after `stop`.
        """
        with self._lock:
            first, self._on_network = self._on_network is None, callback
        if first:
            self._client.subscribe(NETWORK, self._take_network)

    def start_async_update(self, interval: float = 10.0) -> None:
        """Updates each `interval` seconds in a thread of its own, at once for the first time.

        What an update raises is logged, counted (``update_failed``) and kept in `last_error`, and the next one tries again. A
        second call does nothing.

        Raises:
            ConfigError: when the interval is not positive.
            Closed: after `stop`.
        """
        if not interval > 0:
            raise ConfigError(f"interval is more than 0 seconds, not {interval!r:.60}", key="interval")
        with self._lock:
            if self._stopped:
                raise Closed("the trainer client was stopped")
            if self._updater is None:
                self._updater = _Updater(self, interval)
                self._updater.start()

    def stats(self) -> dict[str, float]:
        """Its counters, and those of its calls."""
        return {**self._client.counters.snapshot(), **self.counters.snapshot()}

    def stop(self) -> None:
        """Ends its threads and connections; what was not sent stays in the data stores. A second call does nothing.

        Raises:
            WorkerDied: when the thread of `start_async_update` died.
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
        """`stop`."""
        self.stop()

    # ---- inside

    def _begin(self, wait: bool) -> None:
        """Greets, and sends what the data stores hold; with `wait` again for as long as a server is away."""
        while True:
            try:
                self._client.call(STORES)
                self.update()
            except (CallTimeout, CallRefused) as exc:
                if not wait or (isinstance(exc, CallRefused) and exc.code is not CallRefusal.CLOSING):
                    raise
                log.info("waiting for a trainer at %s", self._client.address)
            else:
                return

    def _update(self, name: str, from_id: int | None) -> UpdateResult:
        """Sends what the server lacks of a data store; what comes after `from_id` also if it has it."""
        feed = self._feed(name)
        acked, latest = self.get_server_last_update_id(name), feed.latest()
        if acked > latest:
            raise StoreError(
                name,
                f"the trainer has the items up to {acked}, and this store ends at {latest}: new items under old numbers would "
                "not be taken; delete its folder to begin a new one",
            )
        with feed.lock:
            done, trouble = self._send_all(name, feed, acked if from_id is None else max(-1, min(from_id, acked)))
        if trouble is not None:
            raise trouble
        return done

    def _feed(self, name: str) -> _StoreFeed:
        feed = self._feeds.get(name)
        if feed is None:
            known = ", ".join(sorted(self._feeds)) or "none"
            raise ConfigError(f"this client has no data store {name!r:.60}; it has {known}", key=str(name)[:100])
        return feed

    def _send_all(self, name: str, feed: _StoreFeed, from_id: int) -> tuple[UpdateResult, RL4SysError | None]:
        """Sends up to what the store holds now, message by message; what went wrong without ending it comes back."""
        acked, target = from_id, feed.latest()
        items = dropped = 0
        trouble: RL4SysError | None = None
        while acked < target:
            first, batch = feed.read_after(acked)
            batch = _cut(batch, feed)
            said = None
            while said is None:
                try:
                    said = self._send(name, feed, acked, first, batch)
                except (PayloadError, CallRefused) as exc:
                    if isinstance(exc, CallRefused) and exc.code is not CallRefusal.TOO_LARGE:
                        raise
                    if len(batch) > 1:
                        batch = batch[: len(batch) // 2]
                        continue
                    trouble = trouble or exc
                    first, batch = first + 1, []
                    self._count("unsendable")
            items, dropped, acked = items + said["fresh"], dropped + said["dropped"], said["acked"]
            feed.known = max(feed.known, acked)
            if said["error"] is not None:
                trouble = trouble or CallFailed(INSERT + name, self._client.address, *said["error"])
        self._count("items", items)
        self._count("dropped_at_source", dropped)
        return UpdateResult(items, {name: acked}, dropped), trouble

    def _send(self, name: str, feed: _StoreFeed, after: int, first: int, batch: list[Any]) -> dict[str, Any]:
        payload = {
            **pack_items(batch),
            "client": self.name,
            "lineage": feed.store.lineage,
            "after": after,
            "known": feed.known,
            "first": first,
        }
        try:
            said: dict[str, Any] = self._client.call(INSERT + name, payload)
        except CallRefused as exc:
            if exc.code is CallRefusal.TOO_LARGE:
                raise PayloadError("payload", exc.detail) from exc
            raise
        self._count("messages")
        return said

    def _take_network(self, params: Tree, number: int) -> None:
        with self._lock:
            callback, self.network_version = self._on_network, number
        if callback is not None:
            callback(copy_tree(params))

    def _count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self.counters.add(name, amount)


class _Updater(Worker):
    """The thread of `TrainerClient.start_async_update`."""

    def __init__(self, client: TrainerClient, interval_s: float) -> None:
        super().__init__(f"rl4sys-trainer-update-{client.name}")
        self._client, self._interval_s = client, interval_s
        self._stopping = threading.Event()

    def run(self) -> None:
        """The thread's body."""
        client = self._client
        while not self._stopping.is_set():
            try:
                client.update()
            except RL4SysError as exc:
                if self._stopping.is_set():
                    return
                client._count("update_failed")
                if type(exc) is not type(client.last_error):
                    log.warning("an update of %s failed: %s", client.name, exc)
                client.last_error = exc
            else:
                client.last_error = None
            self._stopping.wait(self._interval_s)

    def stop(self) -> None:
        """Ends it; a call under way ends with the client's connection."""
        self._stopping.set()


@contextlib.contextmanager
def _border(store: DataStoreBase) -> Iterator[None]:
    """Foreign exceptions stop here: a user's store may raise anything."""
    try:
        yield
    except RL4SysError:
        raise
    except Exception as exc:
        raise StoreError(type(store).__qualname__, f"cannot be read: {type(exc).__name__}: {exc}") from exc


def _cut(batch: list[Any], feed: _StoreFeed) -> list[Any]:
    """As many items as one message takes, and how many to read the next time."""
    size = 0
    for count, item in enumerate(batch):
        size += payload_bytes(item)
        if count and size > MESSAGE_BYTES:
            feed.items = count
            return batch[:count]
    feed.items = min(MESSAGE_ITEMS, 2 * feed.items)
    return batch
