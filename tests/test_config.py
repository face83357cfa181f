"""The configuration: both of RL4Sys's forms, synonyms, and an error that names the key for each mistake."""

import builtins
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import raising

from rl4sys_zmq.config import AgentConfig, ClientConfig, LearnerConfig, RelayConfig, ResourcesConfig, WeightsConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.images import ImageFormat
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

LUNA: dict[str, Any] = {
    "client_id": "luna",
    "algorithm_name": "PPO",
    "algorithm_parameters": {
        "batch_size": 512,
        "act_dim": 4,
        "seed": 0,
        "traj_per_epoch": 256,
        "clip_ratio": 0.2,
        "gamma": 0.99,
        "lam": 0.95,
        "pi_lr": 3e-4,
        "vf_lr": 1e-3,
        "train_pi_iters": 80,
        "train_v_iters": 80,
        "target_kl": None,
        "input_size": 8,
    },
    "act_limit": 1.0,
    "max_traj_length": 1000,
    "type": "onpolicy",
    "train_server_address": "localhost:50051",
    "send_frequency": 10,
}
SECOND: dict[str, Any] = {
    "algorithm": "PPO",
    "algorithm_parameters": {"gamma": 0.99, "learning_rate": 3e-4},
    "network_architecture": {"hidden_sizes": [64, 64], "activation": "tanh"},
    "training": {"batch_size": 64, "epochs": 10},
    "communication": {"server_address": "learner.lab:50051", "timeout": 30},
}
GLOBAL: dict[str, Any] = {
    "default_algorithm": "ppo",
    "algorithms": {"PPO": {"act_dim": 4, "clip_ratio": 0.1, "seed": 0}, "TRPO": {}, "dqn": {"q_lr": 15e-4}},
    "ensemble_algorithms": {},
    "max_traj_length": 1000,
    "model_paths": {"_comment1": "relative to the root", "load_model": "models/", "save_model": "models/"},
    "server": {
        "training_server": {"prefix": "tcp://", "host": "localhost", "port": ":5556"},
        "trajectory_server": {"prefix": "tcp://", "host": "localhost", "port": ":5555"},
    },
    "tensorboard": {"tensorboard_writer": {"scalar_tags": "AverageEpRet"}},
}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: object, name: str = "conf.json") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_the_first_form(write: Write) -> None:
    config = AgentConfig.load(write(LUNA))
    assert config.client_id == "luna"
    assert config.algorithm_name == "PPO"
    assert config.algorithm_parameters == {
        k: v for k, v in LUNA["algorithm_parameters"].items() if k not in ("act_dim", "input_size")
    }
    assert config.observation_space == BoxSpace((8,))
    assert config.action_space == DiscreteSpace(4)
    assert (config.act_limit, config.max_traj_length, config.send_frequency) == (1.0, 1000, 10)
    assert (config.type, config.seed) == ("onpolicy", None)
    assert (config.train_server_address, config.address) == ("localhost:50051", "tcp://localhost:50051")


def test_the_keys_of_rl4sys_c_client(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    more = {
        "connection_timeout_seconds": 10, "request_timeout_seconds": 30, "enable_compression": True, "debug": False,
        "log_level": "info",
    }  # fmt: skip
    config = AgentConfig.load(write({**LUNA, **more}))
    assert (config.connect_timeout_s, config.compression, config.debug, config.log_level) == (10.0, "zstd", False, "INFO")
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "request_timeout_seconds has no meaning here and is ignored"
    ]
    assert AgentConfig.load(write({**LUNA, "enable_compression": False})).compression == "off"
    with pytest.raises(ConfigError, match="log_level: expected 'DEBUG' or"):
        AgentConfig.load(write({**LUNA, "log_level": "loud"}))


def test_actor_keys_inside_the_parameters_of_an_algorithm(write: Write) -> None:
    inside = {**LUNA["algorithm_parameters"], "max_traj_length": 77, "type": "onpolicy", "act_limit": 1.0}
    without = {key: value for key, value in LUNA.items() if key not in ("max_traj_length", "type")}
    config = AgentConfig.load(write({**without, "algorithm_parameters": inside}))
    assert (config.max_traj_length, config.type) == (77, "onpolicy")
    assert not {"max_traj_length", "type"} & config.algorithm_parameters.keys()
    assert AgentConfig.load(write({**LUNA, "algorithm_parameters": inside})).max_traj_length == 1000, "the outer one wins"


