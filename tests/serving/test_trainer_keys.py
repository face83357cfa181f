"""A trainer with keys: the users that may insert items, send requests and receive networks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from kit import raising

from rl4sys_zmq.errors import CallRefusalReason, CallRefused, CallTimeout, ConfigError
from rl4sys_zmq.security import ServerKeys, UserKeys, new_key_pair, write_server_keys, write_user_keys
from rl4sys_zmq.serving import QueuedDataStore, TrainerClient, TrainerConfig, TrainerServer

from .trainers import WAIT_S

Give = Callable[[str, Sequence[str]], Path]


@pytest.fixture
def give(tmp_path: Path) -> Give:
    """Yield a function that writes the keys of a user to the folder ``keys``.

    Without roles the user is not on the access list.
    """
    folder = tmp_path / "keys"
    server = ServerKeys(new_key_pair())
    write_server_keys(folder / "learner.secret", server)
    listed = folder / "users.toml"
    listed.touch(mode=0o600)

    def make(name: str, roles: Sequence[str]) -> Path:
        pair = new_key_pair()
        if roles:
            with listed.open("a") as file:
                file.write(f"[{name}]\nkey = '{pair.public}'\nclient_ids = ['*']\nroles = {list(roles)}\n")
        write_user_keys(folder / f"{name}.keys", name, UserKeys(pair, server.learner.public))
        return folder / f"{name}.keys"

    return make


def test_roles(give: Give, tmp_path: Path) -> None:
    robot, judge = give("robot", ["call", "submit", "read_weights"]), give("judge", ["call"])
    stranger = give("stranger", [])
    config = TrainerConfig("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", request_types=["echo"])
    with TrainerServer(config, request_callback=lambda kind, payload: payload, keys=tmp_path / "keys") as server:
        server.register_data_store("a", store := QueuedDataStore(10))
        server.start(threaded=True)

        def join(keys: Path | None, **options: Any) -> TrainerClient:
            return TrainerClient(
                "c", server.address, config, **{"timeout_ms": WAIT_S * 1000, "keys": keys, "raises": True, **options}
            )

        mine, arrived = QueuedDataStore(10), threading.Event()
        mine.insert(1)
        with join(robot, data_stores={"a": mine}) as client:
            assert store.get_latest_data(-1) == [1]
            client.recv_network_callback(lambda network: arrived.set())
            server.publish_network({"w": 1.0})
            assert arrived.wait(WAIT_S)
        with join(judge) as client:
            assert client.request("echo", 1) == 1
        with raising(CallRefused, "the key of judge does not have the role submit", code=CallRefusalReason.FORBIDDEN):
            join(judge, data_stores={"a": mine})
        for keys in (stranger, None):
            with pytest.raises(CallTimeout):
                join(keys, timeout_ms=300)


def test_an_address_that_others_reach_needs_keys() -> None:
    with pytest.raises(ConfigError, match="insecure=True"):
        TrainerServer(TrainerConfig(0, 0, bind="0.0.0.0"))


def test_an_access_list_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"users: the access list .*users.toml has no effect without keys; give keys=DIR"):
        TrainerServer(TrainerConfig(0, 0), users=tmp_path / "users.toml")
