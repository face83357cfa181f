"""A trainer with a run directory keeps all acknowledged items over restarts, kills, full disks and full journals."""

import contextlib
import json
import random
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from harness.kills import KillLoop
from kit import raising, until

import rl4sys_zmq
from rl4sys_zmq.delivery.journal_rows import JournalTables
from rl4sys_zmq.errors import (
    CallError,
    CallFailed,
    CallRefusalReason,
    CallRefused,
    CallTimeout,
    ConfigError,
    JournalError,
    RunDirectoryError,
    StoreFileError,
)
from rl4sys_zmq.rpc import CallRefusedByCallback
from rl4sys_zmq.serving import (
    DataStoreBase,
    QueuedDataStore,
    ReplayBuffer,
    TrainerClient,
    TrainerConfig,
    TrainerServer,
)
from rl4sys_zmq.serving import store_ingest as shelf_module
from rl4sys_zmq.serving.store_ingest import StoreInserter
from rl4sys_zmq.serving.trainer_journal import StoreJournal
from rl4sys_zmq.testing.check_transport import TransportUnderTest

from .trainers import WAIT_S, ListStore, config_at, join, transition

PROCESS = Path(__file__).parent / "processes" / "trainer.py"
ENV = {"PYTHONPATH": str(Path(rl4sys_zmq.__file__).parents[1])}


def trainer_on(run_dir: Path, *stores: tuple[str, Any], **options: Any) -> TrainerServer:
    """Start a trainer over inproc, with `stores`, and return it."""
    with TransportUnderTest("inproc") as inproc:
        server = TrainerServer(config_at(inproc), run_dir=run_dir, **options)
    for name, store in stores:
        server.register_data_store(name, store)
    server.start(threaded=True)
    return server


def feed(server: TrainerServer, store: DataStoreBase, name: str = "a", client: str = "c") -> Any:
    """Connect a client with `store` to the server, and return the stats of the client after it has sent the items."""
    with join(server, client, data_stores={name: store}) as made:
        return made.stats()


def test_a_restarted_trainer_has_its_stores_and_marks_again(tmp_path: Path) -> None:
    one, two = QueuedDataStore(100), QueuedDataStore(100)
    with trainer_on(tmp_path, ("a", QueuedDataStore(100)), ("b", QueuedDataStore(100))) as server:
        for n in range(3):
            one.insert({"n": n, "x": np.full((n, 2), n)})
            feed(server, one)
            two.batch_insert([n * 10, n * 10 + 1])
            feed(server, two, client="d")
        feed(server, two, "b")
        before = server.data_store("a").get_latest_data(-1)
    again = QueuedDataStore(100)
    with trainer_on(tmp_path, ("a", again), ("b", QueuedDataStore(100))) as server:
        assert repr(again.get_latest_data(-1)) == repr(before)
        assert server.status()["counters"]["refilled"] == 9 + 6
        one.insert({"n": 3})
        assert feed(server, one)["items"] == 1
        assert feed(server, two, client="d")["items"] == 0
        assert again.latest_data_id() == 9
    with trainer_on(tmp_path, ("b", QueuedDataStore(100))) as server:  # the journal keeps the items of an unregistered store
        server.register_data_store("a", third := QueuedDataStore(100))
        assert len(third) == 10


def step(number: float) -> dict[str, Any]:
    """Return a transition. With a negative number it has another shape, which no store with other items accepts."""
    return transition(number, (2,) if number >= 0 else (3,))


def rewards(store: ReplayBuffer) -> list[int]:
    return [int(item["rewards"]) for item in store.get_latest_data(-1)]


@pytest.mark.parametrize("numbers", [[0, -1, 2, 3], [0, 1, 2, -3], [0, -1, -2, -3]])
def test_a_store_on_disk_is_not_filled_twice_after_it_refused_items(tmp_path: Path, numbers: list[int]) -> None:
    mine = QueuedDataStore(100)
    mine.batch_insert([step(n) for n in numbers])
    taken = [n for n in numbers if n >= 0]
    with ReplayBuffer(100, path=tmp_path / "disk") as disk, trainer_on(tmp_path / "run", ("a", disk)) as server:
        with pytest.raises(CallFailed, match="DataError"):
            feed(server, mine)
        assert rewards(disk) == taken
    for life in range(3):
        with ReplayBuffer(100, path=tmp_path / "disk") as disk, trainer_on(tmp_path / "run", ("a", disk)) as server:
            assert rewards(disk) == taken
            assert server.status()["counters"].get("refilled", 0) == 0
            mine.insert(step(10 + life))
            assert feed(server, mine)["items"] == 1
            taken.append(10 + life)