def test_a_training_server_as_text(write: Write) -> None:
    config = LearnerConfig.load(write({"server": {"training_server": "localhost:50051"}}))
    assert config.bind == "tcp://localhost:50051"


def test_the_second_form(write: Write) -> None:
    config = AgentConfig.load(write(SECOND), client_id="luna")
    assert (config.client_id, config.algorithm_name) == ("luna", "PPO")
    assert config.algorithm_parameters == {
        "gamma": 0.99,
        "learning_rate": 3e-4,
        "hidden_sizes": [64, 64],
        "activation": "tanh",
        "batch_size": 64,
        "epochs": 10,
    }
    assert (config.address, config.connect_timeout_s) == ("tcp://learner.lab:50051", 30.0)
    assert config.observation_space is None and config.action_space is None


def test_the_second_form_takes_its_client_and_spaces_from_arguments(write: Write) -> None:
    config = AgentConfig.load(
        write(SECOND),
        client_id="x",
        observation_space={"type": "Box", "shape": [3]},
        act_dim=2,
        timeout=1,
        training={"epochs": 10},
    )
    assert (config.observation_space, config.action_space, config.connect_timeout_s) == (BoxSpace((3,)), DiscreteSpace(2), 1.0)


def test_the_second_form_as_rl4sys_prints_it(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    """It has no client: the file's name is one, with a warning. `entropy_coef` is `ent_coef`, in every place."""
    printed = {**SECOND, "algorithm_parameters": {**SECOND["algorithm_parameters"], "clip_ratio": 0.2, "entropy_coef": 0.05}}
    config = AgentConfig.load(write(printed, "luna.json"))
    assert (config.client_id, config.algorithm_parameters["ent_coef"]) == ("luna", 0.05)
    assert "entropy_coef" not in config.algorithm_parameters
    assert [r.getMessage() for r in caplog.records if "no client_id" in r.getMessage()] != []
    assert AgentConfig.load(write(printed, "luna.json"), client_id="mine").client_id == "mine"
    assert AgentConfig.from_mapping(printed).client_id == "default"
    with raising(ConfigError, r"conf\.json: client_id is missing", key="client_id"):
        AgentConfig.load(write({"algorithm": "PPO"}))
    assert AgentConfig(client_id="x", algorithm_parameters={"entropy_coef": 0.1}).algorithm_parameters == {"ent_coef": 0.1}
    learner = LearnerConfig.load(
        write({"algorithms": {"PPO": {"entropy_coef": 0.1}}, "clients": {"x": {"algorithm_parameters": {"entropy_coef": 0.2}}}})
    )
    assert learner.algorithms["PPO"] == {"ent_coef": 0.1} and learner.clients["x"].algorithm_parameters == {"ent_coef": 0.2}
    with pytest.raises(ConfigError, match=r"entropy_coef: 0\.1 contradicts 'ent_coef': 0\.2"):
        AgentConfig(client_id="x", algorithm_parameters={"entropy_coef": 0.1, "ent_coef": 0.2})


@pytest.mark.parametrize(
    ("cls", "content"), [(AgentConfig, LUNA), (AgentConfig, {**SECOND, "client_id": "x"}), (LearnerConfig, GLOBAL)]
)
def test_yaml_says_the_same_as_json(write: Write, cls: type[AgentConfig | LearnerConfig], content: dict[str, Any]) -> None:
    yaml = pytest.importorskip("yaml")
    from_json = cls.load(write(content))
    assert cls.load(write(yaml.safe_dump(content), "conf.yaml")) == from_json
    assert cls.load(write(json.dumps(content), "conf.yml")) == from_json, "JSON is YAML, 3e-4 included"


@pytest.mark.parametrize(
    ("synonym", "name", "value"),
    [
        ("algorithm", "algorithm_name", "DQN"),
        ("algorithm_type", "type", "offpolicy"),
        ("server_address", "train_server_address", "h:1"),
        ("timeout", "connect_timeout_s", 3.0),
    ],
)
def test_synonyms(synonym: str, name: str, value: Any) -> None:
    assert getattr(AgentConfig.from_mapping({"client_id": "x", synonym: value}), name) == value
    assert getattr(AgentConfig.from_mapping({"client_id": "x", synonym: value, name: value}), name) == value
    assert getattr(AgentConfig.from_mapping({"client_id": "x", name: value}, **{synonym: value}), name) == value


def test_overrides_win_and_parameters_are_merged(write: Write) -> None:
    config = AgentConfig.load(
        write(LUNA), client_id="b", seed=3, algorithm_parameters={"gamma": 0.9}, server_address="ipc:///tmp/x"
    )
    assert (config.client_id, config.seed, config.address) == ("b", 3, "ipc:///tmp/x")
    assert config.algorithm_parameters["gamma"] == 0.9
    assert config.algorithm_parameters["lam"] == 0.95


@pytest.mark.parametrize(
    ("keys", "observation_space", "action_space"),
    [
        ({"input_size": 8, "act_dim": 4}, BoxSpace((8,)), DiscreteSpace(4)),
        ({"algorithm_parameters": {"input_size": 8, "act_dim": 4}}, BoxSpace((8,)), DiscreteSpace(4)),
        ({"input_size": 8, "algorithm_parameters": {"input_size": 8}}, BoxSpace((8,)), None),
        ({"act_dim": 2, "act_limit": 2}, None, DiscreteSpace(2)),
        ({"act_dim": 2, "act_limit": 2, "continuous": True}, None, BoxSpace((2,), low=-2.0, high=2.0)),
        ({"algorithm_parameters": {"act_dim": 2, "act_limit": 2, "continuous": True}}, None, BoxSpace((2,), low=-2.0, high=2.0)),
        ({"action_space": {"type": "Discrete", "n": 3}, "act_dim": 3}, None, DiscreteSpace(3)),
        (
            {"observation_space": {"type": "Box", "shape": [2, 2], "dtype": "uint8"}, "input_size": 4},
            BoxSpace((2, 2), "|u1"),
            None,
        ),
    ],
)
def test_spaces(keys: dict[str, Any], observation_space: object, action_space: object) -> None:
    for config in (
        AgentConfig(client_id="x", **keys),
        AgentConfig.from_mapping({"client_id": "x", **keys}),
        ClientConfig(**keys),
    ):
        assert (config.observation_space, config.action_space) == (observation_space, action_space)
        assert not config.algorithm_parameters


def test_a_gymnasium_space_is_a_space() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    box = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    config = AgentConfig(client_id="x", observation_space=box, action_space=gymnasium.spaces.Discrete(3))
    assert (config.observation_space, config.action_space) == (BoxSpace((2,), low=-1.0, high=1.0), DiscreteSpace(3))


@pytest.mark.parametrize(
    ("written", "uri"),
    [
        ("10.0.0.1:5", "tcp://10.0.0.1:5"),
        ("tcp://host:50051", "tcp://host:50051"),
        ("[::1]:50051", "tcp://[::1]:50051"),
        ("ipc:///tmp/a b", "ipc:///tmp/a b"),
        ("inproc://lab", "inproc://lab"),
    ],
)
def test_addresses(written: str, uri: str) -> None:
    config = AgentConfig(client_id="x", train_server_address=written)
    assert (config.train_server_address, config.address) == (written, uri)
    assert LearnerConfig(bind=written, insecure=True).bind == uri


AGENT_ERRORS = [
    ({"send_frequncy": 1}, "send_frequncy", "no such key; did you mean 'send_frequency'?"),
    ({"zzz": 1}, "zzz", "no such key; if it is a parameter of the algorithm, put it under 'algorithm_parameters'"),
    ({"port": 50051}, "port", "did you mean 'train_server_address'?"),
    ({"steps_per_update": 512}, "steps_per_update", "put it under 'algorithm_parameters'"),
    ({"training": {"zzz": 1}}, "training.zzz", "the valid ones are batch_size, epochs"),
    ({"guard_rails": {}}, "guard_rails", "this version does not have this option yet"),
    ({"weights": {"wire_dtype": "fp16"}}, "weights.wire_dtype", "'fp32' or 'bf16' or 'grid'"),
    ({"weights": {"level": 2}}, "weights.level", "an integer from 0 to 1, or 'auto', or null"),
    ({"weights": {"dtype": "bf16"}}, "weights.dtype", "did you mean 'wire_dtype'?"),
    ({"weights": "bf16"}, "weights", "a mapping"),
    ({"inference": "far"}, "inference", "'local' or 'remote' or 'auto'"),
    ({"inference": "auto", "sidecar": True}, "inference", "a sidecar supports only inference: local"),
    ({"inference": "remote", "policy_cache": "x"}, "policy_cache", "has no policy to store"),
    ({"network_architecture": {"hidden_size": [1]}}, "network_architecture.hidden_size", "did you mean 'hidden_sizes'?"),
    ({"network_architecture": 3}, "network_architecture", "expected a mapping, not 3"),
    ({"communication": {"timeout": 0.1}, "timeout": 5}, "communication.timeout", "contradicts 'timeout': 5"),
    ({"training": {"epochs": 1}, "algorithm_parameters": {"epochs": 2}}, "training.epochs", "contradicts"),
    ({"timeout": 1, "connect_timeout_s": 2}, "connect_timeout_s", "contradicts 'timeout', which means the same: 1.0"),
    ({"timeout": "x"}, "timeout", "expected a number from 0 to 315360000, not 'x'"),
    ({"timeout": float("nan")}, "timeout", "expected a number from 0 to 315360000, not nan"),
    ({"send_frequency": True}, "send_frequency", "expected an integer from 1 to 8192, not True"),
    ({"send_frequency": 0}, "send_frequency", "expected an integer from 1 to 8192, not 0"),
    ({"send_frequency": 1.5}, "send_frequency", "expected an integer from 1 to 8192, not 1.5"),
    ({"send_frequency": "1"}, "send_frequency", "expected an integer from 1 to 8192, not '1'"),
    ({"rollout_length": 0}, "rollout_length", "expected an integer from 1 to 1048576, or null, not 0"),
    ({"explore": 1}, "explore", "expected true or false, not 1"),
    ({"overflow": "drop_old"}, "overflow", "'drop_oldest' or 'wait' (did you mean 'drop_oldest'?), not 'drop_old'"),
    ({"type": "on"}, "type", "expected 'onpolicy' or 'offpolicy'"),
    (
        {"client_id": ""},
        "client_id",
        "expected 1 to 200 printable characters without / \\ :, not starting or ending with a dot or space, not ''",
    ),
    ({"client_id": 3}, "client_id", "expected 1 to 200 printable characters"),
    ({"client_id": "a\nb"}, "client_id", "expected 1 to 200 printable characters"),
    ({"seed": -1}, "seed", "expected an integer from 0 to 9223372036854775807, or null"),
    ({"algorithm_parameters": None}, "algorithm_parameters", "expected a mapping, not None"),
    ({"server_address": "host"}, "server_address", "expected an address"),
    ({"server_address": "host:0"}, "server_address", "port from 1 to 65535"),
    ({"server_address": "::1:5"}, "server_address", "an IPv6 host in brackets"),
    ({"server_address": "udp://h:1"}, "server_address", "expected an address"),
    ({"observation_space": {"type": "Bx"}}, "observation_space", 'space needs a "type" that is one of Box, Discrete'),
    ({"action_space": {"type": "Dict", "spaces": {}}}, "action_space", "an empty Dict; expected at least one space"),
    ({"action_space": {"type": "Text", "max_length": 4}}, "action_space", "Text"),
    (
        {"observation_space": {"type": "Dict", "spaces": {"a": {"type": "Sequence", "space": {"type": "Discrete", "n": 2}}}}},
        "observation_space",
        "space['a'] is of type Sequence, which learner clients do not support: use Box, Discrete, MultiDiscrete",
    ),
    ({"observation_space": {"type": "MultiBinary", "n": 3}, "input_size": 3}, "input_size", "3 needs a Box or Discrete"),
    ({"observation_space": {"type": "Dict", "spaces": {}}}, "observation_space", "space is an empty Dict"),
    ({"input_size": 8.0}, "input_size", "expected an integer from 1 to 16777216"),
    ({"algorithm_parameters": {"act_dim": "4"}}, "algorithm_parameters.act_dim", "expected an integer from 1 to 16777216"),
    ({"act_dim": 4, "algorithm_parameters": {"act_dim": 3}}, "act_dim", "4 contradicts 'algorithm_parameters.act_dim': 3"),
    ({"act_dim": 4, "action_space": {"type": "Discrete", "n": 3}}, "act_dim", "4 contradicts 'action_space' of 3"),
    ({"continuous": True, "action_space": {"type": "Discrete", "n": 3}}, "continuous", "true contradicts 'action_space'"),
    ({"input_size": 3, "observation_space": {"type": "Box", "shape": [2]}}, "input_size", "3 contradicts"),
    ({"act_dim": 2, "continuous": True}, "act_limit", "act_limit is missing"),
    ({"continuous": True, "act_limit": 2.0}, "act_dim", "act_dim is missing: continuous: true needs act_dim and act_limit"),
]


CONFIGS: list[tuple[type[Any], dict[str, Any]]] = [
    (AgentConfig, {"client_id": "x"}),
    (ClientConfig, {}),
    (LearnerConfig, {}),
    (WeightsConfig, {}),
]


@pytest.mark.parametrize(("cls", "given"), CONFIGS)
def test_a_constructor_suggests_an_argument_for_each_misspelt_one(cls: type[Any], given: dict[str, Any]) -> None:
    for field in fields(cls):
        wrong = field.name[:-1] if len(field.name) > 4 else field.name + "s"
        with pytest.raises(
            ConfigError, match=rf"^{wrong}: {cls.__name__} has no such argument; did you mean '{field.name}'"
        ) as caught:
            cls(**given, **{wrong: 1})
        assert caught.value.key == wrong
        for other in field.metadata.get("names", ()):
            with pytest.raises(
                ConfigError, match=rf"^{other}: no such argument; did you mean '{field.name}'\? .* its name in files"
            ):
                cls(**given, **{other: 1})


@pytest.mark.parametrize(("cls", "given"), [(AgentConfig, {"client_id": "x"}), (ClientConfig, {}), (LearnerConfig, {})])
def test_a_file_suggests_a_key_for_each_misspelt_one(cls: type[Any], given: dict[str, Any]) -> None:
    for field in fields(cls):
        for name in (field.name, *field.metadata.get("names", ())):
            if name != "ignored":
                wrong = name[:-1] if len(name) > 4 else name + "s"
                with pytest.raises(ConfigError, match=rf"^{wrong}: no such key; did you mean '\w+'\?"):
                    cls.from_mapping({**given, wrong: 1})


def test_an_argument_that_is_missing_or_only_a_size() -> None:
    with pytest.raises(ConfigError, match="client_id is missing; give it as an argument"):
        AgentConfig()
    with pytest.raises(ConfigError, match=r"gamma: AgentConfig has no such argument; .* put it under 'algorithm_parameters'$"):
        AgentConfig(client_id="a", gamma=0.9)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="input_siz: AgentConfig has no such argument; did you mean 'input_size'"):
        AgentConfig(client_id="x", input_siz=3)  # type: ignore[call-arg]
    with pytest.raises(
        ConfigError, match="steps_per_updat: no such key; if it is a parameter of an algorithm, put it under 'algorithms'"
    ):
        LearnerConfig.from_mapping({"steps_per_updat": 512})


