"""A robot as a server: agentlace's documented usage, and the possible faults."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from kit import free_port, raising, until

from rl4sys_zmq import serving
from rl4sys_zmq.errors import (
    CallbackStuck,
    CallFailed,
    CallLost,
    CallRefusalReason,
    CallRefused,
    CallTimeout,
    ConfigError,
    PayloadError,
)
from rl4sys_zmq.serving import ActionClient, ActionConfig, ActionServer
from rl4sys_zmq.testing import ChaosProxy
from rl4sys_zmq.testing.check_transport import TransportUnderTest

WAIT_S = 20.0
RECONNECTS_S = 90.0
"""The limit of a call that reconnects. On a busy machine this takes several silence timeouts and resends."""


@pytest.fixture
def lab(transport: TransportUnderTest) -> "Iterator[Lab]":
    lab = Lab(transport)
    yield lab
    lab.close()


class Lab:
    """A factory of servers and clients over one transport, which stops them in the end."""

    def __init__(self, transport: TransportUnderTest) -> None:
        self.transport = transport
        self._made: list[Any] = []

    def config(self, **changes: Any) -> ActionConfig:
        fields = {"action_keys": ["move"], "observation_keys": ["cam1"], "timeout_s": WAIT_S, **changes}
        if fields.get("broadcast_port") is True:
            fields["broadcast_port"] = self.transport.address()
        return ActionConfig(self.transport.address(), **fields)

    def server(self, config: ActionConfig | None = None, obs: Any = None, act: Any = None) -> ActionServer:
        server = ActionServer(
            config or self.config(), obs or (lambda keys: dict.fromkeys(keys, 1)), act or (lambda key, payload: {})
        )
        server.start(threaded=True)
        self._made.append(server)
        return server

    def client(self, server: ActionServer, config: ActionConfig | None = None, **options: Any) -> ActionClient:
        client = ActionClient(server.address, config or server.config, **options)
        self._made.append(client)
        return client

    def close(self) -> None:
        for made in reversed(self._made):
            made.stop()


def ports_of(scheme: str, transport: TransportUnderTest) -> tuple[Any, Any]:
    """Return two ports for tcp, as in agentlace, and two URIs for the other transports."""
    return (free_port(), free_port()) if scheme == "tcp" else (transport.address(), transport.address())


def test_the_readme_example(transport: TransportUnderTest) -> None:
    """An edge device is the server and a GPU machine its client, with agentlace's names."""
    port, _ = ports_of(transport.scheme, transport)
    actions = []

    def action_callback(key: str, action: Any) -> dict[str, Any]:
        actions.append((key, action))
        return {"status": "received"}

    config = serving.ActionConfig(port_number=port, action_keys=["move"], observation_keys=["cam1"])
    agent_server = serving.ActionServer(config, lambda keys: {"cam1": "some_value"}, action_callback)
    agent_server.start(threaded=True)

    agent = serving.ActionClient("localhost", port, task_id="mnist", config=config, wait_for_server=True)
    for step in range(100):
        assert agent.get_observation() == {"cam1": "some_value"}
        assert agent.send_action({"prediction": step}) == {"status": "received"}
    assert actions == [("move", {"prediction": step}) for step in range(100)]
    agent.stop()
    agent_server.stop()


def test_the_usage_of_their_action_test(transport: TransportUnderTest) -> None:
    port, broadcast = ports_of(transport.scheme, transport)
    image = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)

    def obs_callback(keys: set[str]) -> dict[str, Any]:
        assert keys == {"test_image"}
        return {"test_image": image}

    def act_callback(key: str, payload: dict[str, Any]) -> dict[str, Any]:
        assert key == "send_image"
        return {"status": "success", "same": bool((payload["image"] == image).all())}

    config = ActionConfig(port_number=port, action_keys=["send_image"], observation_keys=["test_image"], broadcast_port=broadcast)
    server = ActionServer(config, obs_callback, act_callback)
    server.start(threaded=True)
    client = ActionClient("127.0.0.1", config)
    received: list[dict[str, Any]] = []
    client.register_obs_callback(received.append)
    observation = client.obs()
    assert observation["test_image"].shape == (256, 256, 3)
    observation["test_image"][0, 0] = 0  # the array belongs to the caller, and is writeable
    assert client.act("send_image", {"image": image}) == {"status": "success", "same": True}
    server.publish_obs({"test-broadcast": 1})
    until(lambda: received == [{"test-broadcast": 1}], "the published observation")
    server.stop()
    client.stop()


FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"action_keys": ["move", "stop"]}, "action_keys is ['move', 'stop'] at the caller and ['move'] at the server"),
    ({"observation_keys": []}, "observation_keys is [] at the caller and ['cam1'] at the server"),
    ({"version": "2"}, "version is '2' at the caller and '0.0.1' at the server"),
    ({"broadcast_port": "inproc://x"}, "broadcast_port is 'given' at the caller and 'none' at the server"),
    ({"image_codecs": {"cam1": "png"}}, "image_codecs is ['cam1=png:90'] at the caller and [] at the server"),
]


@pytest.mark.parametrize(("change", "words"), FIELDS, ids=[next(iter(change)) for change, _ in FIELDS])
def test_another_configuration_is_refused_with_the_field_and_both_values(lab: Lab, change: dict[str, Any], words: str) -> None:
    if "image_codecs" in change:
        pytest.importorskip("PIL")
    server = lab.server()
    with pytest.raises(CallRefused) as caught:
        ActionClient(server.address, lab.config(**change))
    assert caught.value.code is CallRefusalReason.MISMATCH
    assert words in str(caught.value)


def test_all_fields_that_differ_are_named_and_the_order_of_keys_is_free(lab: Lab) -> None:
    server = lab.server(lab.config(action_keys=["a", "b"]))
    lab.client(server, lab.config(action_keys=["b", "a"], timeout_s=3.0))
    with pytest.raises(CallRefused, match=r"action_keys is .*; version is"):
        ActionClient(server.address, lab.config(version="2"))


def test_the_configuration_is_a_value() -> None:
    keys = ["move"]
    config = ActionConfig(6379, keys, ("cam",))
    keys.append("later")
    assert (config.action_keys, config.observation_keys) == (["move"], ["cam"])
    assert config == ActionConfig(6379, ["move"], ["cam"])
    assert str(config.bind_address()) == "tcp://127.0.0.1:6379"
    with pytest.raises(AttributeError):
        config.version = "2"  # type: ignore[misc]
    with pytest.raises(ConfigError, match="colour: ActionConfig has no such argument; the valid ones are action_keys, bind"):
        ActionConfig(1, [], [], colour=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("port_number", "server_ip", "port", "address"),
    [
        (6379, "localhost", None, "tcp://localhost:6379"),
        (6379, "::1", None, "tcp://[::1]:6379"),
        (6379, "10.0.0.5", 7000, "tcp://10.0.0.5:7000"),
        ("tcp://*:6379", "10.0.0.5", None, "tcp://10.0.0.5:6379"),
        ("ipc:///tmp/robot", "localhost", None, "ipc:///tmp/robot"),
        (6379, "ipc:///tmp/robot", None, "ipc:///tmp/robot"),
        (0, "localhost", None, None),
        (6379, "", None, None),
        (6379, "no host", None, None),
    ],
)
def test_where_a_client_dials(port_number: Any, server_ip: str, port: Any, address: str | None) -> None:
    config = ActionConfig(port_number, [], [])
    if address is not None:
        assert config.dial_address(server_ip, port).uri == address
    else:
        with pytest.raises(ConfigError):
            config.dial_address(server_ip, port)


def test_the_arguments_of_a_client() -> None:
    config = ActionConfig(6379, [], [])
    with pytest.raises(ConfigError, match="needs an ActionConfig"):
        ActionClient("localhost", 6379)
    with pytest.raises(ConfigError, match="two configurations"):
        ActionClient("localhost", config, config=config)


