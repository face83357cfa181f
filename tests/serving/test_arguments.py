"""Arguments of the wrong type. The constructors of servers and clients refuse them as configuration files do."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("gymnasium")

from rl4sys_zmq.errors import ConfigError, TransportError
from rl4sys_zmq.rpc import Caller, Server
from rl4sys_zmq.serving import (
    ActionClient,
    ActionConfig,
    ActionServer,
    GymEnvClient,
    GymEnvServer,
    InferenceClient,
    InferenceServer,
    RemoteEnv,
    RemoteVectorEnv,
    TrainerClient,
    TrainerConfig,
    TrainerServer,
)

HOST, SOMEWHERE = "127.0.0.1", "ipc:///nowhere/at/all"
ACTIONS = ActionConfig(port_number=1, action_keys=["a"], observation_keys=["o"])
ITEMS = TrainerConfig(port_number=1, broadcast_port=0)
TIMES: list[Any] = [None, "800", [], True, -1, 0, float("nan"), float("inf"), 10**400]


def trainer_client(**options: Any) -> TrainerClient:
    return TrainerClient("one", HOST, ITEMS, **{"timeout_ms": 1, **options})


def trainer_server(**options: Any) -> TrainerServer:
    return TrainerServer(TrainerConfig(0, 0), **options)


CASES: dict[str, tuple[Callable[[Any], object], list[Any]]] = {
    "TrainerClient.timeout_ms": (lambda it: trainer_client(timeout_ms=it), TIMES),
    "TrainerClient.data_stores": (lambda it: trainer_client(data_stores=it), ["ab", 5, [1]]),
    "TrainerClient.log_level": (lambda it: trainer_client(log_level=it), ["loud", [], 1.5, True]),
    "TrainerClient.keys": (lambda it: trainer_client(keys=it), [5, b"x", []]),
    "TrainerClient.raises": (lambda it: trainer_client(raises=it), ["no", 0]),
    "TrainerClient.wait_for_server": (lambda it: trainer_client(wait_for_server=it), ["no", 5.0]),
    "TrainerServer.log_level": (lambda it: trainer_server(log_level=it), ["loud", [], 1.5]),
    "TrainerServer.run_dir": (lambda it: trainer_server(run_dir=it), [5, b"x", ""]),
    "TrainerServer.fsync": (lambda it: trainer_server(fsync=it), ["sometimes", None, True]),
    "TrainerServer.keys": (lambda it: trainer_server(keys=it), [5, []]),
    "TrainerServer.data_callback": (lambda it: trainer_server(data_callback=it), ["print", 5]),
    "TrainerServer.request_callback": (lambda it: trainer_server(request_callback=it), ["print", 5]),
    "ActionServer.config": (ActionServer, [None, {}, "0"]),
    "ActionServer.obs_callback": (lambda it: ActionServer(ACTIONS, it), ["print", 5]),
    "ActionServer.act_callback": (lambda it: ActionServer(ACTIONS, None, it), ["print", 5]),
    "ActionServer.log_level": (lambda it: ActionServer(ACTIONS, log_level=it), ["loud", 1.5]),
    "ActionClient.config": (lambda it: ActionClient(HOST, 1, config=it), ["0", {}, 5]),
    "ActionClient.timeout_ms": (lambda it: ActionClient(HOST, ACTIONS, timeout_ms=it), TIMES[1:]),
    "ActionConfig.timeout_s": (lambda it: ActionConfig(0, ["a"], ["o"], timeout_s=it), TIMES),
    "InferenceServer.port_num": (InferenceServer, [[], "80", 1.5]),
    "InferenceClient.server_ip": (lambda it: InferenceClient(it, 1), [None, 5, b"x"]),
    "InferenceClient.timeout_s": (lambda it: InferenceClient(HOST, 1, timeout_s=it), TIMES),
    "RemoteEnv.timeout_s": (lambda it: RemoteEnv(SOMEWHERE, timeout_s=it), TIMES),
    "RemoteEnv.address": (RemoteEnv, [None, 5, b"tcp://127.0.0.1:5"]),
    "RemoteVectorEnv.address": (RemoteVectorEnv, [None, 5, []]),
    "RemoteVectorEnv.num_envs": (lambda it: RemoteVectorEnv(SOMEWHERE, it), ["2", 0, 1.5, True]),
    "RemoteVectorEnv.timeout_s": (lambda it: RemoteVectorEnv(SOMEWHERE, timeout_s=it), TIMES),
    "GymEnvServer.count": (lambda it: GymEnvServer("CartPole-v1", it, bind=0), [None, "2", 0, 1.5, True]),
    "GymEnvServer.lease_s": (lambda it: GymEnvServer("CartPole-v1", bind=0, lease_s=it), TIMES),
    "GymEnvServer.make_kwargs": (lambda it: GymEnvServer("CartPole-v1", bind=0, make_kwargs=it), ["ab", 5]),
    "GymEnvClient.timeout_ms": (lambda it: GymEnvClient(HOST, 1, timeout_ms=it), TIMES),
    "GymEnvClient.retry_interval": (lambda it: GymEnvClient(HOST, 1, it), TIMES),
    "GymEnvClient.host": (lambda it: GymEnvClient(it, 1), [None, 5]),
    "Caller.terms": (lambda it: Caller(SOMEWHERE, terms=it), ["ab", 5]),
    "Server.insecure": (lambda it: Server("tcp://0.0.0.0:0", name="open", insecure=it), ["no", 1, None]),
    "Server.terms": (lambda it: Server("inproc://*", name="terms", terms=it), ["ab", 5]),
    "Server.users": (lambda it: Server("inproc://*", name="users", keys="k", users=it), [5, ""]),
}


@pytest.mark.parametrize("name", CASES)
def test_an_argument_of_the_wrong_type_is_refused(name: str) -> None:
    create, values = CASES[name]
    for value in values:
        with pytest.raises((ConfigError, TransportError)):
            create(value)
            pytest.fail(f"{name} took {value!r:.60}")
