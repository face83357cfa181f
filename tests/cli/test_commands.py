"""Usage, configuration and exit codes, without processes."""

import importlib.util
import io
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import Result

from rl4sys_zmq import __version__
from rl4sys_zmq.algorithms import register_algorithm
from rl4sys_zmq.cli.act import agent_config
from rl4sys_zmq.cli.actor import main as actor
from rl4sys_zmq.cli.app import configure_logging, print_line
from rl4sys_zmq.cli.learner import main as learner
from rl4sys_zmq.cli.serve import fresh_run_dir
from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.errors import ConfigError, RunDirectoryError
from rl4sys_zmq.learner import Learner
from rl4sys_zmq.ops.playing import environment_spaces
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Space

from .conftest import RUN, invoke, output, refused

LUNA = {
    "client_id": "luna",
    "algorithm_name": "PPO",
    "algorithm_parameters": {"act_dim": 4, "input_size": 8, "traj_per_epoch": 10, "pi_lr": 3e-4, "seed": 0},
    "act_limit": 1.0,
    "max_traj_length": 1000,
    "type": "onpolicy",
    "train_server_address": "localhost:50051",
    "send_frequency": 10,
}
SECTIONS = {
    "algorithm": "DQN",
    "algorithm_parameters": {"gamma": 0.99},
    "network_architecture": {"hidden_sizes": [64, 64], "activation": "relu"},
    "training": {"batch_size": 64},
    "communication": {"server_address": "localhost:50051", "timeout": 5},
}
IMAGE = {"type": "Box", "shape": [96, 96, 3], "dtype": "uint8", "low": 0, "high": 255}
GLOBAL = {
    "default_algorithm": "PPO",
    "algorithms": {"PPO": {"gamma": 0.9}, "NAF": {"a": 1}},
    "server": {"training_server": {"prefix": "tcp://", "host": "localhost", "port": ":50051"}},
}


@pytest.fixture
def learners_extra() -> None:
    """Skip the test without the packages that `rl4sys-learner` needs."""
    for module in ("torch", "tensorboard", "rich", "matplotlib"):
        pytest.importorskip(module)


def client(**entry: Any) -> dict[str, Any]:
    """Return a learner's file with one client, c."""
    return {"clients": {"c": entry}}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[click.Group, tuple[str, ...]]]:
    yield group, path
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from ((group, (*path, *rest)) for _, rest in commands(command, (name,)))
        else:
            yield group, (*path, name)


def check(content: object) -> Result:
    """Write a file, and check it."""
    Path("file.json").write_text(json.dumps(content))
    return invoke(learner, "config", "check", "file.json")


