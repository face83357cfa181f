"""A trainer client in a loop without ``try``, as in agentlace's programs, and the networks that these publish."""

import logging
from typing import Any

import numpy as np
import pytest
from kit import raising, until

from rl4sys_zmq.errors import CallFailed, CallRefused, CallTimeout, ConfigError, PayloadError
from rl4sys_zmq.serving import (
    MemoryEfficientReplayBufferDataStore,
    QueuedDataStore,
    TrainerClient,
    TrainerConfig,
    TrainerServer,
)
from rl4sys_zmq.testing.check_transport import TransportUnderTest
from rl4sys_zmq.values import BoxSpace, DictSpace

from .trainers import config_at, join, trainer_at


def test_a_loop_without_try_lives_through_a_restart_of_the_trainer(caplog: pytest.LogCaptureFixture) -> None:
    with TransportUnderTest("ipc") as ipc:
        config, store = config_at(ipc, request_types=["echo"]), QueuedDataStore(100)

        def serve(reply: str) -> TrainerServer:
            server = TrainerServer(config, request_callback=lambda kind, payload: [reply, payload])
            server.register_data_store("a", QueuedDataStore(100))
            server.start(threaded=True)
            return server

        first = serve("first")
        client = TrainerClient("c", first.address, config, data_stores={"a": store}, timeout_ms=200)
        networks: list[int] = []
        client.recv_network_callback(networks.append)
        first.publish_network(1)
        until(lambda: networks == [1], "the first network")
        made = 0

        def step() -> Any:
            nonlocal made
            store.insert(made)
            made += 1
            return client.update(), client.request("echo", made), client.get_server_last_update_id("a")

        done, answer, number = step()
        assert done and answer == ["first", 1] and number == 0
        first.stop()
        for _ in range(2):
            done, answer, number = step()
            assert not done and isinstance(done.error, CallTimeout) and answer is None and number is None
            assert not client.update_datastore("a", number)
        with serve("second") as second, client:
            until(lambda: step()[0], "an update")
            until(lambda: (client.request("echo", 0) or [""])[0] == "second", "a reply")
            assert second.data_store("a").get_latest_data(-1)[:3] == [0, 1, 2]
            second.publish_network(2)
            until(lambda: networks[-1] == 2, "the second network")
            assert client.update()
            assert client.last_error is None
        counts = client.stats()
        assert counts["update_failed"] >= 6 and counts["request_failed"] >= 2
        said = [record.getMessage() for record in caplog.records if "continues" in record.getMessage()]
        assert 2 <= len(said) <= 6  # once for each kind of failure, not for each failure


