"""The trainer's side: data stores that clients feed, custom requests, and networks for everybody."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallRefusal, Closed, ConfigError
from rl4sys_zmq.names import MAX_NAME, check_name
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc import Refuse, Server
from rl4sys_zmq.security import TokenBucket
from rl4sys_zmq.serving.data import DataStoreBase
from rl4sys_zmq.serving.store_ingest import InsertedItems, InsertRequest, StoreIngest
from rl4sys_zmq.serving.trainer_config import TrainerConfig, check_config
from rl4sys_zmq.serving.trainer_items import payload_bytes, unpack_items
from rl4sys_zmq.serving.trainer_journal import StoreJournal, StreamKey
from rl4sys_zmq.serving.trainer_params import params_as_arrays
from rl4sys_zmq.wire.trees import Tree

__all__ = ["INSERT", "MARK", "NETWORK", "REQUEST", "STORES", "TrainerServer"]

log = logging.getLogger(__name__)

STORES, MARK, INSERT, REQUEST, NETWORK = "stores", "mark", "insert/", "request/", "network"
"""What a client calls; the names of stores and of requests follow the stroke. And the topic of networks."""
SUBMIT_ROLE = "submit"
JOURNAL_BYTES = 1 << 30
MAX_CALLERS = 4096
SLACK = 1.1
"""The server's rate limit is this much above the client's own, as calls do not arrive as evenly as they are made."""

DataCallback = Callable[[str, dict[str, Any]], object]
RequestCallback = Callable[[str, Any], Any]


class TrainerServer(Resource):
    """Takes what clients (`TrainerClient`) have in their data stores into its own, answers requests, and publishes networks.

    Each item of a client's store comes into the server's once, in order. With a `run_dir` that holds over the death of either
    process: an item that was acknowledged is on disk, and a server of the same `run_dir` begins with its stores full again: with
    the newest items of each, as many as the store's capacity and `journal_bytes` allow. Without it a restarted server is empty,
    and its clients send again what they still hold.
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
        """Binds nothing yet.

        Args:
            config: what the clients must have too.
            data_callback: called with a store's name and ``{"data": items, "last_id": number, "client": name}`` after items have
                come into a store, with those that have. The items are not to be written to. It runs in a thread of the server,
                for two stores perhaps at once; while it runs, its store takes nothing. What it raises goes to the client; the
                items stay.
            request_callback: called with the type and the payload of a custom request, one request after another; what it
                returns is the answer, what it raises goes to the client.
            log_level: of the logger ``rl4sys_zmq``; None leaves it alone.
            run_dir: the folder of the journal; None keeps nothing on disk.
            journal_bytes: how much of each store the journal keeps.
            fsync: "normal" survives the process, "always" also the machine's loss of power.
            keys: the folder of the server's keys (`rl4sys-learner keys DIR`); None: whoever reaches the address may come in.
            users: the access list; None: ``users.toml`` in `keys`. A caller needs the role ``call``, for data also ``submit``,
                for networks also ``read_weights``.
            insecure: let other machines come in without keys.

        Raises:
            ConfigError: for a configuration that can't be, or an address that other machines reach, without keys.
            RunDirectoryError: when there can be no `run_dir`.
            JournalError: when its journal is in use, can't be written or read, or is another version's.
        """
        self.config = check_config(config)
        if self.config.request_types and request_callback is None:
            raise ConfigError("request_types without a request_callback that could answer them", key="request_callback")
        if type(journal_bytes) is not int or journal_bytes < 1:
            raise ConfigError(f"journal_bytes is a positive integer, not {journal_bytes!r:.60}", key="journal_bytes")
        if log_level is not None:
            logging.getLogger("rl4sys_zmq").setLevel(log_level)
        self._data_callback, self._request_callback = data_callback, request_callback
        self._journal_bytes = journal_bytes
        self._lock = threading.Lock()
        self._counters = Counters()
        self._ingests: dict[str, StoreIngest] = {}
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._version = 0
        self._stopped = False
        self._journal = StoreJournal(Path(run_dir), fsync) if run_dir is not None else None
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
        """Has clients feed a data store; with a journal, after what the journal has was put into it.

        The store may be read by anybody, and nobody else inserts into it from now on.

        Raises:
            ConfigError: when the name is taken or can't be one, the store is no `DataStoreBase`, has another name already, or is
                on disk and has items, and there is no journal that says which those are: clients would send them again.
            JournalError: when the journal cannot be read.
            StoreError: when the store takes nothing of what the journal has; register a new one.
            Closed: after `stop`.
        """
        check_name(name, "name")
        if not isinstance(data_store, DataStoreBase):
            raise ConfigError(f"data_store is a DataStoreBase, not a {type(data_store).__qualname__}", key="data_store")
        if data_store.on_disk and len(data_store) > 0 and self._journal is None:
            raise ConfigError(
                f"store {name!r} has {len(data_store)} items on disk already, and without a journal clients would send them "
                "again: give run_dir from the start, or an empty store (in an empty folder)",
                key="data_store",
            )
        ingest = StoreIngest(name, data_store, self._journal, self._journal_bytes)
        with self._lock:
            if self._stopped:
                raise Closed("the trainer was stopped")
            if name in self._ingests:
                raise ConfigError(f"there is a data store {name!r} already", key="name")
            other = next((s.name for s in self._ingests.values() if s.store is data_store), None)
            if other is not None:
                raise ConfigError(f"{name!r} is the data store {other!r} already; each name has its own", key="data_store")
            if self._journal is not None:
                ingest.refill(self._journal.streams)
            self._ingests[name] = ingest
        self._server.register(INSERT + name, partial(self._insert, ingest), role=SUBMIT_ROLE)

    def data_store(self, name: str) -> DataStoreBase:
        """A registered data store.

        Raises:
            ConfigError: when there is none of that name.
        """
        return self._ingest(name).store

    def store_names(self) -> set[str]:
        """The names of the registered data stores."""
        return set(self._ingests)

    def publish_network(self, params: object) -> int:
        """Gives a network to every client that wants one, also to those that come later; the newest wins.

        Args:
            params: nested mappings, lists and tuples of arrays of any framework. They are copied.

        Returns:
            Its version: the number of the networks that this server has published.

        Raises:
            PayloadError: for what cannot travel, with its path.
            Closed: after `stop`.
        """
        arrays = params_as_arrays(params)
        with self._lock:
            self._version = self._server.publish(NETWORK, arrays)
            return self._version

    def start(self, threaded: bool = False) -> None:
        """Serves: until `stop` is called or Ctrl-C comes, or `threaded` in threads of its own.

        Raises:
            AddressInUse: when somebody else binds an address.
            TransportError: when one cannot be bound.
            Closed: after `stop`.
        """
        if self._stopped:
            raise Closed("the trainer was stopped; make a new one")
        if threaded:
            self._server.start()
            return
        try:
            self._server.run()
        finally:
            self.stop()

    def stop(self) -> None:
        """Refuses what waits, joins the threads, closes the sockets and the journal. A second call does nothing.

        Raises:
            CallbackStuck: when a callback does not return within five seconds; everything else is closed.
        """
        with self._lock:
            self._stopped = True
        if self._journal is not None:
            self._journal.give_up()
        try:
            self._server.stop()
        finally:
            if self._journal is not None:
                self._journal.close()

    def close(self) -> None:
        """`stop`."""
        self.stop()

    @property
    def address(self) -> str:
        """Where clients find it, as a URI.

        Raises:
            Closed: before `start`.
        """
        return self._server.address

    def status(self) -> dict[str, Any]:
        """What it has done.

        Returns:
            What the server of calls says (addresses, callers, what waits), and: ``stores``, by name; ``network_version``;
            ``journal``, None without one; ``counters``: ``accepted``, ``duplicates``, ``dropped_at_source``, ``forgotten``,
            ``refilled``, ``refused.data`` in items, ``bytes``, ``updates``, ``requests``, ``callback_failed``, ``refused.CODE``.
        """
        status = self._server.status()
        counters = dict.fromkeys(
            ("accepted", "duplicates", "dropped_at_source", "forgotten", "updates", "requests", "bytes"), 0.0
        )
        for part in (status["counters"], self._counters.snapshot(), *(s.counters.snapshot() for s in self._ingests.values())):
            for name, value in part.items():
                counters[name] = counters.get(name, 0.0) + value
        journal = self._journal.state() if self._journal is not None else None
        return {
            **status,
            "stores": {name: ingest.status() for name, ingest in self._ingests.items()},
            "network_version": self._version,
            "journal": None if journal is None else {"used_bytes": journal.used_bytes, "error": journal.error},
            "counters": counters,
        }

    # ---- what clients call

    def _ingest(self, name: object) -> StoreIngest:
        ingest = self._ingests.get(name) if isinstance(name, str) else None
        if ingest is None:
            known = ", ".join(sorted(self._ingests)) or "none"
            raise ConfigError(f"there is no data store {name!r:.60}; there is {known}", key=str(name)[:MAX_NAME])
        return ingest

    def _mark(self, payload: Tree) -> Tree:
        said = _map(payload)
        try:
            ingest = self._ingest(said.get("store"))
        except ConfigError as exc:
            raise Refuse(CallRefusal.UNKNOWN, str(exc)) from exc
        return ingest.mark(_stream(said))

    def _insert(self, ingest: StoreIngest, payload: Tree) -> Tree:
        said = _map(payload)
        offer = InsertRequest(
            _stream(said), _number(said, "after"), _number(said, "known"), _number(said, "first"), unpack_items(said)
        )
        if offer.first <= -1 or offer.after >= offer.first:
            raise Refuse(CallRefusal.INVALID, f"items from {offer.first} on, after {offer.after}")
        self._tell(ingest, ingest.settle())
        taken = ingest.take(offer)
        with self._lock:
            self._counters.add("updates")
            self._counters.add("bytes", payload_bytes(said["columns"]))
        trouble = self._tell(ingest, taken.arrival)
        error = taken.error if trouble is None else trouble
        said_error = None if error is None else [type(error).__name__, str(error)[:1000]]
        return {"acked": taken.acked, "fresh": taken.fresh, "dropped": taken.dropped, "error": said_error}

    def _tell(self, ingest: StoreIngest, arrival: InsertedItems | None) -> Exception | None:
        """Calls the callback for data; returns what it raises. The items are in: nobody sends them again."""
        if self._data_callback is not None and arrival is not None:
            try:
                self._data_callback(ingest.name, {"data": arrival.items, "last_id": arrival.acked, "client": arrival.client})
            except Exception as exc:
                with self._lock:
                    self._counters.add("callback_failed")
                log.exception("the callback for data of %s failed", ingest.name)
                return exc
        return None

    def _request(self, kind: str, payload: Tree) -> Tree:
        said = _map(payload)
        client = _client(said)
        with self._lock:
            self._counters.add("requests")
            self._limit(client)
        assert self._request_callback is not None
        return self._request_callback(kind, said.get("payload"))

    def _limit(self, client: str) -> None:
        rate, now = self.config.rate_limit, time.monotonic()
        if rate is None:
            return
        bucket = self._buckets.setdefault(client, TokenBucket(rate * SLACK, now))
        self._buckets.move_to_end(client)
        while len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        if not bucket.take(1.0, now):
            raise Refuse(CallRefusal.RATE, f"more than {rate:g} requests a second from {client}")


def _map(payload: Tree) -> dict[str, Any]:
    if type(payload) is not dict:
        raise Refuse(CallRefusal.INVALID, "a payload that no trainer client sends")
    return payload


def _client(said: dict[str, Any]) -> str:
    try:
        return check_name(said.get("client"), "client")
    except ConfigError as exc:
        raise Refuse(CallRefusal.INVALID, str(exc)) from exc


def _stream(said: dict[str, Any]) -> StreamKey:
    lineage = said.get("lineage")
    if type(lineage) is not int or not 0 < lineage < 1 << 63:
        raise Refuse(CallRefusal.INVALID, f"the lineage {lineage!r:.60} is none")
    return _client(said), lineage


def _number(said: dict[str, Any], key: str) -> int:
    number = said.get(key)
    if type(number) is not int or not -1 <= number < 1 << 62:
        raise Refuse(CallRefusal.INVALID, f"{key} is {number!r:.60}")
    return number