@pytest.mark.parametrize(("group", "path"), [*commands(learner), *commands(actor)])
def test_every_command_has_help(group: click.Group, path: tuple[str, ...]) -> None:
    result = invoke(group, *path, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


@pytest.mark.parametrize("group", [learner, actor])
def test_version(group: click.Group) -> None:
    assert __version__ in invoke(group, "--version").stdout


def test_a_plot_without_a_name_replaces_no_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "run").mkdir()
    episode = {"t": 1.0, "event": "metrics", "client_id": "luna", "update": 1, "scalars": {}, "episodes": [[10, 5.0, 10]]}
    (tmp_path / "run" / "log.jsonl").write_text(json.dumps(episode) + "\n")
    (tmp_path / "curve.png").write_text("mine")
    for name in ("curve-2.png", "curve-3.png"):
        assert invoke(learner, "plot", "run").stdout.splitlines()[-1] == f"wrote {name}"
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "curve.png").read_text() == "mine"
    assert invoke(learner, "plot", "run", "-o", "curve.png").stdout.splitlines()[-1] == "wrote curve.png"
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("group", "arguments", "said"),
    [
        (learner, ["serve", "--prot", "1"], "'--port'"),
        (learner, ["serve", "--port", "70000"], "70000"),
        (learner, ["serve", "--port", "1", "--bind", "127.0.0.1:2"], "either --port or --bind"),
        (learner, ["serve", "--max-memory", "much"], "'much' is not a size such as 800MB or 8GiB"),
        (learner, ["serve", "--max-memory", "12"], "less than 1 MiB"),
        (learner, ["frobnicate"], "frobnicate"),
        (learner, ["demo", "--algorithm", "sarsa"], "sarsa"),
        (learner, ["demo", "--actors", "0"], "0"),
        (learner, ["status"], "ADDRESS"),
        (learner, ["status", "nonsense"], "nonsense"),
        (learner, ["status", ""], "expected an address"),
        (learner, ["status", "a:1", "--watch", "--check"], "either --watch or --check"),
        *(
            (learner, [command, "runs/plant"], "'runs/plant' is a folder; give the address from the first line of the learner's")
            for command in ("status", "doctor", "relay")
        ),
        (actor, ["run", "--env", "CartPole-v1", "--learner", "runs/plant"], "'runs/plant' is a folder; give the address"),
        (learner, ["client", "runs/other", "luna", "restart"], "expected an address"),
        (learner, ["doctor"], "ADDRESS"),
        (learner, ["doctor", "nonsense"], "address"),
        *((learner, [name, "a:1", "--keys", "none.keys"], "none.keys: no such file") for name in ("doctor", "status")),
        (learner, ["doctor", "a:1", "--config", "none.json"], "none.json: no such file"),
        (learner, ["doctor", "a:1", "--config", "nameless.json"], "client_id is missing"),
        (learner, ["doctor", "a:1", "--config", "slash.json"], "client_id: expected 1 to 200 printable characters"),
        (learner, ["plot", "nowhere"], "nowhere"),
        (actor, ["run"], "--env"),
        (actor, ["run", "--env", "CartPole-v1", "--num-envs", "0", "--client-id", "a"], "0"),
    ],
)
def test_wrong_usage_is_one_line_and_2(group: click.Group, arguments: list[str], said: str) -> None:
    Path("runs/plant").mkdir(parents=True)
    Path("nameless.json").write_text('{"algorithm_name": "PPO"}')
    Path("slash.json").write_text('{"client_id": "a/b"}')
    assert said in refused(invoke(group, *arguments))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_ends_between_words_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal())
    words = [f"word-{number:010}" for number in range(40)]
    document = json.dumps({"words": words})
    print_line("  " + " ".join(words))
    print_line(document)
    with pytest.raises(SystemExit, match="1"):
        learner.main(["status", "127.0.0.1:1", "--timeout", "0.05"])
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    configure_logging(False)
    logging.getLogger("test").warning("%s", " ".join(words))
    *lines, last = cast(Terminal, sys.stdout).getvalue().splitlines()
    assert last == document
    assert " ".join(lines).split() == words
    assert all(line.startswith("      word") for line in lines[1:])
    errors = cast(Terminal, sys.stderr).getvalue().splitlines()
    assert " ".join(errors).split()[-40:] == words
    assert max(map(len, (*lines, *errors))) <= 80


@pytest.mark.parametrize("value", ["nan", "inf", "1e12", "-1", "0"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "127.0.0.1:9", "--timeout"],
        ["doctor", "127.0.0.1:9", "--timeout"],
        ["client", "127.0.0.1:9", "luna", "restart", "--timeout"],
        ["demo", "--max-seconds"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_time_is_finite_and_not_too_long(arguments: list[str], value: str) -> None:
    assert f"Invalid value for '{arguments[-1]}'" in refused(invoke(learner, *arguments, value))


@pytest.mark.usefixtures("learners_extra")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "missing.json"], "missing.json: no such file"),
        (["--bind", "0.0.0.0:0"], "--insecure"),
        (["--bind", "nonsense"], "nonsense"),
        (["--port", "0", "--run-dir", "file"], "is a file"),
        (["--port", "0", "--run-dir", "file/run"], "cannot be written"),
    ],
)
def test_a_learner_that_cannot_start_as_asked_says_so(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "file").touch()
    assert said in refused(invoke(learner, "serve", *arguments))


@pytest.mark.usefixtures("learners_extra")
def test_a_taken_port_is_named_and_leaves_no_run_behind(tmp_path: Path, taken_port: int) -> None:
    assert f"127.0.0.1:{taken_port} is already in use" in refused(invoke(learner, "serve", "--port", str(taken_port)))
    assert not (tmp_path / "runs" / "learner").exists()


