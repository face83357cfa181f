"""A trainer with keys: the users that may insert items, send requests and receive networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit import raising, until, write_keys

from rl4sys_zmq.errors import CallRefusalReason, CallRefused, CallTimeout, ConfigError
from rl4sys_zmq.serving import QueuedDataStore, TrainerConfig, TrainerServer

from .trainers import join


def test_roles(tmp_path: Path) -> None:
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
