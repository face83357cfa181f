"""The C++ client reads the files of Python's actors: it accepts and refuses the same, and means the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.cpp_client import Driver, DriverError

from rl4sys_zmq import AgentConfig
from rl4sys_zmq.errors import ConfigError

from .conftest import Records

SIZES = {"input_size": 4, "act_dim": 3}
BOX = {"type": "Box", "shape": [2, 2], "dtype": "<f4", "low": [[-1, 0.1], ["-inf", 0]], "high": [[1, 1], ["inf", 2]]}

WITHOUT_EFFECT = ("native", "jpeg_quality", "inference_timeout_s", "spool_max_bytes", "spool_max_age_s", "relays")

ACCEPTED: list[dict[str, Any]] = [
    {},
    {"algorithm_name": "ppo", "algorithm": "PPO"},
    {"algorithm_name": "SB3:trpo"},
    {"algorithm_name": "sb3:package.module:Class"},
    {"algorithm_name": None, "type": None, "actor_id": None, "log_level": None, "rollout_length": None, "seed": None},
    {"keys": "no.such.keys", "policy_cache": None, "spool": None, "relays": [], "native": "never", "plugins": []},
    {"inference": "local", "sidecar": False, "report_system": False, "image_codec": "off", "jpeg_quality": 5},
    {"inference_timeout_s": 2},
    {"spool_max_bytes": 65536, "spool_max_age_s": 1},
    {"algorithm_parameters": SIZES},
    {**SIZES, "algorithm_parameters": {"act_dim": 3}},
    {"input_size": 4, "algorithm_parameters": {"gamma": 0.5, "hidden_sizes": [8, 8], "target_kl": None, "big": 1 << 40}},
    {"act_dim": 2, "continuous": True, "act_limit": 0.1},
    {"algorithm_parameters": {"act_dim": 2, "continuous": True, "act_limit": 3}},
    {"observation_space": BOX, "input_size": 4},
    {"observation_space": {"type": "Box", "shape": [1], "low": -1e39, "high": 1e39}},
    {"algorithm_parameters": {"big": 2**64 - 1}},
    {"action_space": {"type": "Discrete", "n": 3, "dtype": "int32"}, "act_dim": 3},
    {"observation_space": {"type": "Discrete", "n": 5, "start": -2}, "action_space": None},
    {"algorithm_parameters": {"max_traj_length": 7, "type": "onpolicy"}},
    {"max_traj_length": 9, "algorithm_parameters": {"max_traj_length": 7}},
    {"algorithm_parameters": {"entropy_coef": 0.5, "ent_coef": 0.5}},
    {"compression": "zstd", "enable_compression": True, "timeout": 3, "connect_timeout_s": 3.0, "log_level": "info"},
    {"weights": {"wire_dtype": "bf16", "level": "auto"}},
    {"weights": {"level": 1, "wire_dtype": None}},
    {"train_server_address": " ipc:///run/learner "},
    {"train_server_address": "tcp://[fd00::5]:0080"},
    {"seed": 2**63 - 1, "send_frequency": 8192, "fallback": "random", **SIZES},
    {"communication": {"server_address": "host:1", "timeout": 4}, "training": {"batch_size": 9}, "network_architecture": {}},
    {"client_id": "räum" * 50},
]  # fmt: skip

REFUSED: list[dict[str, Any]] = [
    {"client_id": None}, {"client_id": "a/b"}, {"client_id": " a"}, {"client_id": "ä" * 201}, {"client_id": 5},
    {"actor_id": ""}, {"algorithm_name": ""}, {"type": "on"}, {"debug": None}, {"debug": 1}, {"log_level": "loud"},
    {"fallback": None}, {"fallback": "random"}, {"fallback": "random", "overflow": "wait", **SIZES},
    {"overflow": None}, {"swap": "never"}, {"on_stale": ""}, {"compression": None}, {"compression": "gzip"},
    {"send_frequency": 0}, {"send_frequency": 1.0}, {"send_frequency": True}, {"max_traj_length": 0}, {"rollout_length": 0},
    {"linger_ms": -1}, {"queue_bytes": 1 << 41}, {"seed": -1}, {"seed": 2**63}, {"act_limit": 0}, {"policy_max_age_s": 0},
    {"connect_timeout_s": "1"}, {"connect_timeout_s": 1e9}, {"keys": ""},
    {"native": "sometimes"}, {"jpeg_quality": 0}, {"spool_max_bytes": 1}, {"inference": "here"}, {"guard_rails": None},
    {"train_server_address": "host"}, {"train_server_address": "http://h:1"}, {"train_server_address": "h:65536"},
    {"train_server_address": "fd00::5:80"}, {"train_server_address": None},
    {"lingerms": 1}, {"gamma": 0.9}, {"communication": {"host": 1}}, {"training": None},
    {"communication": {"timeout": 3}, "timeout": 4}, {"algorithm_parameters": None}, {"algorithm_parameters": [1]},
    {"input_size": 0}, {"input_size": 4.0}, {"input_size": 4, "algorithm_parameters": {"input_size": 5}},
    {"algorithm_parameters": {"act_dim": "3"}}, {"algorithm_parameters": {"continuous": 1}},
    {"act_dim": 2, "continuous": True}, {"continuous": True}, {"act_dim": 4, "action_space": {"type": "Discrete", "n": 3}},
    {"continuous": True, "action_space": {"type": "Discrete", "n": 3}}, {"observation_space": BOX, "input_size": 5},
    {"observation_space": {"type": "Box"}}, {"observation_space": {"type": "Box", "shape": [2], "low": [0]}},
    {"action_space": {"type": "Discrete", "n": 0}}, {"action_space": {"type": "Discrete", "n": 2, "dtype": "float32"}},
    {"algorithm_parameters": {"entropy_coef": 0.5, "ent_coef": 0.25}},
    {"weights": None}, {"weights": {"level": 2}}, {"weights": {"levels": 1}}, {"weights": {"wire_dtype": "fp8"}},
]  # fmt: skip


@pytest.mark.parametrize("changes", ACCEPTED, ids=str)
def test_what_python_accepts(driver: Driver, changes: dict[str, Any]) -> None:
    given = {"client_id": "lab"} | changes
    wanted = AgentConfig.from_mapping(given)
    written = driver("config", config=json.dumps(given))
    without_effect = {key: given[key] for key in WITHOUT_EFFECT if key in given}
    assert AgentConfig.from_mapping(written | without_effect) == wanted
    assert driver("config", config=json.dumps(written)) == written


@pytest.mark.parametrize("changes", REFUSED, ids=str)
def test_what_python_refuses(driver: Driver, changes: dict[str, Any]) -> None:
    given = {"client_id": "lab"} | changes
    with pytest.raises(ConfigError) as theirs:
        AgentConfig.from_mapping(given)
    with pytest.raises(DriverError) as ours:
        driver("config", config=json.dumps(given))
    # Both name the same key at the beginning.
    assert str(ours.value).split(":")[0].split(" ")[0] == str(theirs.value).split(":")[0].split(" ")[0]


def test_a_file_needs_a_client_id_only(driver: Driver, records: Records, address: str) -> None:
    with pytest.raises(DriverError, match="client_id is missing"):
        driver("config", config="{}")
    driver.open(address)
    driver.open(address, algorithm_name=None, algorithm_parameters={})  # the learner knows both
    assert len(driver.step(0.5)["bytes"]) == 8
    with pytest.raises(DriverError, match="element 0 is not finite"):
        driver("request", obs=[1e39] * 4)