def test_the_constructor_checks_as_the_file_does() -> None:
    with pytest.raises(ConfigError, match=r"^swap: expected 'step' or 'episode', not 'never'"):
        AgentConfig(client_id="x", swap="never")
    with pytest.raises(ConfigError, match=r"^queue_items: "):
        replace(AgentConfig(client_id="x"), queue_items=0)


def test_an_access_list_of_a_relay_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"users_file: .* has no effect without keys"):
        RelayConfig(upstream="10.0.0.1:5", users_file=tmp_path / "users.toml")


@pytest.mark.parametrize("host", ["myhost", "10.0.0.5", "[fd00::5]", "plant.example.org"])
def test_the_host_in_published_addresses_is_kept(host: str) -> None:
    assert LearnerConfig(advertise=host).advertise == RelayConfig(upstream="10.0.0.1:5", advertise=host).advertise == host


@pytest.mark.parametrize(
    "host", ["myhost:50051", "tcp://myhost", "fd00::5", "my host", "[fd00", "[myhost]", "fd00::5]", "user@host", "a/b", "", 3]
)
def test_what_is_no_host_for_published_addresses_is_refused(host: Any) -> None:
    for make in (LearnerConfig.from_mapping, RelayConfig.from_mapping):
        with pytest.raises(ConfigError, match=r"^advertise: expected a host name or an IP address, without scheme and port"):
            make({"advertise": host, **({} if make == LearnerConfig.from_mapping else {"upstream": "10.0.0.1:5"})})