@pytest.mark.usefixtures("learners_extra")
def test_options_come_from_the_environment_too(taken_port: int) -> None:
    said = refused(invoke(learner, "serve", RL4SYS_LEARNER_SERVE_PORT=str(taken_port), RL4SYS_LEARNER_SERVE_RUN_DIR="r"))
    assert str(taken_port) in said


@pytest.mark.parametrize(
    ("group", "arguments", "missing", "extra"),
    [
        (learner, ["serve"], "torch", "learner"),
        (learner, ["demo"], "rich", "learner"),
        (learner, ["demo"], "gymnasium", "gym"),
        (learner, ["plot", "r"], "matplotlib", "learner"),
        (actor, ["run", "--env", "CartPole-v1", "--client-id", "a"], "gymnasium", "gym"),
    ],
)
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, group: click.Group, arguments: list[str], missing: str, extra: str
) -> None:
    real = find_spec
    present = object()

    def find(name: str, *rest: Any) -> object:
        return None if name == missing else real(name, *rest) or present

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setitem(sys.modules, missing, None)
    assert f"pip install 'rl4sys-zmq[{extra}]'" in refused(invoke(group, *arguments))


def test_an_absent_learner_is_a_failure_not_a_usage_error(taken_port: int) -> None:
    said = refused(invoke(learner, "status", f"127.0.0.1:{taken_port}", "--timeout", "0.05"), code=1)
    assert f"127.0.0.1:{taken_port}" in said


def test_an_unknown_environment_is_named() -> None:
    pytest.importorskip("gymnasium")
    assert "Nope" in refused(invoke(actor, "run", "--env", "Nope-v1", "--client-id", "a"))
    assert "client_id is missing" in refused(invoke(actor, "run", "--env", "CartPole-v1"))


@pytest.mark.usefixtures("learners_extra")
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (LUNA, ["an actor's configuration", "learning_rate: 0.0003", "PPO (onpolicy) can be built"]),
        (SECTIONS, ["an actor's configuration", 'client_id: "file"', "hidden_sizes: [64, 64]", "DQN (offpolicy)"]),
        (GLOBAL, ["a learner's configuration", "algorithms.PPO", "NAF: this learner does not have this algorithm"]),
        (client(algorithm_name="PPO"), ["a learner's configuration", "clients.c: PPO"]),
        (client(algorithm_name="PPO", algorithm_parameters={"network": {"kind": "cnn"}}), ["clients.c: PPO"]),
        ({"client_id": "luna"}, ["from the learner's configuration"]),
    ],
)
def test_a_good_file_is_ok_and_says_what_will_be_used(tmp_path: Path, content: dict[str, Any], says: list[str]) -> None:
    said = output(check(content))
    assert said.splitlines()[-1] == "ok"
    for text in says:
        assert text in said


@pytest.mark.usefixtures("learners_extra")
def test_an_algorithm_for_boxes_alone_is_planned_with_one(tmp_path: Path) -> None:
    def factory(observation_space: Any, action_space: Space, parameters: Any, seed: int) -> Any:
        if not isinstance(action_space, BoxSpace):
            raise ConfigError("needs a Box")
        return FakeAlgorithm.factory()(observation_space, action_space, parameters, seed)

    register_algorithm("BOXES", factory)
    said = output(check({"algorithms": {"BOXES": {}}}))
    assert "algorithms.BOXES: BOXES" in said
    assert "needs a Box" in refused(check({"client_id": "a", "algorithm_name": "BOXES", "input_size": 2, "act_dim": 3}))