def test_a_store_of_which_an_older_copy_was_put_back_gets_what_it_lost(tmp_path: Path) -> None:
    mine = QueuedDataStore(100)
    for life in range(4):
        if life == 3:
            shutil.rmtree(tmp_path / "disk")
            shutil.copytree(tmp_path / "copy", tmp_path / "disk")
        with ReplayBuffer(100, path=tmp_path / "disk") as disk, trainer_on(tmp_path / "run", ("a", disk)) as server:
            mine.batch_insert([step(2 * life), step(2 * life + 1)])
            feed(server, mine)
            assert rewards(disk) == list(range(2 * life + 2))
        if life == 0:
            shutil.copytree(tmp_path / "disk", tmp_path / "copy")


def test_the_newest_update_is_kept_however_small_the_journal_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "TRIM_UPDATES", 1)
    mine = QueuedDataStore(100)
    mine.batch_insert([step(n) for n in (0, -1, 2)])
    with trainer_on(tmp_path, ("a", ReplayBuffer(100)), journal_bytes=1) as server:
        for _ in range(3):
            with contextlib.suppress(CallFailed):
                feed(server, mine)
            mine.batch_insert([step(n) for n in (0, -1, 2)])
    with trainer_on(tmp_path, ("a", again := ReplayBuffer(100)), journal_bytes=1):
        assert rewards(again)[-2:] == [0, 2]


def test_a_store_on_disk_in_place_of_another_is_filled_once(tmp_path: Path) -> None:
    mine = QueuedDataStore(100)
    for folder in ("one", "two", "two", "one", "two"):
        with ReplayBuffer(100, path=tmp_path / folder) as disk, trainer_on(tmp_path / "run", ("a", disk)) as server:
            number = mine.latest_data_id() + 1
            if folder == "two" or number == 0:
                assert rewards(disk) == list(range(number))
                mine.insert(step(number))
                feed(server, mine)


def refuse_sevens(data: int) -> None:
    if data % 10 == 7:
        raise ValueError("a number that ends in 7")


@pytest.mark.parametrize("kept", [True, False])
def test_a_shelf_is_what_its_slow_twin_says_over_refusals_full_disks_and_restarts(tmp_path: Path, seed: int, kept: bool) -> None:
    rng, stream = random.Random(seed), ("c", 5)
    for history in range(10):
        store, end, accepted, heard = ListStore(refuse_sevens), 0, set[int](), list[int]()
        for _ in range(6):
            store = store if kept else ListStore(refuse_sevens)
            store.full, store.apart = rng.random() < 0.3, kept and len(store) > 0  # as in a store that was reopened
            with StoreJournal(tmp_path / str(history), "normal") as journal:
                hear = lambda _, news, to=heard: to.extend(news["data"])  # noqa: E731
                ingest = StoreInserter("a", store, journal, 1 << 20, hear)
                try:
                    ingest.refill(journal.streams)
                except StoreFileError:
                    assert store.full
                    continue
                for _ in range(rng.randrange(6)):
                    first, count = end + rng.choice((0, 0, 0, 2)), rng.randrange(12)
                    try:
                        ingest.insert_waiting()
                    except CallRefusedByCallback:
                        assert store.full
                    else:
                        store.full = rng.random() < 0.3
                        items = list(range(first, first + count))
                        ingest.report(ingest.insert(stream, items, after=end - 1, known=-1, first=first))
                        accepted.update(range(first, first + count))
                        end = first + count
                    store.full = rng.random() < 0.3
                if rng.random() < 0.7:
                    store.full = False
                    ingest.insert_waiting()
        with StoreJournal(tmp_path / str(history), "normal") as journal:
            store = store if kept else ListStore(refuse_sevens)
            store.full = False
            StoreInserter("a", store, journal, 1 << 20).refill(journal.streams)
        expected = [n for n in sorted(accepted) if n % 10 != 7]
        assert store.held == expected
        assert heard == sorted(set(heard)) and set(heard) <= set(expected)
        if not kept:
            assert store.starts == [n for n in expected if n and n - 1 not in expected]


