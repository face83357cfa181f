"""A server for your own training process: it receives actors' data, answers custom requests, and publishes networks."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rl4sys_zmq.config.options import Check, callback, check_value, instance_of, integer, name, one_of, optional, path
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallRefusalReason, Closed, ConfigError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import check_name
from rl4sys_zmq.rpc import CallRefusedByCallback, Server
from rl4sys_zmq.security.access import TokenBucket
from rl4sys_zmq.serving.config import TrainerConfig, set_log_level
from rl4sys_zmq.serving.data import DataStoreBase
from rl4sys_zmq.serving.inference import ThreadedServer
from rl4sys_zmq.serving.store_ingest import DataCallback, StoreInserter
from rl4sys_zmq.serving.trainer_journal import StoreJournal
from rl4sys_zmq.serving.trainer_transfer import DATA_STORE, find_store, params_as_arrays, payload_bytes, unpack_items
from rl4sys_zmq.values.trees import Tree

log = get_logger(__name__)

STORES, MARK, INSERT, REQUEST, NETWORK = "stores", "mark", "insert/", "request/", "network"
"""The RPC methods, and the topic of networks. `INSERT` precedes the name of a store, `REQUEST` the type of a request."""
STREAM: dict[str, Check[Any]] = {"client": name, "lineage": integer(1, (1 << 63) - 1)}
MARK_NUMBER = integer(-1, (1 << 62) - 1)
SUBMIT_ROLE = "submit"
JOURNAL_BYTES = 1 << 30
MAX_CALLERS = 4096
RATE_LIMIT_MARGIN = 1.1
"""The server's rate limit divided by the client's, because calls can arrive less evenly than they were made."""

RequestCallback = Callable[[str, Any], Any]


class TrainerServer(ThreadedServer):
    """A server that copies items from actors' data stores to its own data stores, for your own training process.

    Each actor connects with a `TrainerClient`. The server also answers custom requests and publishes networks. Each item enters
    the server's data store once and in order.

    With `run_dir`, this guarantee also holds if the server or a trainer client is killed, because a journal on disk has each
    acknowledged item. A server that is started again with the same `run_dir` refills its data stores with the newest items, as
    many as the store's capacity and `journal_bytes` allow. Without `run_dir`, a restarted server is empty, and its trainer
    clients resend the items that their stores still have.
    """

    def __init__(  # noqa: PLR0913 - its call shape is agentlace's
        self,
        config: TrainerConfig,
        data_callback: DataCallback | None = None,
        request_callback: RequestCallback | None = None,
        log_level: int | None = None,
        *,
        run_dir: str | Path | None = None,
        journal_bytes: int = JOURNAL_BYTES,
        fsync: Literal["normal", "always"] = "normal",
        keys: str | Path | None = None,
        users: str | Path | None = None,
        insecure: bool = False,
    ) -> None:
        """Create the server. It binds no address before `start`.

        Args:
            config: Configuration. Trainer clients must use an equal configuration; see `TrainerConfig`.
            data_callback: Function that is called after items were inserted into a data store. Its arguments are the store's
                name and ``{"data": items, "last_id": number, "client": name}``. It must not write to the items. It runs in a
                thread of the server, possibly for two stores at the same time. While it runs, its store accepts no items. If it
                raises an exception, the trainer client gets the error, and the items stay in the store.
            request_callback: Function that answers custom requests, one at a time. Its arguments are the type and the payload
                of the request. It returns the reply. If it raises an exception, the caller gets the error. None: the reply to
                each request is an empty dict, as in agentlace; if the configuration has `request_types`, this is logged.
            log_level: Level of the logger ``rl4sys_zmq``; None leaves it unchanged.
            run_dir: Folder of the journal. None: nothing is written to disk.
            journal_bytes: Largest number of bytes that the journal keeps for each data store.
            fsync: With ``"normal"`` acknowledged items survive the end of the process, with ``"always"`` also a loss of power.
            keys: Folder of the server's keys (`rl4sys-learner keys DIR`). With None any peer that reaches the address can
                connect.
            users: Path of the access list. None: ``users.toml`` in `keys`. A user needs the role ``call``, to send items also
                ``submit``, and to receive networks also ``read_weights``.
            insecure: True to let other machines connect without keys.

        Raises:
            ConfigError: If the configuration is invalid, or other machines can reach an address and neither `keys` nor
                `insecure` is given.
            RunDirectoryError: If `run_dir` cannot be created.
            JournalError: If the journal is in use, cannot be read or written, or belongs to another version.
        """
        self.config = check_value("config", config, instance_of(TrainerConfig))
        if self.config.request_types and request_callback is None:
            kinds = ", ".join(self.config.request_types)
            log.warning("no request_callback was given, so the reply to each request (%s) is an empty dict", kinds)
        set_log_level(log_level)
        self._data_callback = check_value("data_callback", data_callback, optional(callback))
        self._request_callback = check_value("request_callback", request_callback, optional(callback))
        self._journal_bytes = check_value("journal_bytes", journal_bytes, integer(1, 1 << 62))
        self._lock = threading.Lock()
        self._counters = Counters()
        self._ingests: dict[str, StoreInserter] = {}
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._version = 0
        self._stopped = False
        folder = check_value("run_dir", run_dir, optional(path))
        check_value("fsync", fsync, one_of("normal", "always"))
        self._journal = StoreJournal(folder, fsync) if folder is not None else None
        try:
            self._server = Server(
                self.config.bind_address(),
                name="trainer",
                pub=self.config.broadcast_address(),
                terms=self.config.terms(),
                keys=keys,
                users=users,
                insecure=insecure,
            )
        except BaseException:
            if self._journal is not None:
                self._journal.close()
            raise
        self._server.register(STORES, lambda _: sorted(self._ingests))
        self._server.register(MARK, self._mark, role=SUBMIT_ROLE)
        for kind in self.config.request_types:
            self._server.register(REQUEST + kind, partial(self._request, kind), concurrency_group="requests")

    def register_data_store(self, name: str, data_store: DataStoreBase) -> None:
        """Register a data store that trainer clients fill. If the server has a journal, first refill the store from it.

        From then on, only the server can insert items into the store. Any thread can read the store.

        Raises:
            ConfigError: If the name is invalid or already registered; if the store is not a `DataStoreBase` or is registered
                under another name; or if it is on disk and has items but the server has no journal, because trainer clients
                would resend these items.
            JournalError: If the journal cannot be read.
            StoreFileError: If the store rejects the items of the journal. In this case, register a new store.
            Closed: After `stop`.
        """
        check_name(name, "name")
        check_value("data_store", data_store, DATA_STORE)
        if data_store.on_disk and len(data_store) > 0 and self._journal is None:
            raise ConfigError(
                f"store {name!r} has {len(data_store)} items on disk already, and without a journal trainer clients would "
                "resend them: give run_dir from the start, or an empty store (in an empty folder)",
                key="data_store",
            )
        ingest = StoreInserter(name, data_store, self._journal, self._journal_bytes, self._data_callback)
        with self._lock:
            if self._stopped:
                raise Closed("the trainer server was stopped")
            if name in self._ingests:
                raise ConfigError(f"a data store {name!r} is already registered", key="name")
            other = next((s.name for s in self._ingests.values() if s.store is data_store), None)
            if other is not None:
                raise ConfigError(f"{name!r} is the data store {other!r} already; give each name its own", key="data_store")
            if self._journal is not None:
                ingest.refill(self._journal.streams)
            self._ingests[name] = ingest
        self._server.register(INSERT + name, partial(self._insert, ingest), role=SUBMIT_ROLE)

    def data_store(self, name: str) -> DataStoreBase:
        """Return a registered data store.

        Raises:
            ConfigError: If no store has this name.
        """
        return find_store(self._ingests, name).store

    def store_names(self) -> set[str]:
        """Return the names of the registered data stores."""
        return set(self._ingests)

    def publish_network(self, params: object) -> int:
        """Send a network to all trainer clients that subscribe, now or later. Only the newest network is kept.

        Args:
            params: Parameters of the network: nested mappings, lists and tuples of arrays of any framework. They are copied.

        Returns:
            The version of the network: 1 for the first that this server publishes, then 2, 3, ...

        Raises:
            PayloadError: If a part of `params` cannot be sent. The message has the path of the part.
            Closed: After `stop`.
        """
        arrays = params_as_arrays(params)
        with self._lock:
            self._version = self._server.publish(NETWORK, arrays)
            return self._version

    def start(self, threaded: bool = False) -> None:
        """Bind the addresses and serve.

        Args:
            threaded: True to serve in background threads and return at once. False to block until another thread calls `stop` or
                Ctrl-C is pressed.

        Raises:
            AddressInUse: If another process has bound an address.
            TransportError: If an address cannot be bound.
            Closed: After `stop`.
        """
        if self._stopped:
            raise Closed("the trainer server was stopped; create a new one")
        try:
            super().start(threaded)
        finally:
            if not threaded:
                self.stop()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Refuse waiting calls, join the threads, and close the sockets and the journal. A second call does nothing.

        Raises:
            CallbackStuck: If a callback does not return within `timeout_s` seconds. Everything else is closed.
        """
        with self._lock:
            self._stopped = True
        if self._journal is not None:
            self._journal.give_up()
        try:
            self._server.stop(timeout_s)
        finally:
            if self._journal is not None:
                self._journal.close()

    def status(self) -> dict[str, Any]:
        """Return the state and the counters of the server.

        Returns:
            The status of the RPC server (addresses, callers, queues), with these further keys. ``stores``: a dict for each data
            store, by name. ``network_version``: version of the newest network. ``journal``: ``used_bytes`` and ``error``, or None
            without a journal. ``counters``: ``bytes``, ``updates``, ``requests``, ``callback_failed`` and ``refused.CODE``;
            and, in items, ``accepted``, ``duplicates``, ``dropped_at_source``, ``forgotten`` (lost although an earlier server
            acknowledged them), ``refilled`` and ``refused.data``.
        """
        status = self._server.status()
        counters = dict.fromkeys(
            ("accepted", "duplicates", "dropped_at_source", "forgotten", "updates", "requests", "bytes"), 0.0
        )
        for part in (status["counters"], self._counters.snapshot(), *(s.counters.snapshot() for s in self._ingests.values())):
            for key, value in part.items():
                counters[key] = counters.get(key, 0.0) + value
        journal = self._journal.state() if self._journal is not None else None
        return {
            **status,
            "stores": {name: ingest.status() for name, ingest in self._ingests.items()},
            "network_version": self._version,
            "journal": None if journal is None else {"used_bytes": journal.used_bytes, "error": journal.error},
            "counters": counters,
        }

    def _mark(self, payload: Tree) -> Tree:
        client, lineage, store = _read(payload, **STREAM, store=_anything)
        try:
            ingest = find_store(self._ingests, store)
        except ConfigError as exc:
            raise CallRefusedByCallback(CallRefusalReason.UNKNOWN, str(exc)) from exc
        return ingest.mark((client, lineage))

    def _insert(self, ingest: StoreInserter, payload: Tree) -> Tree:
        numbers = dict.fromkeys(("after", "known", "first"), MARK_NUMBER)
        client, lineage, after, known, first, columns = _read(payload, **STREAM, **numbers, columns=_anything)
        if first <= -1 or after >= first:
            problem = f"the first item has the number {first}, which does not follow the mark {after}"
            raise CallRefusedByCallback(CallRefusalReason.INVALID, problem)
        items = unpack_items(payload)
        ingest.insert_waiting()
        reply = ingest.insert((client, lineage), items, after=after, known=known, first=first)
        self._counters.add("updates")
        self._counters.add("bytes", payload_bytes(columns))
        return ingest.report(reply)

    def _request(self, kind: str, payload: Tree) -> Tree:
        client, arguments = _read(payload, client=name, payload=_anything)
        self._counters.add("requests")
        with self._lock:
            self._limit(client)
        return {} if self._request_callback is None else self._request_callback(kind, arguments)

    def _limit(self, client: str) -> None:
        rate, now = self.config.rate_limit, time.monotonic()
        if rate is None:
            return
        bucket = self._buckets.setdefault(client, TokenBucket(rate * RATE_LIMIT_MARGIN, now))
        self._buckets.move_to_end(client)
        while len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        if not bucket.take(1.0, now):
            raise CallRefusedByCallback(CallRefusalReason.RATE, f"more than {rate:g} requests a second from {client}")


def _anything(value: object) -> object:
    return value


def _read(payload: Tree, /, **checks: Check[Any]) -> list[Any]:
    """Return the fields of a trainer client's payload that `checks` names. Refuse the call if one of them is invalid."""
    if type(payload) is not dict:
        raise CallRefusedByCallback(CallRefusalReason.INVALID, "the payload is not that of a trainer client; expected a dict")
    try:
        return [check_value(key, payload.get(key), check) for key, check in checks.items()]
    except ConfigError as exc:
        raise CallRefusedByCallback(CallRefusalReason.INVALID, str(exc)) from exc
