"""A trainer and its actors in one process."""

import threading
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import CallFailed, CallRefused, ConfigError
from rl4sys_zmq.serving import QueuedDataStore, TrainerClient, TrainerServer, TrainerSMInterface, UpdateResult
from rl4sys_zmq.serving import trainer_local as local_module

from .trainers import WAIT_S


def test_one_process_with_threads() -> None:
    store = QueuedDataStore(10)
    got: list[Any] = []
    with TrainerSMInterface() as both:
        both.register_data_store("a", store)
        both.start(threaded=True)
        both.start_async_update(interval=10)
        store.insert(1)
        assert both.data_store("a") is store and both.store_names() == {"a"}
        assert both.update().acked == {"a": 0} and both.get_server_last_update_id("a") == 0
        weights = {"w": np.zeros(3)}
        assert both.publish_network(weights) == 1
        both.recv_network_callback(got.append)
        weights["w"] += 1.0
        assert both.publish_network(weights) == 2
        assert [network["w"].tolist() for network in got] == [[0.0] * 3, [1.0] * 3]
        payload = object()
        with pytest.raises(CallRefused, match="no callback for requests"):
            both.request("x", payload)
        both.register_request_callback(lambda kind, said: (kind, said))
        assert both.request("x", payload) == ("x", payload)
        both.register_request_callback(lambda kind, said: 1 / 0)
        with pytest.raises(CallFailed, match="ZeroDivisionError"):
            both.request("x", payload)
        with pytest.raises(ConfigError, match="no data store 'b'; registered: a"):
            both.data_store("b")
        with pytest.raises(ConfigError, match="an object of the class DataStoreBase"):
            both.register_data_store("b", 5)  # type: ignore[arg-type]


def test_it_has_the_calls_of_server_and_client() -> None:
    with TrainerSMInterface() as both:
        calls = {name for part in (TrainerClient, TrainerServer) for name in vars(part) if not name.startswith("_")}
        assert calls <= set(dir(both))
        both.register_data_store("a", store := QueuedDataStore(10))
        store.insert(1)
        assert both.update_datastore("a", None, confirm_update=True) == UpdateResult(acked={"a": 0})
        with pytest.raises(ConfigError, match="no data store 'b'"):
            both.update_datastore("b", 0)
        both.publish_network(1)
        assert both.address == "this process" and both.stats() == {"networks": 1}
        assert both.status() == {
            "address": both.address,
            "stores": {"a": {"items": 1, "latest_data_id": 0}},
            "network_version": 1,
            "journal": None,
            "counters": {"networks": 1},
        }


def test_in_one_process_no_older_network_comes_after_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    copying, go_on, got = threading.Event(), threading.Event(), list[int]()

    def copy(network: int) -> int:  # this copy takes as long as that of a large network
        if network == 1:
            copying.set()
            go_on.wait(WAIT_S)
        return network

    monkeypatch.setattr(local_module, "copy_params", copy)
    both = TrainerSMInterface()
    both.publish_network(1)
    late = threading.Thread(target=both.recv_network_callback, args=(got.append,))
    late.start()
    assert copying.wait(WAIT_S)
    newer = threading.Thread(target=both.publish_network, args=(2,))
    newer.start()
    newer.join(0.05)  # it may be blocked or not: both are allowed
    go_on.set()
    late.join(WAIT_S)
    newer.join(WAIT_S)
    assert got == [1, 2]


def test_in_one_process_a_callback_may_publish_and_stop() -> None:
    both, got = TrainerSMInterface(), list[tuple[str, int]]()

    def first(network: int) -> None:
        got.append(("first", network))
        if network == 1:
            both.publish_network(2)
        if network == 3:
            both.stop()

    both.recv_network_callback(first)
    both.recv_network_callback(lambda network: got.append(("second", network)))
    both.register_request_callback(lambda kind, payload: payload)
    both.publish_network(1)
    assert got == [("first", 1), ("first", 2), ("second", 2)]
    assert both.request("x", 1) == 1
    both.publish_network(3)
    both.publish_network(4)
    assert got[3:] == [("first", 3)]
    with pytest.raises(CallRefused):
        both.request("x", 1)