@pytest.fixture
def server() -> Any:
    with (
        TransportUnderTest("inproc") as inproc,
        trainer_at(inproc, None, lambda kind, payload: 1 // payload, stores={}, request_types=["fail"]) as made,
    ):
        yield made


def test_failures_of_the_trainer_are_false_results_and_mistakes_raise(server: TrainerServer) -> None:
    store = QueuedDataStore(5)
    with join(server, "c", data_stores={"a": store}, raises=False) as client:  # the store is not registered yet
        assert isinstance(client.last_error, CallRefused)
        store.insert(1)
        assert not client.update()
        server.register_data_store("a", QueuedDataStore(5))
        assert client.update().items == 1
        assert client.request("fail", 0) is None and isinstance(client.last_error, CallFailed)
        assert client.request("fail", 1) == 1
        with pytest.raises(PayloadError):
            client.request("fail", object())
        with pytest.raises(ConfigError):
            client.update_datastore("nope", -1)
    with pytest.raises(CallRefused, match="version"):
        join(server, "c", config=TrainerConfig(version="2"), raises=False)


def test_requests_without_a_callback_are_answered_by_an_empty_dict(caplog: pytest.LogCaptureFixture) -> None:
    with TransportUnderTest("inproc") as inproc:
        config = config_at(inproc, request_types=["send-stats"], experimental_pipeline_port=5547)
        with caplog.at_level(logging.WARNING), TrainerServer(config) as server:
            server.start(threaded=True)
            assert "the reply to each request (send-stats) is an empty dict" in caplog.text
            with join(server, "c") as client:
                assert client.request("send-stats", {"timer": {"total": 0.1}}) == {}


def test_the_pipeline_port_is_accepted_and_checked() -> None:
    one, other = TrainerConfig(experimental_pipeline_port=5547), TrainerConfig()
    assert one.terms() == other.terms()
    with raising(ConfigError, key="experimental_pipeline_port"):
        TrainerConfig(experimental_pipeline_port=-1)


def test_networks_with_bfloat16_integer_keys_and_arrays_above_64_mib(transport: TransportUnderTest) -> None:
    torch = pytest.importorskip("torch")
    large = np.arange((65 << 20) // 4, dtype=np.int32)
    params = {
        "layers": {0: {"kernel": torch.full((2, 3), 1.5, dtype=torch.bfloat16)}, 1: {"kernel": np.ones(2)}},
        "large": large,
    }
    got: list[Any] = []
    with (
        trainer_at(transport, stores={}) as server,
        join(server, "early") as early,
        join(server, "late") as late,
    ):
        early.recv_network_callback(got.append)
        server.publish_network(params)
        until(lambda: got, "the network of the early one")
        late.recv_network_callback(got.append)
        until(lambda: len(got) == 2, "the network of the late one")
    for network in got:
        assert list(network["layers"]) == [0, 1] and network["layers"][0]["kernel"].tolist() == [[1.5] * 3] * 2
        assert network["large"].flags.writeable and np.array_equal(network["large"], large)


def test_hil_serls_two_stores_with_demonstrations_and_interventions(transport: TransportUnderTest) -> None:
    camera, state = BoxSpace((1, 8, 8, 3), "|u1", 0, 255), BoxSpace((1, 4))
    space = DictSpace({"wrist": camera, "state": state})

    def step(number: int, **more: Any) -> dict[str, Any]:
        seen, following = (
            {"wrist": np.full((1, 8, 8, 3), n, np.uint8), "state": np.full((1, 4), n, np.float64)} for n in (number, number + 1)
        )
        done = number == 5
        ends = {"rewards": int(done), "masks": 1.0 - done, "dones": done}
        return {"observations": seen, "next_observations": following, "actions": np.zeros(4), **ends, **more}

    def store() -> MemoryEfficientReplayBufferDataStore:
        return MemoryEfficientReplayBufferDataStore(
            space, BoxSpace((4,)), capacity=100, image_keys=["wrist"], include_grasp_penalty=True
        )

    replay, demonstrations = store(), store()
    logged: list[Any] = []
    for number in range(6):  # demonstrations have infos, and the actor's transitions do not
        demonstrations.insert(step(number, infos={"succeed": True, "grasp_penalty": -0.02}, grasp_penalty=-0.02))
    both = {"actor_env": replay, "actor_env_intvn": demonstrations}
    mine = {name: QueuedDataStore(50) for name in both}
    with (
        trainer_at(transport, None, lambda kind, payload: logged.append(payload), stores=both, request_types=["stats"]) as server,
        join(server, "actor_env", data_stores=mine) as client,
    ):
        for number in range(6):
            mine["actor_env"].insert(step(number, grasp_penalty=0.0))
        mine["actor_env_intvn"].insert(step(2, grasp_penalty=-0.5))
        info = {"episode": {"r": np.float64(1.0), "l": 6, "intervention_count": 1}, "succeed": True}
        client.request("stats", {"environment": info})
        assert client.update()
    assert (len(replay), len(demonstrations)) == (6, 7) and logged[0]["environment"]["episode"]["l"] == 6
    ours, theirs = (one.sample(6, indx=range(6), pack_obs_and_next_obs=True) for one in (replay, demonstrations))
    assert ours.keys() == theirs.keys() >= {"grasp_penalty", "masks", "dones"} and "infos" not in theirs
    assert ours["observations"]["wrist"].shape == (6, 2, 8, 8, 3) and ours["next_observations"].keys() == {"state"}
    assert ours["masks"].tolist() == [1.0] * 5 + [0.0] and ours["rewards"].tolist() == [0.0] * 5 + [1.0]
    assert demonstrations.sample(1, indx=[6])["grasp_penalty"].tolist() == [-0.5]