@pytest.mark.usefixtures("learners_extra")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({**LUNA, "send_frequenzy": 1}, "'send_frequency'"),
        ({**LUNA, "algorithm_parameters": {"gama": 1.0}}, "'gamma'"),
        ({**LUNA, "algorithm_name": "PPQ"}, "'PPO'"),
        ({**GLOBAL, "algorithms": {"PPO": {"steps_per_updat": 3}}}, "did you mean 'steps_per_update'?"),
        ({**GLOBAL, "algorithms": {"PPO": {"zzzz": 3}}}, "`rl4sys-learner algorithms` lists them"),
        ({**LUNA, "algorithm_parameters": {"network": "lstm"}}, "parameters.network: unknown network kind 'lstm'"),
        ({**LUNA, "steps_per_update": 3}, "put it under 'algorithm_parameters'"),
        ({"algorithm_parameters": {"gamma": 1}, "bind": "x"}, "algorithm_parameters: no such key; did you mean 'algorithms'"),
        (
            {"client_id": "c", "algorithm": "PPO", "act_dim": 4, "observation_space": IMAGE},
            "observation_space: PPO has no convolutions; it would flatten the image of shape (96, 96, 3) to 27,648 inputs, with "
            "1,769,472 weights",
        ),
        (
            {"client_id": "c", "algorithm": "PPO", "action_space": {"type": "Tuple", "spaces": []}},
            "action_space: space is an empty Tuple; expected at least one space in it",
        ),
    ],
)
def test_a_bad_file_is_one_line_with_the_key_and_the_file(tmp_path: Path, content: dict[str, Any], said: str) -> None:
    line = refused(check(content))
    assert said in line
    assert "file.json" in line


@pytest.mark.usefixtures("learners_extra")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (client(algorithm_name="PPQ"), "clients.c: unknown algorithm 'PPQ'"),
        (client(algorithm_name="PPO", algorithm_parameters={"gama": 1.0}), "c.algorithm_parameters.gama"),
        ({"algorithms": {"PPO": {"gamma": "high"}}}, "algorithms.PPO.gamma: expected a number"),
        (
            client(algorithm_name="DQN", input_size=3, act_dim=2, continuous=True, act_limit=1),
            "clients.c: DQN needs a Discrete action space",
        ),
        (
            client(algorithm_name="PPO", demonstrations={"path": "no.npz", "clone_steps": 1}),
            "clients.c.demonstrations: no.npz cannot be read",
        ),
        (
            client(algorithm_name="PPO", demonstrations={"path": "no.npz", "fraction": 0.5}),
            "clients.c.demonstrations.fraction: PPO has no replay",
        ),
    ],
)
def test_a_learner_does_not_start_with_a_client_that_can_never_be_built(
    tmp_path: Path, taken_port: int, content: dict[str, Any], said: str
) -> None:
    (tmp_path / "file.json").write_text(json.dumps(content))
    serve = invoke(learner, "serve", "--config", "file.json", "--bind", f"tcp://127.0.0.1:{taken_port}")
    for result in (serve, invoke(learner, "config", "check", "file.json")):
        line = refused(result)
        assert said in line and "file.json" in line


@pytest.mark.usefixtures("learners_extra")
@pytest.mark.parametrize(
    ("env", "entry", "said"),
    [
        ("CartPole-v9", {}, "clients.c.evaluation.env: environment 'CartPole-v9': "),
        ({"id": "CartPole-v1", "gravity": 1}, {}, "clients.c.evaluation.env: environment 'CartPole-v1': "),
        ("CartPole-v1", {"act_dim": 3}, "clients.c.action_space: Discrete(3), but CartPole-v1 of "),
        (
            {"id": "FrozenLake-v1", "map_name": "none"},
            {"algorithm_name": "PPO"},
            "clients.c.evaluation.env: environment 'FrozenLake-v1': KeyError: 'none'",
        ),
        ("CartPole-v1", {"algorithm_name": "SAC", "input_size": 2}, "clients.c.observation_space: Box"),
        ("Pendulum-v1", {"algorithm_name": "DQN"}, "clients.c: DQN needs a Discrete action space"),
    ],
)
def test_the_environment_of_an_evaluation_is_created(env: Any, entry: dict[str, Any], said: str) -> None:
    pytest.importorskip("gymnasium")
    assert said in refused(check(client(evaluation={"env": env}, **entry)))