def test_a_store_that_takes_nothing_of_the_journal_is_not_registered(tmp_path: Path) -> None:
    mine = QueuedDataStore(5)
    mine.insert(1)
    with trainer_on(tmp_path, ("a", QueuedDataStore(5))) as server:
        feed(server, mine)
    with trainer_on(tmp_path) as server:
        store = ListStore()
        store.full = True
        with pytest.raises(StoreFileError, match="rejects the items of the journal: OSError"):
            server.register_data_store("a", store)
        assert server.store_names() == set()
        server.register_data_store("a", ListStore())
        assert server.data_store("a").get_latest_data(-1) == [1]


def test_a_client_with_a_store_on_disk_goes_on_after_its_restart(tmp_path: Path) -> None:
    with trainer_on(tmp_path / "run", ("a", QueuedDataStore(100))) as server:
        for life in range(3):
            with ReplayBuffer(100, path=tmp_path / "mine") as store:
                store.batch_insert([step(life * 4 + n) for n in range(4)])
                assert feed(server, store)["items"] == 4
        got = server.data_store("a").get_latest_data(-1)
    assert [int(item["rewards"]) for item in got] == list(range(12))


def test_the_journal_keeps_what_the_store_can_hold_and_not_more(tmp_path: Path) -> None:
    mine = QueuedDataStore(10_000)
    with trainer_on(tmp_path, ("a", QueuedDataStore(50))) as server, join(server, "c", data_stores={"a": mine}) as client:
        for n in range(200):
            mine.insert({"n": n, "x": np.zeros(1000)})
            client.update()
        assert 50 <= server.status()["stores"]["a"]["journal_items"] <= 51
        until(lambda: server.status()["journal"]["used_bytes"] < 90 * 8300, "room in the journal")
    again = QueuedDataStore(50)
    with trainer_on(tmp_path, ("a", again)) as server:
        assert [item["n"] for item in again.get_latest_data(-1)] == list(range(150, 200))
        assert feed(server, mine)["items"] == 0
    with trainer_on(tmp_path, ("a", fewer := QueuedDataStore(50)), journal_bytes=20 * 8300) as server:
        mine.insert({"n": 200, "x": np.zeros(1000)})
        assert feed(server, mine)["items"] == 1
        assert 18 <= server.status()["stores"]["a"]["journal_items"] <= 20
        assert len(fewer) == 50


def test_a_run_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError):
        trainer_on(tmp_path / "file")
    with trainer_on(tmp_path / "run"), pytest.raises(JournalError, match="is in use"):
        trainer_on(tmp_path / "run")
    with pytest.raises(ConfigError, match="journal_bytes"):
        trainer_on(tmp_path / "other", journal_bytes=0)


def test_a_journal_that_fails_refuses_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, store = QueuedDataStore(100), QueuedDataStore(100)
    with trainer_on(tmp_path, ("a", store)) as server, join(server, "c", data_stores={"a": mine}, timeout_ms=300) as client:
        with monkeypatch.context() as patch:
            patch.setattr(JournalTables, "apply", failing(OSError("no space left on device")))
            mine.insert(1)
            with pytest.raises(CallTimeout):
                client.update()
            assert "no space left" in server.status()["journal"]["error"]
            assert len(store) == 0
        mine.insert(2)
        until(lambda: _succeeds(client.update), "an update")
    assert store.get_latest_data(-1) == [1, 2]


def failing(error: Exception) -> Any:
    """Return a stand-in for `JournalTables.apply`."""

    def apply(self: JournalTables, group: Any) -> Any:
        raise error

    return apply


def test_a_trainer_stops_though_its_journal_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = QueuedDataStore(100)
    with (
        trainer_on(tmp_path, ("a", QueuedDataStore(100))) as server,
        join(server, "c", data_stores={"a": mine}, timeout_ms=300) as client,
    ):
        monkeypatch.setattr(JournalTables, "apply", failing(OSError("no space left on device")))
        mine.insert(1)
        with pytest.raises(CallTimeout):
            client.update()
    monkeypatch.undo()
    with trainer_on(tmp_path, ("a", again := QueuedDataStore(100))) as server:
        assert feed(server, mine)["items"] == 1
        assert again.get_latest_data(-1) == [1]