def test_an_unknown_key_is_refused_before_anything_is_sent(lab: Lab) -> None:
    server = lab.server()
    client = lab.client(server)
    before = server.status()["counters"]
    with raising(CallRefused, r"no observation key 'cam2'; the keys are: cam1", code=CallRefusalReason.UNKNOWN):
        client.obs({"cam1", "cam2"})
    with pytest.raises(CallRefused, match=r"no action key 'jump'; the keys are: move"):
        client.act("jump")
    assert server.status()["counters"] == before
    assert client.obs("cam1") == client.obs(["cam1"]) == {"cam1": 1}
    assert client.obs([]) == {}


def test_a_server_checks_the_keys_too(lab: Lab) -> None:
    """A client of another implementation, which uses the protocol and sends no terms."""
    from rl4sys_zmq.rpc import Caller

    with Caller(lab.server().address, timeout_s=WAIT_S) as raw:
        for method, payload, code in [
            ("obs", ["cam9"], CallRefusalReason.UNKNOWN),
            ("obs", "cam1", CallRefusalReason.INVALID),
            ("obs", [1], CallRefusalReason.INVALID),
            ("act", {"key": "jump", "payload": {}, "images": {}}, CallRefusalReason.UNKNOWN),
            ("act", {"key": "move", "payload": {}}, CallRefusalReason.INVALID),
            ("act", {"key": "move", "payload": {}, "images": {}, "more": 1}, CallRefusalReason.INVALID),
            ("act", {"key": "move", "payload": {}, "images": 3}, CallRefusalReason.INVALID),
            ("act", {"key": "move", "payload": {}, "images": {"a": ["jpeg", [8, 8], 3]}}, CallRefusalReason.INVALID),
            ("jump", None, CallRefusalReason.UNKNOWN),
        ]:
            with raising(CallRefused, code=code):
                raw.call(method, payload, once=method == "act")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"cam1": 1}, "without cam2"),
        ({"cam1": 1, "cam2": 2, "cam3": 3}, "with cam3, which was not requested"),
        ({}, "without cam1, cam2"),
        (None, "returned None"),
    ],
)
def test_an_answer_that_was_not_asked_for_is_passed_on_with_a_warning(
    lab: Lab, answer: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = lab.server(lab.config(observation_keys=["cam1", "cam2"]), lambda keys: answer, lambda key, payload: None)
    client = lab.client(server)
    for _ in range(3):
        assert client.obs() == (answer or {})
    assert client.act("move") == {}
    observed, acted = [record.getMessage() for record in caplog.records if "callback returned" in record.getMessage()]
    assert words in observed and "act_callback returned None" in acted  # once each
    assert server.status()["counters"]["callback_odd"] == 4


def test_an_answer_that_is_no_dict_is_a_failure(lab: Lab) -> None:
    client = lab.client(lab.server(lab.config(), lambda keys: [1], lambda key, payload: 3))
    with raising(CallFailed, "obs_callback returned a list; it must return a dict", kind="InvalidReply"):
        client.obs()
    with pytest.raises(CallFailed, match="act_callback returned a int; it must return a dict"):
        client.act("move")


def test_a_callback_that_raises_is_answered_and_the_server_lives_on(lab: Lab) -> None:
    fail = [True]

    def act(key: str, payload: Any) -> dict[str, Any]:
        if fail[0]:
            raise RuntimeError("the arm is stuck")
        return {"ok": True}

    client = lab.client(lab.server(act=act))
    with raising(CallFailed, "the arm is stuck", kind="RuntimeError", detail="the arm is stuck"):
        client.act("move", {"to": 1})
    fail[0] = False
    assert client.act("move") == {"ok": True}
    assert client.obs() == {"cam1": 1}


def test_a_server_without_a_callback_says_so(lab: Lab) -> None:
    config = lab.config()
    with ActionServer(config) as server:
        server.start(threaded=True)
        client = lab.client(server)
        calls: list[Callable[[], object]] = [client.obs, lambda: client.act("move")]
        for call in calls:
            with raising(CallRefused, "has no", code=CallRefusalReason.UNKNOWN):
                call()


def test_what_cannot_travel_is_refused_by_its_path_on_both_sides(lab: Lab) -> None:
    config = lab.config(broadcast_port=True)
    server = lab.server(config, lambda keys: {"cam1": [object()]}, lambda key, payload: {"x": {1, 2}})
    client = lab.client(server)
    with raising(PayloadError, path="payload['plan'][1]"):
        client.act("move", {"plan": [1, object()]})
    with raising(CallFailed, r"payload\['cam1'\]\[0\]: a value of type builtins.object", kind="PayloadError"):
        client.obs()
    with pytest.raises(CallFailed, match=r"payload\['x'\]: a value of type builtins.set"):
        client.act("move")
    with raising(PayloadError, path="payload['a']"):
        server.publish_obs({"a": object()})
    with pytest.raises(PayloadError):
        server.publish_obs([1])  # type: ignore[arg-type]


def test_a_callback_that_blocks_costs_its_caller_a_timeout_and_stop_says_what_is_stuck(lab: Lab) -> None:
    release, entered = threading.Event(), threading.Event()

    def act(key: str, payload: Any) -> dict[str, Any]:
        entered.set()
        release.wait(WAIT_S)
        return {}

    server = ActionServer(lab.config(), lambda keys: {"cam1": 1}, act)
    server.start(threaded=True)
    client = lab.client(server)
    with pytest.raises(CallTimeout, match="waiting for the answer"):
        client.act("move", timeout_s=0.3)
    assert entered.is_set()
    with pytest.raises(CallTimeout):  # the robot is one concurrency group: `obs` waits for the `act`
        client.obs(timeout_s=0.3)
    with pytest.raises(CallbackStuck, match=r"robot \(act\)"):
        server.stop(timeout_s=0.2)
    release.set()
    server.stop()


class Arm:
    """A robot that records its actions, and may call a function during an action."""

    def __init__(self) -> None:
        self.moves: list[Any] = []
        self.during: Callable[[], None] = lambda: None

    def act(self, key: str, payload: Any) -> dict[str, Any]:
        self.moves.append(payload)
        self.during()
        return {"moves": len(self.moves)}


def tcp_server(arm: Arm, port: int = 0, timeout_s: float = WAIT_S) -> ActionServer:
    server = ActionServer(ActionConfig(port, ["move"], ["cam1"], timeout_s=timeout_s), lambda keys: {"cam1": 1}, arm.act)
    server.start(threaded=True)
    return server


def test_an_act_is_not_done_again_by_the_server_that_comes_after(seed: int) -> None:
    """The first server acts, its reply is lost, and it ends. The second server must not act, and the caller gets `CallLost`."""
    first, second = Arm(), Arm()
    server = tcp_server(first, timeout_s=RECONNECTS_S)
    port = int(server.address.rpartition(":")[2])
    first.during = lambda: proxy.black_hole(True)
    with (
        ChaosProxy(server.address, seed=seed) as proxy,
        ActionClient(str(proxy.address), server.config) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        lost = pool.submit(client.act, "move", {"to": 1})
        until(lambda: first.moves, "the action", WAIT_S)
        server.stop()
        with tcp_server(second, port):
            proxy.black_hole(False)
            with pytest.raises(CallLost):
                lost.result(RECONNECTS_S)
            assert (len(first.moves), len(second.moves)) == (1, 0)
            assert client.obs() == {"cam1": 1}  # a call that may run twice still succeeds
            assert client.act("move", {"to": 2}) == {"moves": 1}


def test_without_a_broadcast_port_nothing_is_published(lab: Lab) -> None:
    server = lab.server()
    client = lab.client(server)
    with pytest.raises(ConfigError, match="broadcast_port"):
        server.publish_obs({})
    with pytest.raises(ConfigError, match="broadcast_port"):
        client.register_obs_callback(print)
