"""Ranges of numbers, owners of files, and one rule for loopback. An invalid value is refused by its name, or reported."""

import contextlib
import math
import os
import stat
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from harness.keys import KeyRing
from kit import play, until

from rl4sys_zmq import AgentConfig
from rl4sys_zmq.algorithms.offpolicy.dqn_parameters import DQNParameters
from rl4sys_zmq.algorithms.onpolicy.ppo_parameters import PPOParameters
from rl4sys_zmq.config import ClientConfig, LearnerConfig
from rl4sys_zmq.errors import ConfigError, HandshakeRefused
from rl4sys_zmq.learner import Learner
from rl4sys_zmq.learner.registry.algorithm_entry import read_parameters
from rl4sys_zmq.loopback import is_local
from rl4sys_zmq.rpc import Server
from rl4sys_zmq.transports import Address
from rl4sys_zmq.wire.messages import Refused

from .conftest import Report, Spawn, join
from .siege import Attacker, hello

SPACES: dict[str, Any] = {"observation_space": {"type": "Box", "shape": [4]}, "action_space": {"type": "Discrete", "n": 2}}


@pytest.mark.parametrize(
    ("algorithm", "key", "value", "said"),
    [
        ("PPO", "steps_per_epoch", 2**62, "an integer from 1 to 16777216, or null, not 4611686018427387904"),
        ("PPO", "minibatch_size", 2**62, "an integer from 1 to 16777216"),
        ("PPO", "hidden_sizes", [2**40], "a list of integers from 1 to 1048576"),
        ("DQN", "n_step", 2**40, "an integer from 1 to 1000"),
        ("DQN", "buffer_size", 2**62, "an integer from 1 to 1073741824"),
    ],
)
def test_a_number_out_of_range_is_refused_in_the_handshake(algorithm: str, key: str, value: Any, said: str) -> None:
    with Learner(LearnerConfig(bind="inproc://limits", run_dir=None)) as learner, pytest.raises(HandshakeRefused) as caught:
        join(learner.address, algorithm_name=algorithm, algorithm_parameters={key: value})
    assert f"algorithm_parameters.{key}: expected {said}" in str(caught.value)


def test_every_number_of_every_algorithm_has_a_range(report: Report) -> None:
    numbers = 0
    for cls in (PPOParameters, DQNParameters):
        for field in fields(cls):
            if not any(word in str(field.type) for word in ("int", "float")) or "check" not in field.metadata:
                continue
            numbers += 1
            for extreme in (2**62, -(2**62), 1e300, -1e300, math.nan, math.inf, -math.inf, 10**400):
                value = [extreme] if "tuple" in str(field.type) else extreme
                with pytest.raises(ConfigError, match=f"algorithm_parameters.{field.name}: expected .* from .* to "):
                    read_parameters(cls, {field.name: value}, algorithm="X")
    report(parameters=numbers)


def test_every_number_of_every_configuration_has_a_range(report: Report) -> None:
    numbers = 0
    classes: list[tuple[type[Any], dict[str, Any]]] = [(LearnerConfig, {}), (AgentConfig, {"client_id": "a"}), (ClientConfig, {})]
    for cls, given in classes:
        for field in fields(cls):
            if not any(word in str(field.type) for word in ("int", "float")) or "check" not in field.metadata:
                continue
            numbers += 1
            for extreme in (10**40, -1e300, 1e300, math.nan, math.inf):
                with pytest.raises(ConfigError) as caught:
                    cls(**given, **{field.name: extreme})
                assert caught.value.key == field.name and ("from" in str(caught.value) or "above" in str(caught.value))
    report(options=numbers)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [1.0, math.nan], {"inner": math.nan}])
def test_a_parameter_that_is_not_finite_is_refused_by_name_on_both_sides(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"algorithm_parameters\.gamma.* is not a finite number"):
        AgentConfig(client_id="luna", algorithm_parameters={"gamma": value})
    with pytest.raises(ConfigError, match=r"clients\.luna\.algorithm_parameters\.gamma.* is not a finite number"):
        LearnerConfig.from_mapping({"clients": {"luna": {"algorithm_parameters": {"gamma": value}}}})
    with Learner(LearnerConfig(bind="inproc://limits", run_dir=None)) as learner:
        for client in ("new", "known"):  # a client that does not exist yet, and one that does
            if client == "known":
                join(learner.address, client_id=client, algorithm_name="DQN").close()
            attacker = Attacker(learner.address, None)
            with contextlib.closing(attacker):
                attacker.say(hello(client_id=client, algorithm_name="DQN", algorithm_parameters={"gamma": value}, **SPACES))
                refused = attacker.hear(Refused)
            assert refused.code == "config" and "is not a finite number" in refused.reason
            assert refused.field.startswith("algorithm_parameters.gamma") and "the actor has" not in refused.reason