LEARNER_ERRORS = [
    ({"bnd": "x"}, "bnd", "did you mean 'bind'?"),
    ({"port": 50051}, "port", "did you mean 'bind'?"),
    ({"bind": "0.0.0.0:50051"}, "bind", "--insecure (insecure: true)"),
    ({"bind": "*:50051"}, "bind", "--insecure (insecure: true)"),
    ({"pub": "tcp://10.0.0.1:0"}, "pub", "--insecure (insecure: true)"),
    ({"bind": "nowhere"}, "bind", "expected an address"),
    ({"server": {"training_server": {"host": "0.0.0.0", "port": 1}}}, "bind", "--insecure (insecure: true)"),
    ({"server": {"training_server": {"hst": "x"}}}, "server.training_server.hst", "did you mean 'host'?"),
    ({"server": {"trainingserver": {}}}, "server.trainingserver", "did you mean 'training_server'?"),
    ({"journal": "disk"}, "journal", "expected 'memory' or 'sqlite', or null, not 'disk'"),
    ({"journal": "sqlite", "run_dir": None}, "journal", "needs a run directory"),
    ({"resume": "accept-loss", "journal": "memory"}, "resume", "set run_dir and journal: sqlite, or leave resume out"),
    ({"resume": "run/checkpoints/a/00000012", "run_dir": None}, "resume", "keeps its journal in memory"),
    ({"users_file": "users.toml"}, "users_file", "the access list users.toml has no effect without keys; give --keys DIR"),
    ({"on_lag": "keep"}, "on_lag", "expected 'drop' or 'correct'"),
    ({"lease_s": 0}, "lease_s", "expected a number above 0 and at most 315360000, not 0"),
    ({"run_dir": 3}, "run_dir", "expected a path, or null, not 3"),
    ({"clients": {"a": {"algoritm": "PPO"}}}, "clients.a.algoritm", "did you mean 'algorithm'?"),
    ({"clients": {"a": {"pacing_lag": -1}}}, "clients.a.pacing_lag", "expected an integer from 0 to 1024, or null, not -1"),
    ({"clients": {"a": 3}}, "clients.a", "expected a mapping, not 3"),
    ({"clients": {"a": {"act_dim": 0}}}, "clients.a.act_dim", "expected an integer from 1 to 16777216"),
    ({"algorithms": {"PPO": []}}, "algorithms.PPO", "expected a mapping"),
    ({"ignored": []}, "ignored", "not a key"),
    ({"resources": {"cpu": 1}}, "resources.cpu", "no such key; did you mean 'cpus'"),
    ({"resources": {"gpus": 1.5}}, "resources.gpus", "expected a fraction below 1 of one GPU, or a whole number of GPUs"),
    ({"resources": {"memory": 0}}, "resources.memory", "expected an integer from 1"),
    ({"resources": {"custom": {"edge": 0}}}, "resources.custom.edge", "expected a number above 0"),
    ({"resources": 3}, "resources", "expected a mapping"),
]