@pytest.mark.usefixtures("learners_extra")
def test_the_spaces_of_an_evaluation_are_those_of_the_client(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    for entry in ({"algorithm_name": "PPO"}, {}):
        said = output(check(client(evaluation={"env": "CartPole-v1"}, **entry)))
        assert "clients.c.evaluation: CartPole-v1 can be created" in said and "example spaces" not in said


@pytest.mark.usefixtures("learners_extra")
def test_ignored_keys_are_printed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    said = output(check({**GLOBAL, "model_paths": {}, "tensorboard": {}}))
    assert (said + caplog.text).count("model_paths") == 1
    config = replace(LearnerConfig.load(tmp_path / "file.json"), bind="inproc://*", run_dir=None)
    with Learner(config):
        assert caplog.text.count("are ignored: model_paths, tensorboard") == 1


def test_spaces_that_do_not_fit_are_named() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    spaces = gymnasium.spaces
    env = SimpleNamespace(observation_space=spaces.Discrete(2), action_space=spaces.Sequence(spaces.Discrete(2)))
    words = SimpleNamespace(observation_space=spaces.Text(4), action_space=spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"^Words-v0: observation_space: space is of type Text, which learner clients do not"):
        environment_spaces(words, "Words-v0")
    with pytest.raises(ConfigError, match=r"^Keys-v0: action_space: space is of type Sequence, which"):
        environment_spaces(env, "Keys-v0")


def test_the_size_of_a_discrete_observation_fits_a_file_of_rl4sys(tmp_path: Path) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    spaces = gymnasium.spaces
    env = SimpleNamespace(observation_space=spaces.Discrete(16), action_space=spaces.Discrete(4))
    path = tmp_path / "file.json"
    run = replace(RUN, env_id="Lake", learner=None, client_id="a", config_path=path, num_envs=1, seed=None)
    path.write_text(json.dumps({"algorithm_parameters": {"input_size": 16, "act_dim": 4}}))
    assert agent_config(run, env, 0).observation_space == DiscreteSpace(16)
    path.write_text(json.dumps({"algorithm_parameters": {"input_size": 8, "act_dim": 4}}))
    with pytest.raises(ConfigError, match="input_size: 8 contradicts 'observation_space' of 16 elements"):
        agent_config(run, env, 0)


@pytest.mark.usefixtures("learners_extra")
def test_the_tables_of_other_libraries_are_listed_and_an_ambiguous_name_is_a_warning(tmp_path: Path) -> None:
    listed = invoke(learner, "algorithms").stdout
    assert "  like: sb3 (Stable-Baselines3, PPO)" in listed and "      n_epochs = 10 -> update_epochs\n" in listed
    assert "      vf_coef = 0.5 -> vf_coef: weight of the whole squared error" in listed
    for given, warns in (({}, True), ({"like": "sb3"}, False), ({"like": "cleanrl"}, False)):
        content = client(algorithm_name="PPO", algorithm_parameters={"vf_coef": 0.5, **given})
        assert ("warning: vf_coef: " in output(check(content))) is warns


@pytest.mark.usefixtures("learners_extra")
def test_algorithms_are_listed_with_synonyms() -> None:
    listed = invoke(learner, "algorithms").stdout
    assert "\n  networks: cnn, gru, " in listed and "network {kind: mlp}\n" in listed
    assert {"PPO", "DQN", "A2C", "A3C", "IMPALA", "REINFORCE", "RPO"} <= set(listed.splitlines())
    assert "  staleness: data up to 4 versions old, older data are dropped; probability ratios, which are clipped" in listed
    assert "  staleness: data of any age; V-trace with truncated importance weights" in listed
    assert "  spaces: any observations; actions with a Box" in listed
    assert listed.count("  reference: ") >= 7
    assert "  networks: cnn, gru, " in listed.split("\nDQN\n")[1].split("\n\n")[0]
    assert "recurrent network: steps of a sequence that are trained on" in listed
    assert "pi_lr" in listed
    assert "clip_coef = 0.2" in listed


def test_runs_are_never_mixed(tmp_path: Path) -> None:
    for expected in ("run", "run-2", "run-3"):
        with fresh_run_dir(tmp_path / "run") as run_dir:
            assert run_dir == tmp_path / expected


def test_a_run_that_did_not_start_gives_its_directory_back(tmp_path: Path) -> None:
    with pytest.raises(KeyError), fresh_run_dir(tmp_path / "run"):
        raise KeyError
    assert not (tmp_path / "run").exists()


def test_a_directory_with_other_files_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").touch()
    with pytest.raises(KeyError), fresh_run_dir(tmp_path / "run"):
        raise KeyError
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["notes"]


def test_a_run_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(RunDirectoryError, match="is a file"), fresh_run_dir(tmp_path / "run"):
        pass
