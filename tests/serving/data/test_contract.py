"""The contract of data stores, with every store of this package, one that a user would write, and some that break it."""

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import raising

from rl4sys_zmq.errors import ConfigError, DataError
from rl4sys_zmq.serving import DataStoreBase, QueuedDataStore, ReplayBuffer, TrajectoryBuffer
from rl4sys_zmq.testing import DataStoreUnderTest, check_data_store


def transition(number: int) -> dict[str, Any]:
    image = np.full((2, 2), number % 251, np.uint8)
    return {
        "observations": {"image": image, "state": np.array([number, 0.5])},
        "next_observations": {"image": image + 1, "state": np.array([number + 1, 0.5])},
        "actions": np.int64(number),
        "rewards": 1.0,
        "terminated": number % 7 == 0,
    }


def number_of(data: dict[str, Any]) -> int:
    assert data["observations"]["state"][0] == data["actions"]
    assert data["observations"]["image"][1, 1] == data["actions"] % 251
    return int(data["actions"])


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / str(index) for index in count())


def test_queue() -> None:
    check_data_store(QueuedDataStore, lambda i: {"a": [i]}, lambda data: data["a"][0])


@pytest.mark.parametrize("images", [(), ("image",)])
@pytest.mark.parametrize("disk", [False, True])
def test_replay(images: tuple[str, ...], disk: bool, folders: Iterator[Path]) -> None:
    def make(capacity: int) -> ReplayBuffer:
        return ReplayBuffer(capacity, image_keys=images, path=next(folders) if disk else None)

    check_data_store(make, transition, number_of)


@pytest.mark.parametrize("disk", [False, True])
def test_trajectories(disk: bool, folders: Iterator[Path]) -> None:
    def make(capacity: int) -> TrajectoryBuffer:
        return TrajectoryBuffer(capacity, path=next(folders) if disk else None)

    check_data_store(make, lambda i: transition(i) | {"end_of_trajectory": i % 3 == 0}, number_of)


class UsersStore(DataStoreBase):
    """The shortest store that a user can write."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.lock = threading.Lock()
        self.items: dict[int, object] = {}
        self.latest = -1

    def insert(self, data: object) -> None:
        with self.lock:
            self.latest += 1
            self.items[self.latest] = data
            self.items.pop(self.latest - self.capacity, None)

    def latest_data_id(self) -> int:
        return self.latest

    def get_latest_data(self, from_id: int) -> list[Any]:
        with self.lock:
            return [data for key, data in self.items.items() if key > from_id]

    def __len__(self) -> int:
        return len(self.items)


def test_a_users_store_of_four_methods_keeps_it() -> None:
    check_data_store(UsersStore, int, int)


def insert_without_end(self: UsersStore, data: object) -> None:
    self.latest += 1
    self.items[self.latest] = data


@pytest.mark.parametrize(
    "fault",
    [
        {"latest_data_id": lambda self: min(self.latest, self.capacity - 1)},  # the numbers start again
        {"get_latest_data": lambda self, from_id: UsersStore.get_latest_data(self, from_id - 1)},  # the last known item again
        {"insert": insert_without_end},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_a_store_that_breaks_it_is_found(fault: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        check_data_store(type("Faulty", (UsersStore,), fault), int, int)


@pytest.mark.parametrize("kind", [QueuedDataStore, ReplayBuffer, TrajectoryBuffer])
@pytest.mark.parametrize("capacity", [0, -1, 1.5, True, "10", 1 << 70])
def test_a_capacity_is_a_positive_integer(kind: Callable[[Any], DataStoreUnderTest[Any]], capacity: object) -> None:
    with pytest.raises(ConfigError, match="capacity"):
        kind(capacity)


@pytest.mark.parametrize("kind", [QueuedDataStore, ReplayBuffer, TrajectoryBuffer])
def test_a_batch_that_is_none_and_a_limit_below_none(kind: Callable[[Any], DataStoreUnderTest[Any]]) -> None:
    store = kind(3)
    with pytest.raises(DataError, match="batch_data"):
        store.batch_insert(5)  # type: ignore[arg-type]
    store.insert(transition(0))
    assert store.read_after(-1, -1) == (0, [])


def test_a_queue_copies_its_arrays_and_takes_any_payload_that_can_travel() -> None:
    store, frame = QueuedDataStore(4), np.zeros(3)
    store.insert({"frame": frame, "more": [(1, "a", b"b", None, True, np.float32(2))]})
    frame += 1
    (held,) = store.get_latest_data(-1)
    np.testing.assert_array_equal(held["frame"], np.zeros(3))
    assert held["more"] == [(1, "a", b"b", None, True, np.float32(2))]


def nested(depth: int) -> Any:
    payload: Any = 0
    for _ in range(depth):
        payload = [payload]
    return payload


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        ({"a": [1, object()]}, "a/1"),
        ({"a": {"b": np.array([None])}}, "a/b"),
        ({"a": np.array(["text"])}, "a"),
        ({1.5: 2}, ""),
        ({"a": 1 << 80}, "a"),
        ({"a": {1, 2}}, "a"),
        (nested(40), "/".join(["0"] * 14)),
        ({"a": {"b" * 4097: 1}}, "a"),
        ({"a": {"\ud800": 1}}, "a"),
        ({"a": "\ud800"}, "a"),
        ([0] * 65_537, ""),
        ({"a": np.ma.array([1.0, 2.0])}, "a"),
        ({"a": np.zeros((1,) * 9)}, "a"),
    ],
)
def test_a_queue_refuses_what_cannot_travel_by_its_path(payload: object, key: str) -> None:
    store = QueuedDataStore(4)
    with raising(DataError, key=key):
        store.batch_insert([1, payload])
    assert len(store) == 0