def modes(folder: Path) -> dict[str, int]:
    """Return everything below a folder that others may read, write or enter."""
    return {
        str(path.relative_to(folder)): mode
        for path in (folder, *folder.rglob("*"))
        if not stat.S_ISSOCK(path.stat().st_mode) and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077
    }


def test_what_a_learner_and_an_actor_write_is_theirs_alone_whatever_the_umask(
    spawn: Spawn, tmp_path: Path, report: Report
) -> None:
    run, spool = tmp_path / "deep" / "run", tmp_path / "spool"
    before = os.umask(0)
    try:
        child = spawn("learner", {"bind": f"ipc://{tmp_path}/l", "config": {"run_dir": str(run)}})
        address = child.hear()["address"]
        with join(address, spool=spool, policy_cache=tmp_path / "cache" / "policy") as agent:
            for _ in range(3):
                play(agent, 8)
            agent.flush(timeout_s=60.0)
            child.ask("save")
            assert modes(tmp_path / "deep") == {}  # including the -wal file beside the journal
            assert (run / "journal.db-wal").exists() and list(run.glob("tensorboard/*/events*"))
        assert modes(spool) == {} and modes(tmp_path / "cache") == {}
    finally:
        os.umask(before)
    report(files=sum(1 for path in run.rglob("*")), open_to_others=0)


def test_what_others_may_write_is_said_in_the_status_until_it_is_mended(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys")
    ring.allow("good")
    ring.write()
    ring.list_file.chmod(0o666)
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    run.chmod(0o777)
    with Learner(LearnerConfig(bind="inproc://limits", run_dir=run, keys=ring.folder)) as learner:

        def said() -> list[str]:
            return list(learner.status()["security"]["warnings"])

        assert said() == [f"others may change {ring.list_file} (mode 0666); chmod go-w {ring.list_file}"]
        assert learner.status()["warnings"] == [f"others may change {run} (mode 0777); chmod go-w {run}"]
        ring.list_file.chmod(0o600)
        until(lambda: not said(), "no warning any more")
        ring.folder.chmod(0o770)
        ring.list_file.chmod(0o640)
        until(lambda: said() == [f"others may change {ring.folder} (mode 0770); chmod go-w {ring.folder}"], "the next warning")
    assert "others_can_write" in (run / "log.jsonl").read_text()


@pytest.mark.parametrize(
    ("uri", "local"),
    [
        ("tcp://127.0.0.1:5555", True),
        ("tcp://127.8.9.1:5555", True),
        ("tcp://localhost:5555", True),
        ("tcp://[::1]:5555", True),
        ("tcp://[0:0:0:0:0:0:0:1]:5555", True),
        ("tcp://[::ffff:127.0.0.1]:5555", True),
        ("tcp://[::ffff:7f00:1]:5555", True),
        ("127.0.0.1:5555", True),
        ("localhost:5555", True),
        ("ipc:///tmp/a", True),
        ("inproc://a", True),
        ("tcp://[::ffff:10.0.0.1]:5555", False),
        ("tcp://[::]:5555", False),
        ("tcp://0.0.0.0:5555", False),
        ("tcp://*:5555", False),
        ("tcp://10.0.0.1:5555", False),
        ("10.0.0.1:5555", False),
        ("tcp://localhost.example:5555", False),
        ("tcp://127.0.0.1.example:5555", False),
        ("tcp://2130706433:5555", False),
    ],
)
def test_loopback_is_the_same_for_learners_and_servers(uri: str, local: bool) -> None:
    assert is_local(uri) is is_local(Address.parse(uri).uri) is local
    outcome = contextlib.nullcontext() if local else pytest.raises(ConfigError, match="keys")
    for option in ("bind", "pub", "inference"):
        with outcome:
            LearnerConfig.from_mapping({option: uri})
    for option in ("bind", "pub"):
        with outcome:
            addresses: dict[str, Any] = {"bind": "inproc://here", option: Address.parse(uri)}
            Server(**addresses, name="echo").stop()


@pytest.mark.parametrize("uri", ["udp://127.0.0.1:5555", "ftp://localhost", "", "tcp://"])
def test_an_address_that_is_not_understood_does_not_count_as_local(uri: str) -> None:
    assert not is_local(uri)