def test_a_journal_that_dies_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = QueuedDataStore(100)
    with (
        trainer_on(tmp_path, ("a", QueuedDataStore(100))) as server,
        join(server, "c", data_stores={"a": mine}) as client,
    ):
        monkeypatch.setattr(JournalTables, "apply", failing(RuntimeError("a fault of ours")))
        mine.insert(1)
        for _ in range(2):
            with raising(CallRefused, "a fault of ours", code=CallRefusalReason.BUSY):
                client.update()


def _succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except CallError:
        return False
    return True


class Fleet:
    """Clients that feed both stores of a trainer process. Each has its own numbers, and records the acknowledged ones.

    Attributes:
        acked: for each client and store, the last number that an update reported.
    """

    def __init__(self, config: TrainerConfig, clients: int, goal: int, rng: random.Random) -> None:
        self.acked: dict[tuple[int, str], int] = {}
        self._config, self._goal = config, goal
        self._seeds = [rng.randrange(2**32) for _ in range(clients)]
        self._given_up = threading.Event()
        self._pool = ThreadPoolExecutor(clients)

    def __enter__(self) -> Self:
        self._feeds = [self._pool.submit(self._feed, number) for number in range(len(self._seeds))]
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None:
            self._given_up.set()
        with self._pool:
            for feed in self._feeds:
                feed.result(60.0)

    def progress(self) -> int:
        return sum(list(self.acked.values()))

    def _feed(self, number: int) -> None:
        rng = random.Random(self._seeds[number])
        stores = {"memory": QueuedDataStore(100_000), "disk": ReplayBuffer(100_000)}
        options: dict[str, Any] = {"data_stores": stores, "wait_for_server": True, "timeout_ms": 1500, "raises": True}
        with TrainerClient(f"c{number}", self._config.bind_address().uri, self._config, **options) as client:
            made = 0
            while not self._given_up.is_set() and (not self._update(number, client, made) or made < self._goal):
                for _ in range(min(rng.randint(1, 40), self._goal - made)):
                    stores["memory"].insert(np.array([number, made]))
                    stores["disk"].insert(transition(made, (1,), actions=np.int64(number)))
                    made += 1

    def _update(self, number: int, client: TrainerClient, made: int) -> bool:
        try:
            done = client.update()
        except (CallTimeout, CallRefused) as exc:
            assert not isinstance(exc, CallRefused) or exc.code is CallRefusalReason.CLOSING
            return False
        for name, acked in done.acked.items():
            self.acked[number, name] = acked
        return all(acked == made - 1 for acked in done.acked.values())


@pytest.mark.parametrize(("kills", "die_at"), [(5, ""), (0, "commit:4"), (0, "insert:5")])
def test_nothing_acknowledged_is_lost_or_twice_when_the_trainer_is_killed(
    tmp_path: Path, seed: int, kills: int, die_at: str
) -> None:
    rng = random.Random(seed)
    goal = 3000 if kills else 200
    with TransportUnderTest("ipc") as ipc, KillLoop(seed=seed, folder=tmp_path) as loop:
        address = ipc.address()
        config = TrainerConfig(address, f"{address}-pub", request_types=["contents"])
        options = {"address": address, "run_dir": str(tmp_path / "run"), "disk": str(tmp_path / "disk"), "die_at": die_at}
        child = loop.child("trainer", [sys.executable, str(PROCESS), json.dumps(options)], env=ENV)
        child.start()
        with Fleet(config, 2, goal, rng) as fleet:
            if die_at:
                child.wait(WAIT_S, -9)
                child.start()
            for _ in range(kills):
                before = fleet.progress()
                loop.until(lambda b=before: fleet.progress() >= b + 200, 30.0, "progress")  # type: ignore[misc]
                loop.wait(rng.uniform(0.0, 0.05))
                child.kill()
                child.start()
        assert set(fleet.acked.values()) == {goal - 1}
        with TrainerClient("judge", address, config, timeout_ms=WAIT_S * 1000) as judge:
            contents = judge.request("contents", None)
        for name in ("memory", "disk"):
            for client in range(2):
                numbers = contents[name][contents[name][:, 0] == client, 1]
                assert numbers.tolist() == list(range(goal)), f"{name} of client {client}"
