"""The life of a server and its clients, the same for robots, trainers and inference."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kit import free_port, raising, until

from rl4sys_zmq import serving
from rl4sys_zmq.errors import AddressInUse, CallTimeout, Closed, ConfigError
from rl4sys_zmq.testing.check_transport import TransportUnderTest

WAIT_S = 20.0


@dataclass(frozen=True)
class Service:
    """A server and a client for an address, and a call of the client that returns 5."""

    server: Callable[..., Any]
    client: Callable[..., Any]
    call: Callable[[Any], Any]


def second_of(where: str) -> str:
    """Return the address of the publications beside that of the calls."""
    return "tcp://127.0.0.1:0" if where.startswith("tcp") else f"{where}-pub"


def robot(where: str) -> serving.ActionConfig:
    return serving.ActionConfig(where, [], ["cam1"], second_of(where), timeout_s=WAIT_S)


def trainer(where: str) -> serving.TrainerConfig:
    return serving.TrainerConfig(where, second_of(where), request_types=["five"])


def inference(where: str, **options: Any) -> serving.InferenceServer:
    server = serving.InferenceServer(bind=where, **options)
    server.register_interface("five", lambda payload: 5)
    return server


SERVICES = {
    "robot": Service(
        lambda where, **options: serving.ActionServer(robot(where), lambda keys: {"cam1": 5}, **options),
        lambda where, **options: serving.ActionClient(where, robot(where), **options),
        lambda client: client.obs("cam1")["cam1"],
    ),
    "trainer": Service(
        lambda where, **options: serving.TrainerServer(trainer(where), request_callback=lambda kind, payload: 5, **options),
        lambda where, **options: serving.TrainerClient("c", where, trainer(where), raises=True, **options),
        lambda client: client.request("five", None),
    ),
    "inference": Service(
        inference,
        lambda where, timeout_ms=2e4: serving.InferenceClient(where, timeout_s=timeout_ms / 1000),
        lambda client: client.call("five", None),
    ),
}


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> Service:
    return SERVICES[request.param]


@pytest.fixture
def where(transport: TransportUnderTest) -> str:
    return f"tcp://127.0.0.1:{free_port()}" if transport.scheme == "tcp" else transport.address()


def test_a_blocking_start_ends_with_stop(service: Service, where: str) -> None:
    server = service.server(where)
    serves = threading.Thread(target=server.start)
    serves.start()
    until(lambda: server.status()["address"], "the address")
    with service.client(where, timeout_ms=2e4) as client:
        assert service.call(client) == 5
    client.close()
    with pytest.raises(Closed):
        service.call(client)
    server.stop()
    server.stop()
    serves.join(WAIT_S)
    assert not serves.is_alive()
    with pytest.raises(Closed):
        server.start(threaded=True)
    for name in {"publish_obs", "publish_network"} & set(dir(server)):
        with pytest.raises(Closed):
            getattr(server, name)({})


def test_no_server(service: Service, where: str) -> None:
    with pytest.raises(CallTimeout, match="none has answered"), service.client(where, timeout_ms=200) as client:
        service.call(client)


@pytest.mark.parametrize("name", ["robot", "trainer"])
def test_a_client_waits_for_its_server(name: str, where: str) -> None:
    service, made = SERVICES[name], list[Any]()
    waits = threading.Thread(target=lambda: made.append(service.client(where, wait_for_server=True, timeout_ms=50)))
    waits.start()
    waits.join(0.2)  # it may have been refused by now or not: both are allowed
    with service.server(where) as server:
        server.start(threaded=True)
        waits.join(WAIT_S)
        made[0].stop()


def test_an_address_in_use(service: Service, where: str) -> None:
    with service.server(where) as first, service.server(where) as second:
        first.start(threaded=True)
        with pytest.raises(AddressInUse):
            second.start(threaded=True)


def test_other_machines_are_not_let_in_by_accident(service: Service) -> None:
    with pytest.raises(ConfigError, match="without keys"):
        service.server("tcp://*:0")
    with service.server("tcp://*:0", insecure=True) as server:
        server.start(threaded=True)


@pytest.mark.parametrize(
    ("cls", "fields", "key"),
    [
        (serving.ActionConfig, {"port_number": 70_000}, "port_number"),
        (serving.ActionConfig, {"port_number": "nonsense"}, "port_number"),
        (serving.ActionConfig, {"port_number": True}, "port_number"),
        (serving.ActionConfig, {"port_number": None}, "port_number"),
        (serving.ActionConfig, {"broadcast_port": "udp://x"}, "broadcast_port"),
        (serving.ActionConfig, {"action_keys": "move"}, "action_keys"),
        (serving.ActionConfig, {"action_keys": ["move", "move"]}, "action_keys"),
        (serving.ActionConfig, {"observation_keys": [1]}, "observation_keys"),
        (serving.ActionConfig, {"observation_keys": [""]}, "observation_keys"),
        (serving.ActionConfig, {"observation_keys": None}, "observation_keys"),
        (serving.ActionConfig, {"version": 1}, "version"),
        (serving.ActionConfig, {"timeout_s": 0}, "timeout_s"),
        (serving.ActionConfig, {"timeout_s": "1"}, "timeout_s"),
        (serving.ActionConfig, {"image_codecs": {"cam": "gif"}}, "image_codecs"),
        (serving.ActionConfig, {"image_codecs": {"cam": "jpeg:0"}}, "image_codecs"),
        (serving.ActionConfig, {"image_codecs": {1: "jpeg"}}, "image_codecs"),
        (serving.ActionConfig, {"image_codecs": ["cam"]}, "image_codecs"),
        (serving.ActionConfig, {"bind": "a b"}, "port_number"),
        (serving.TrainerConfig, {"port_number": -1}, "port_number"),
        (serving.TrainerConfig, {"broadcast_port": "x"}, "broadcast_port"),
        (serving.TrainerConfig, {"port_number": 6000, "broadcast_port": 6000}, "broadcast_port"),
        (serving.TrainerConfig, {"request_types": "get-stats"}, "request_types"),
        (serving.TrainerConfig, {"request_types": ["a", "a"]}, "request_types"),
        (serving.TrainerConfig, {"rate_limit": 0}, "rate_limit"),
        (serving.TrainerConfig, {"version": 1}, "version"),
        (serving.TrainerConfig, {"port_number": "udp://x"}, "port_number"),
        (serving.TrainerConfig, {"broadcast_port": None}, "broadcast_port"),
        (serving.TrainerConfig, {"bind": "no host"}, "port_number"),
    ],
)
def test_a_field_of_a_configuration_that_cannot_be_is_named(cls: type[Any], fields: dict[str, Any], key: str) -> None:
    needed = {"port_number": 0, "action_keys": [], "observation_keys": []} if cls is serving.ActionConfig else {}
    with raising(ConfigError, key=key):
        cls(**{**needed, **fields})