@pytest.mark.parametrize(
    ("cls", "keys", "key", "message"),
    [*((AgentConfig, *row) for row in AGENT_ERRORS), *((LearnerConfig, *row) for row in LEARNER_ERRORS)],
)
def test_each_mistake_in_a_file_is_one_line_with_its_key(cls: type[Any], keys: dict[str, Any], key: str, message: str) -> None:
    given = {"client_id": "x", **keys} if cls is AgentConfig else keys
    with pytest.raises(ConfigError) as caught:
        cls.from_mapping(given, source="conf.json")
    text = str(caught.value)
    assert (caught.value.key, caught.value.source) == (key, "conf.json")
    assert text.startswith(f"conf.json: {key}") and message in text
    assert "\n" not in text and text.count("conf.json") == 1


def test_rl4sys_global_file(write: Write) -> None:
    config = LearnerConfig.load(write(GLOBAL))
    assert config.bind == "tcp://localhost:5556"
    assert config.algorithms == {"PPO": {"clip_ratio": 0.1, "seed": 0}, "sb3:TRPO": {}, "DQN": {"q_lr": 0.0015}}
    assert config.default_algorithm == "PPO"
    ignored = (
        "ensemble_algorithms",
        "max_traj_length",
        "model_paths",
        "tensorboard",
        "server.trajectory_server",
        "algorithms.*.act_dim",
    )
    assert config.ignored == ignored
    assert LearnerConfig.load(write(GLOBAL), bind="inproc://lab").bind == "inproc://lab"


