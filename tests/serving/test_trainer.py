"""A trainer and its clients: agentlace's documented usage, updates that are inserted once, and invalid input."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import raising, until, write_keys

from rl4sys_zmq.errors import (
    CallFailed,
    CallRefusalReason,
    CallRefused,
    CallTimeout,
    ConfigError,
    DataError,
    PayloadError,
    StoreFileError,
)
from rl4sys_zmq.rpc import CallRefusedByCallback, Server
from rl4sys_zmq.serving import (
    QueuedDataStore,
    ReplayBuffer,
    TrainerClient,
    TrainerConfig,
    TrainerServer,
    TrajectoryBuffer,
)
from rl4sys_zmq.serving import trainer_transfer as transfer_module
from rl4sys_zmq.serving.data import DataShape
from rl4sys_zmq.testing.chaos import ChaosProxy
from rl4sys_zmq.testing.check_transport import TransportUnderTest

from .trainers import WAIT_S, ListStore, config_at, join, trainer_at, transition


@pytest.fixture
def inproc() -> Iterator[TransportUnderTest]:
    with TransportUnderTest("inproc") as transport:
        yield transport


@pytest.fixture
def server(inproc: TransportUnderTest) -> Iterator[TrainerServer]:
    with trainer_at(inproc, stores={name: QueuedDataStore(10_000) for name in "ab"}) as made:
        yield made


def items(server: TrainerServer, name: str = "a") -> list[Any]:
    return server.data_store(name).get_latest_data(-1)


def test_the_calls_of_agentlaces_own_test(transport: TransportUnderTest) -> None:
    tables: list[str] = []
    answer = {"trainer-status": "it's working"}
    config = config_at(transport, request_types=["get-stats"])
    server = TrainerServer(config, lambda name, payload: tables.append(name), lambda kind, payload: answer)
    ds_trainer1, ds_trainer2 = QueuedDataStore(6), QueuedDataStore(6)
    server.register_data_store("table1", ds_trainer1)
    server.register_data_store("table2", ds_trainer2)
    server.start(threaded=True)
    assert server.store_names() == {"table1", "table2"}

    ds_actor1, ds_actor2 = QueuedDataStore(3), QueuedDataStore(3)
    client = TrainerClient("table1", server.address, config, data_stores={"table1": ds_actor1, "table2": ds_actor2})
    received: list[Any] = []
    client.recv_network_callback(received.append)

    ds_actor1.insert(np.array([1, 2, 3]))
    ds_actor1.insert(np.array([4, 5, 6]))
    client.update()
    assert len(ds_trainer1) == 2  # `update` returns after the server has inserted the items
    ds_actor1.insert(np.array([7, 8, 9]))
    ds_actor2.batch_insert([np.array([30, 31, 32])] * 2)
    assert (len(ds_trainer1), len(ds_trainer2)) == (2, 0)
    done = client.update()
    assert (done.items, done.acked) == (3, {"table1": 2, "table2": 1})
    ds_actor1.insert(np.array([10, 11, 12]))
    assert client.update_datastore("table1", client.get_server_last_update_id("table1"), confirm_update=True).items == 1
    assert (len(ds_trainer1), len(ds_trainer2)) == (4, 2)

    assert client.request("get-stats", {}) == answer
    assert client.request("invalid", {}) is None
    assert "no request type 'invalid'; the types are: get-stats" in str(client.last_error)

    client.start_async_update(interval=0.01)
    ds_actor1.insert(np.array([13, 14, 15]))
    until(lambda: ds_trainer1.latest_data_id() == ds_actor1.latest_data_id(), "the update in the background")
    server.publish_network(np.array([100, 200, 300, 400]))
    until(lambda: received, "the network")
    assert np.array_equal(received[0], [100, 200, 300, 400])
    assert set(tables) == {"table1", "table2"}
    client.stop()
    server.stop()


def test_what_comes_again_is_not_taken_again(server: TrainerServer) -> None:
    store = QueuedDataStore(100)
    with join(server, "c", data_stores={"a": store}) as client:
        store.batch_insert(list(range(10)))
        assert client.update().items == 10
        assert client.update_datastore("a", -1).items == 0
        assert client.update_datastore("a", 4).items == 0
        store.batch_insert([10, 11])
        assert client.update_datastore("a", 7).items == 2
        store.insert(12)
        assert client.update_datastore("a", 500).items == 1  # although the given id claims that it was sent
        assert client.update().acked == {"a": 12}
    assert items(server) == list(range(13))
    counters = server.status()["counters"]
    assert counters["accepted"] == 13
    assert counters["duplicates"] == 10 + 5 + 2


def test_streams_do_not_mix(server: TrainerServer) -> None:
    first, second, third = QueuedDataStore(10), QueuedDataStore(10), QueuedDataStore(10)
    with join(server, "one", data_stores={"a": first}) as one, join(server, "two", data_stores={"a": second}) as two:
        first.batch_insert(["1a", "1b"])
        second.batch_insert(["2a", "2b", "2c"])
        assert (one.update().items, two.update().items) == (2, 3)
        with join(server, "one", data_stores={"a": third}) as again:  # started again, with an empty store
            third.insert("1c")
            assert again.update().acked == {"a": 0}
        with join(server, "one", data_stores={"a": first}) as same:  # the same store continues its stream
            first.insert("1d")
            assert same.update().items == 1
    assert sorted(items(server)) == ["1a", "1b", "1c", "1d", "2a", "2b", "2c"]


def test_what_the_store_dropped_is_counted(server: TrainerServer) -> None:
    store = QueuedDataStore(3)
    with join(server, "c", data_stores={"a": store}) as client:
        store.batch_insert(list(range(8)))
        done = client.update()
        assert (done.items, done.dropped_at_source, done.acked) == (3, 5, {"a": 7})
        store.batch_insert(list(range(8, 13)))
        assert client.update().dropped_at_source == 2
        assert client.stats()["dropped_at_source"] == 7
    assert items(server) == [5, 6, 7, 10, 11, 12]
    assert server.status()["counters"]["dropped_at_source"] == 7


def test_a_long_update_goes_in_messages_of_a_bounded_size(server: TrainerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "MESSAGE_BYTES", 100_000)
    store = QueuedDataStore(10_000)
    store.batch_insert([{"x": np.full(100, n, np.float32), "n": n} for n in range(5000)])
    with join(server, "c", data_stores={"a": store}) as client:
        assert client.stats()["items"] == 5000  # the constructor has sent them
        assert 5000 * 400 / 100_000 <= client.stats()["messages"] <= 60
    assert [item["n"] for item in items(server)] == list(range(5000))
    assert all((item["x"] == item["n"]).all() for item in items(server))


@pytest.mark.parametrize(("size", "most"), [(1 << 20, 2), (60_000, 2), (10_000, 18), (100, 1600)])
def test_an_update_reads_no_more_at_once_than_two_messages_take(
    server: TrainerServer, monkeypatch: pytest.MonkeyPatch, size: int, most: int
) -> None:
    monkeypatch.setattr(transfer_module, "MESSAGE_BYTES", 100_000)
    reads: list[int | None] = []

    class Watched(QueuedDataStore):
        def read_after(self, from_id: int, limit: int | None = None) -> tuple[int, list[Any]]:
            reads.append(limit)
            return super().read_after(from_id, limit)

    store = Watched(2000)
    store.batch_insert([np.zeros(size, np.uint8)] * min(2000, 10_000_000 // size))
    with join(server, "c", data_stores={"a": store}) as client:
        assert reads[0] == 1
        assert max(limit or 0 for limit in reads) <= most
        assert client.stats()["messages"] == len(reads) - 1
    assert len(items(server)) == len(store)


def test_nothing_is_twice_or_missing_over_a_bad_network() -> None:
    store = QueuedDataStore(10_000)
    with (
        TransportUnderTest("tcp") as tcp,
        trainer_at(tcp, stores={"a": QueuedDataStore(10_000)}) as server,
        ChaosProxy(server.address, seed=1) as proxy,
        TrainerClient("c", proxy.address, server.config, data_stores={"a": store}, timeout_ms=WAIT_S * 1000) as client,
    ):
        client.start_async_update(interval=0.001)
        for turn in range(30):
            store.batch_insert([np.array([turn, n]) for n in range(20)])
            proxy.cut()
        until(lambda: server.data_store("a").latest_data_id() == 599, "all items")
        assert [item.tolist() for item in items(server)] == [[turn, n] for turn in range(30) for n in range(20)]


def test_a_restarted_server_without_a_journal_gets_what_is_still_held() -> None:
    with TransportUnderTest("ipc") as ipc:
        store = QueuedDataStore(5)
        with trainer_at(ipc, stores={"a": QueuedDataStore(10)}) as server:
            config = server.config
            client = join(server, "c", data_stores={"a": store}, timeout_ms=300)
            store.batch_insert(list(range(8)))
            assert client.update().dropped_at_source == 3
        with pytest.raises(CallTimeout):
            client.update()
        store.batch_insert([8, 9])
        with TrainerServer(config) as server, client:
            server.register_data_store("a", QueuedDataStore(10))
            server.start(threaded=True)
            store.batch_insert([10])
            until(lambda: _updated(client), "an update")
            assert items(server) == [6, 7, 8, 9, 10]
            counters = server.status()["counters"]
            assert counters["forgotten"] == 6  # the first server had 0 to 5, and the client's store no longer holds them
            assert counters["dropped_at_source"] == 0


def test_a_late_client_gets_the_newest_network(transport: TransportUnderTest) -> None:
    with trainer_at(transport, stores={}) as server:
        for version in (1, 2, 3):
            assert server.publish_network({"w": np.full(3, version), "big": np.full(50_000, version)}) == version
        with join(server, "c") as client:
            got: list[Any] = []
            client.recv_network_callback(got.append)
            until(lambda: got and client.network_version == 3, "the network")
            assert got[0]["w"].tolist() == [3, 3, 3] and (got[0]["big"] == 3).all() and got[0]["big"].flags.writeable
        assert server.status()["network_version"] == 3


def test_a_callback_that_raises_is_called_again(server: TrainerServer) -> None:
    seen: list[int] = []

    def callback(network: int) -> None:
        seen.append(network)
        raise ValueError("no")

    with join(server, "c") as client:
        client.recv_network_callback(callback)
        for number in (7, 8):
            server.publish_network(number)
            until(lambda n=number: n in seen, "the network")  # type: ignore[misc]
        until(lambda: client.stats().get("callback_failed") == 2, "both failures")


def test_waiting_for_a_server_that_goes_away_between_the_greeting_and_the_first_update(inproc: TransportUnderTest) -> None:
    config = config_at(inproc)
    marks: list[str] = []

    def mark(payload: Any) -> int:
        marks.append(payload["store"])
        if len(marks) == 1:
            raise CallRefusedByCallback(CallRefusalReason.CLOSING, "it stops")
        return -1

    with Server(config.bind_address().uri, name="trainer", terms=config.terms()) as leaving:
        leaving.register("stores", lambda payload: ["a"])
        leaving.register("mark", mark)
        leaving.start()
        with TrainerClient("c", leaving.address, config, data_stores={"a": QueuedDataStore(1)}, wait_for_server=True):
            assert marks == ["a", "a"]


@pytest.mark.parametrize(
    ("field", "value"), [("version", "2"), ("request_types", ["x"]), ("rate_limit", 3)], ids=lambda v: str(v)
)
def test_a_mismatch_names_the_field(server: TrainerServer, field: str, value: Any) -> None:
    with raising(CallRefused, f"{field} is .* at the caller and .* at the server", code=CallRefusalReason.MISMATCH):
        join(server, "c", config=TrainerConfig(**{field: value}))


@pytest.mark.parametrize("interval", [0, -1.0, float("nan"), float("inf"), 1e12, "10", None, True])
def test_the_interval_of_updates_is_a_finite_time(server: TrainerServer, interval: Any) -> None:
    with join(server, "a") as client, raising(ConfigError, "a number above 0 and at most 315360000", key="interval"):
        client.start_async_update(interval)


def test_unknown_stores_are_named_with_those_that_there_are(server: TrainerServer) -> None:
    with pytest.raises(CallRefused, match="there is no data store 'nope'; registered: a, b"):
        join(server, "c", data_stores={"nope": QueuedDataStore(1)})
    with pytest.raises(ConfigError, match="there is no data store 'nope'; registered: a, b"):
        server.data_store("nope")
    with pytest.raises(ConfigError, match="already"):
        server.register_data_store("a", QueuedDataStore(1))
    with pytest.raises(ConfigError, match="an object of the class DataStoreBase"):
        server.register_data_store("c", [])  # type: ignore[arg-type]
    with join(server, "c", data_stores={"a": QueuedDataStore(1)}) as client:
        for call in (client.get_server_last_update_id, lambda name: client.update_datastore(name, -1)):
            with pytest.raises(ConfigError, match="no data store 'b'; registered: a"):
                call("b")


def test_a_store_on_disk_with_items_is_refused_without_a_journal_that_knows_them(server: TrainerServer, tmp_path: Path) -> None:
    with ReplayBuffer(5, path=tmp_path / "buffer") as store:
        server.register_data_store("fresh", store)
        store.insert(transition(1))
    with (
        ReplayBuffer(5, path=tmp_path / "buffer") as again,
        raising(ConfigError, r"has 1 items on disk already, .* give run_dir", key="data_store"),
    ):
        server.register_data_store("c", again)
    assert server.store_names() == {"a", "b", "fresh"}


def test_a_store_in_memory_may_have_demonstrations(server: TrainerServer) -> None:
    store, mine = QueuedDataStore(5), QueuedDataStore(5)
    store.insert("demonstration")
    server.register_data_store("c", store)
    mine.insert("sent")
    with join(server, "c", data_stores={"c": mine}):
        assert items(server, "c") == ["demonstration", "sent"]


def test_a_store_has_one_name(server: TrainerServer) -> None:
    with pytest.raises(ConfigError, match="'c' is the data store 'a' already"):
        server.register_data_store("c", server.data_store("a"))
    assert server.store_names() == {"a", "b"}


def refuse_bad(data: Any) -> None:
    if isinstance(data, str) and data == "bad":
        raise DataError("x", "is bad")


def test_an_item_that_cannot_travel_is_told_counted_and_passed(server: TrainerServer) -> None:
    store = ListStore()
    with join(server, "c", data_stores={"a": store}) as client:
        store.held = [1, 2, object(), 3, {"deep": [{"er": {4}}]}, 5]
        with pytest.raises(PayloadError, match=r"a value of type builtins\.object cannot travel"):
            client.update()
        store.held.append(np.zeros(65 << 20, np.uint8))
        with pytest.raises(PayloadError, match="the limit is 67108864"):
            client.update()
        assert client.update().items == 0
        assert client.stats()["unsendable"] == 3
    assert items(server) == [1, 2, 3, 5]
    assert server.status()["counters"]["dropped_at_source"] == 3


DEEP: Any = 0
for _ in range(14):
    DEEP = (DEEP,)


@pytest.mark.parametrize(
    "payload",
    [
        DEEP,
        {"k" * 4096: 1},
        {"ü" * 4096: "ü" * 4096},
        list(range(65_536)),
        np.zeros((1,) * 8),
        np.arange(3, dtype=">f4"),
    ],
    ids=["deep", "long key", "wide key", "long list", "dimensions", "byte order"],
)
def test_what_a_queue_takes_at_its_limits_travels(server: TrainerServer, payload: Any) -> None:
    store = QueuedDataStore(10)
    with join(server, "c", data_stores={"a": store}) as client:
        store.insert(payload)
        assert client.update().items == 1  # alone
        store.batch_insert([payload, payload, "something else"])
        assert client.update().items == 3  # in a list
    assert len(items(server)) == 4
    np.testing.assert_equal(items(server)[1], payload)


def test_an_item_that_the_servers_store_refuses(inproc: TransportUnderTest) -> None:
    heard: list[Any] = []
    store = QueuedDataStore(10)
    with trainer_at(inproc, lambda name, payload: heard.extend(payload["data"]), stores={"a": ListStore(refuse_bad)}) as server:
        with join(server, "c", data_stores={"a": store}) as client:
            store.batch_insert([1, "bad", 2])
            with pytest.raises(CallFailed, match="DataError: x: is bad"):
                client.update()
            store.insert(3)
            assert client.update().items == 1
        assert items(server) == heard == [1, 2, 3]
        assert server.status()["counters"]["refused.data"] == 1


def test_steps_are_apart_where_one_was_refused_or_lost(inproc: TransportUnderTest) -> None:
    mine, theirs = QueuedDataStore(4), TrajectoryBuffer(100, [DataShape("n", (), "uint8")])
    with trainer_at(inproc, stores={"a": theirs}) as server, join(server, "c", data_stores={"a": mine}) as client:
        mine.batch_insert([{"n": np.int64(n)} for n in (1, 2, 300, 4)])
        with pytest.raises(CallFailed, match="uint8 cannot hold"):
            client.update()
        mine.insert({"n": 300})
        with pytest.raises(CallFailed):
            client.update()
        mine.batch_insert([{"n": n} for n in (6, 7)])
        client.update()
        mine.batch_insert([{"n": n} for n in range(8, 13)])  # 8 is dropped before it is sent
        client.update()
    steps = [(int(step["n"]), bool(step["start_of_trajectory"])) for step in theirs.get_latest_data(-1)]
    assert [n for n, _ in steps] == [1, 2, 4, 6, 7, 9, 10, 11, 12]
    assert [n for n, start in steps if start] == [1, 4, 6, 9]


def test_a_store_that_takes_nothing_for_now_is_owed(inproc: TransportUnderTest) -> None:
    heard: list[Any] = []
    mine, store = ListStore(), QueuedDataStore(10)

    def callback(name: str, payload: dict[str, Any]) -> None:
        heard.append((payload["data"], payload["last_id"], payload["client"]))

    with trainer_at(inproc, callback, stores={"a": mine}) as server:
        with join(server, "c", data_stores={"a": store}) as client:
            mine.full = True
            store.batch_insert([1, 2])
            with pytest.raises(CallFailed, match="no space left"):
                client.update()
            store.insert(3)
            with raising(CallRefused, "accepts nothing for now: OSError", code=CallRefusalReason.BUSY):
                client.update()
            assert heard == []  # the store is still empty
            mine.full = False
            assert client.update().items == 1
        assert items(server) == [1, 2, 3]
        assert heard == [([1, 2], 1, "c"), ([3], 2, "c")]


def test_a_store_that_cannot_be_read_is_an_error_of_ours_and_updates_go_on(server: TrainerServer) -> None:
    class Failing(ListStore):
        failing = False

        def get_latest_data(self, from_id: int) -> list[Any]:
            if self.failing:
                raise OSError("a disk that hiccups")
            return super().get_latest_data(from_id)

    store = Failing()
    with join(server, "c", data_stores={"a": store}) as client:
        store.failing = True
        store.insert(1)
        with pytest.raises(StoreFileError, match=r"Failing.*OSError: a disk that hiccups"):
            client.update()
        client.start_async_update(interval=0.001)
        until(lambda: isinstance(client.last_error, StoreFileError), "the error in the background")
        store.failing = False
        until(lambda: items(server) == [1] and client.last_error is None, "the update")


def test_a_data_callback_that_raises_is_told_and_the_items_stay(inproc: TransportUnderTest) -> None:
    seen: list[Any] = []
    store = QueuedDataStore(10)

    def callback(name: str, payload: dict[str, Any]) -> None:
        seen.append((name, payload["data"], payload["last_id"], payload["client"]))
        raise KeyError("oops")

    with trainer_at(inproc, callback, stores={"a": QueuedDataStore(10)}) as server:
        with join(server, "c", data_stores={"a": store}) as client:
            store.batch_insert([1, 2])
            with pytest.raises(CallFailed, match="KeyError: 'oops'"):
                client.update()
            assert client.update().items == 0
        assert seen == [("a", [1, 2], 1, "c")]
        assert items(server) == [1, 2]
        assert server.status()["counters"]["callback_failed"] == 1


def test_a_data_callback_that_blocks_holds_up_its_store_and_nothing_else(inproc: TransportUnderTest) -> None:
    going, go_on = threading.Event(), threading.Event()

    def callback(name: str, payload: dict[str, Any]) -> None:
        if name == "a":
            going.set()
            go_on.wait(WAIT_S)

    stores = {name: QueuedDataStore(10) for name in "ab"}
    with trainer_at(inproc, callback, lambda kind, payload: payload, stores=stores, request_types=["ping"]) as server:
        slow, quick = QueuedDataStore(10), QueuedDataStore(10)
        with join(server, "slow", data_stores={"a": slow}, timeout_ms=300) as one, join(server, "b", quick) as two:
            slow.insert(1)
            with pytest.raises(CallTimeout):
                one.update()
            assert going.is_set()
            quick.insert(2)
            assert two.update().items == 1
            assert two.request("ping", [np.arange(3)])[0].tolist() == [0, 1, 2]
            go_on.set()
            until(lambda: one.get_server_last_update_id("a") == 0, "the ack")
            slow.insert(3)
            until(lambda: _updated(one), "an update that is not held up")
        assert items(server) == [1, 3]


def _updated(client: TrainerClient) -> bool:
    try:
        return bool(client.update())
    except CallTimeout:
        return False


def test_requests_that_fail_or_come_too_often(inproc: TransportUnderTest) -> None:
    def callback(kind: str, payload: Any) -> Any:
        if kind == "fail":
            raise ValueError("no such checkpoint")
        return object() if kind == "odd" else payload

    types = ["fail", "odd", "echo"]
    with trainer_at(inproc, None, callback, stores={}, request_types=types, rate_limit=2) as server:
        with join(server, "c") as client:
            with pytest.raises(CallFailed, match="ValueError: no such checkpoint"):
                client.request("fail", {})
            with pytest.raises(CallFailed, match="PayloadError"):
                client.request("odd", {})
            with pytest.raises(PayloadError, match=r"payload\['payload'\]\['x'\]"):
                client.request("echo", {"x": {1}})
            assert client.request("echo", 1) == 1
            with raising(CallRefused, "more than 2 requests a second", code=CallRefusalReason.RATE):
                client.request("echo", 2)
            client._bucket = None  # a client that ignores the limit
            with raising(CallRefused, "more than 2 requests a second from c", code=CallRefusalReason.RATE):
                for _ in range(10):
                    client.request("echo", 3)
        assert server.status()["counters"]["refused.rate"] == 1


def test_what_no_client_sends_is_refused(server: TrainerServer) -> None:
    with join(server, "c", data_stores={"a": QueuedDataStore(5)}) as client:
        good = {"count": 1, "columns": [1], "client": "c", "lineage": 5, "after": -1, "known": -1, "first": 0}
        for wrong in (
            {"count": 2},
            {"count": -1},
            {"count": 1 << 40, "columns": {}},
            {"columns": {"x": np.zeros(2)}},
            {"columns": {"x": np.zeros(())}},
            {"client": ""},
            {"client": b"c"},
            {"lineage": 0},
            {"lineage": 1 << 63},
            {"after": 0},
            {"first": -1},
            {"first": 1 << 63},
            {"known": True},
        ):
            with raising(CallRefused, code=CallRefusalReason.INVALID):
                client._client.call("insert/a", {**good, **wrong})
        with pytest.raises(CallRefused, match="not that of a trainer client"):
            client._client.call("mark", [1])
        assert client._client.call("insert/a", good)["acked"] == 0
    assert items(server) == [1]


def test_a_store_that_was_put_back_is_refused(server: TrainerServer) -> None:
    store, older = QueuedDataStore(10), QueuedDataStore(10)
    store.batch_insert([1, 2, 3])
    join(server, "c", data_stores={"a": store}).stop()
    older.lineage = store.lineage
    older.insert(1)
    with pytest.raises(StoreFileError, match="has the items up to 2, and this store ends at 0"):
        join(server, "c", data_stores={"a": older})


def test_the_roles_of_users_say_what_they_may_do(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", {"robot": ["call", "submit", "read_weights"], "judge": ["call"], "stranger": []})
    robot, judge, stranger = (tmp_path / "keys" / f"{name}.keys" for name in ("robot", "judge", "stranger"))
    config = TrainerConfig("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", request_types=["echo"])
    with TrainerServer(config, request_callback=lambda kind, payload: payload, keys=tmp_path / "keys") as server:
        server.register_data_store("a", store := QueuedDataStore(10))
        server.start(threaded=True)
        mine, networks = QueuedDataStore(10), list[Any]()
        mine.insert(1)
        with join(server, "c", keys=robot, data_stores={"a": mine}) as client:
            assert store.get_latest_data(-1) == [1]
            client.recv_network_callback(networks.append)
            server.publish_network({"w": 1.0})
            until(lambda: networks, "the network")
        with join(server, "c", keys=judge) as client:
            assert client.request("echo", 1) == 1
        with raising(CallRefused, "the key of judge does not have the role submit", code=CallRefusalReason.FORBIDDEN):
            join(server, "c", keys=judge, data_stores={"a": mine})
        for keys in (stranger, None):
            with pytest.raises(CallTimeout):
                join(server, "c", keys=keys, timeout_ms=300)


def test_an_access_list_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"users: the access list .*users.toml has no effect without keys; give keys=DIR"):
        TrainerServer(TrainerConfig(0, 0), users=tmp_path / "users.toml")