def test_a_client_inherits_the_learners_options() -> None:
    config = LearnerConfig.from_mapping(
        {
            "max_policy_lag": 4,
            "clients": {"a": {"algorithm": "dqn", "on_lag": "correct", "input_size": 3, "training": {"epochs": 2}}},
        }
    )
    entry = config.client("a")
    assert (entry.algorithm_name, entry.algorithm_parameters, entry.observation_space) == ("DQN", {"epochs": 2}, BoxSpace((3,)))
    assert (entry.max_policy_lag, entry.on_lag, entry.pacing_lag) == (4, "correct", None)
    assert config.client("unknown") == ClientConfig(
        max_policy_lag=4,
        on_lag="drop",
        max_magnitude=1e15,
        max_reward=1e12,
        engine="thread",
        device="cpu",
        learners=1,
    )


def test_resources_are_inherited_and_come_back_from_json() -> None:
    given = {"engine": "ray", "resources": {"cpus": 2, "gpus": 0.5, "custom": {"edge": 1}}, "clients": {"a": {"resources": {}}}}
    config = LearnerConfig.from_mapping(given)
    expected = ResourcesConfig(cpus=2, gpus=0.5, custom={"edge": 1.0})
    assert (config.client("b").resources, config.client("a").resources) == (expected, ResourcesConfig())
    assert LearnerConfig.from_mapping(config.to_json()) == config


@pytest.mark.parametrize("address", ["ray://h:1", "h", ":1", "h:0", "h:x", "http://h:1", 7])
def test_what_is_no_address_of_a_ray_cluster_is_refused(address: Any) -> None:
    with pytest.raises(ConfigError, match="ray_address: expected 'auto', 'local', or the HOST:PORT"):
        LearnerConfig(engine="ray", ray_address=address)


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "localhost:1", "[::1]:0", "ipc://*", "inproc://lab", "127.1.2.3:*"])
def test_what_stays_on_this_machine_needs_no_keys(bind: str) -> None:
    assert LearnerConfig(bind=bind).bind


def test_a_config_comes_back_from_its_json() -> None:
    agent = AgentConfig.from_mapping({**LUNA, "continuous": True})
    assert AgentConfig.from_mapping(json.loads(json.dumps(agent.to_json()))) == agent
    learner = LearnerConfig(run_dir=None, clients={"a": {"input_size": 3, "act_dim": 2}}, algorithms={"ppo": {"gamma": 0.9}})  # type: ignore[dict-item]
    assert LearnerConfig.from_mapping(json.loads(json.dumps(learner.to_json()))) == learner


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '{"client_id": "x",}', "not JSON: line 1, column 1"),
        ("a.json", '{\n"client_id": "x"\n"seed": 1}', "not JSON: line 3, column 1: "),
        ("a.json", '{"client_id": "x", "client_id": "y"}', "client_id: given twice"),
        ("a.json", '{"client_id": "x", "timeout": NaN}', "NaN is not a valid JSON number"),
        ("a.json", "[]", "expected a mapping at the top level, not list"),
        ("a.json", "", "not JSON: line 1"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", '{"a": ' * 100 + "1" + "}" * 100, "nested too deeply"),
        ("a.yaml", "[" * 100_000, "nested too deeply"),
        ("a.toml", "", "must end in .json, .yaml, .yml"),
        ("a.yaml", "client_id: x\nseed: [1", "not YAML: line 2"),
        ("a.yaml", "client_id: x\nclient_id: y", "client_id: given twice in one mapping (line 2)"),
        ("a.yaml", "client_id: x\n1: y", "1: a key must be text"),
        ("a.yaml", "client_id: !!python/object:os.system x", "not YAML: line 1"),
        ("a.yaml", "client_id: x\nseed: 2020-01-01", "seed: expected an integer"),
        ("a.yaml", "- 1", "expected a mapping at the top level, not list"),
    ],
)
def test_a_file_that_is_not_what_its_name_says(write: Write, name: str, content: str, message: str) -> None:
    if name.endswith("yaml"):
        pytest.importorskip("yaml")
    path = write(content, name)
    with pytest.raises(ConfigError) as caught:
        AgentConfig.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: no such file"):
        AgentConfig.load(tmp_path / "none.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.json: cannot be read: "):
        AgentConfig.load(tmp_path / "folder.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"bytes\.json: cannot be read: "):
        AgentConfig.load(tmp_path / "bytes.json")


def test_yaml_without_pyyaml_names_the_extra(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "yaml":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"a\.yaml: needs the yaml extra: pip install 'rl4sys-zmq\[yaml\]'"):
        AgentConfig.load(write("client_id: x", "a.yaml"))


def test_comments_are_left_out(write: Write) -> None:
    content = {"_comment": "hello", "client_id": "x", "algorithm_parameters": {"_comment1": "y", "gamma": 0.9}}
    assert AgentConfig.load(write(content)).algorithm_parameters == {"gamma": 0.9}


IMAGES = BoxSpace((64, 64, 3), "|u1", 0.0, 255.0)


@pytest.mark.parametrize("codec", ["png", "jpeg"])
def test_images_need_pillow(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    monkeypatch.setattr("rl4sys_zmq.config.agent.has_pillow", lambda: False)
    with raising(ConfigError, r"image_codec: images need Pillow: pip install 'rl4sys-zmq\[images\]'", key="image_codec"):
        AgentConfig(client_id="x", observation_space=IMAGES, image_codec=codec)
    assert AgentConfig(client_id="x", observation_space=IMAGES).images is None


@pytest.mark.parametrize(
    "space",
    [
        BoxSpace((64, 64, 3)),
        BoxSpace((64, 64, 4), "|u1", 0.0, 255.0),
        BoxSpace((4096,), "|u1", 0.0, 255.0),
        BoxSpace((64, 64, 3), "|i1", -1.0, 1.0),
        DiscreteSpace(3),
    ],
)
def test_images_must_be_some(monkeypatch: pytest.MonkeyPatch, space: BoxSpace | DiscreteSpace) -> None:
    monkeypatch.setattr("rl4sys_zmq.config.agent.has_pillow", lambda: True)
    config = AgentConfig(client_id="x", image_codec="jpeg", jpeg_quality=70)
    assert config.images == ImageFormat("jpeg", 70)
    config.check_images(IMAGES)
    for make in (lambda: config.check_images(space), lambda: replace(config, observation_space=space)):
        with raising(ConfigError, "image_codec: needs a uint8 box", key="image_codec"):
            make()
    for wrong in (0, 101, 1.5):
        with pytest.raises(ConfigError, match="jpeg_quality: expected an integer from 1 to 100"):
            AgentConfig(client_id="x", jpeg_quality=wrong)  # type: ignore[arg-type]
