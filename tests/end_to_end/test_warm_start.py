"""A client without a checkpoint starts with the given weights. A client with a checkpoint does not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import open_agent, play

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.algorithms import make_algorithm
from rl4sys_zmq.config import ClientConfig, DemonstrationsConfig
from rl4sys_zmq.errors import ClientFailed, ConfigError, HandshakeRefused
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.learner.run.stored_policies import newest_policy
from rl4sys_zmq.policies import PolicyOrigin, StoredPolicy
from rl4sys_zmq.policies.folder import encode_policy, write_policy
from rl4sys_zmq.replay.demonstrations import Demonstration, write_demonstrations
from rl4sys_zmq.testing import FakeAlgorithm, fresh_address
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot
from rl4sys_zmq.weights import digest

pytest.importorskip("torch")

OBSERVED = BoxSpace((3,))
SMALL: dict[str, Any] = {"steps_per_update": 8, "hidden_sizes": [6], "normalise_observations": True}


def start(folder: Path, init: Path, **entry: Any) -> Learner:
    client = ClientConfig(algorithm_name="PPO", algorithm_parameters=SMALL, init=init, **entry)
    config = LearnerConfig(
        bind=fresh_address("inproc", folder), run_dir=folder / "run", clients={"lab": client}, checkpoint_every_s=1e6
    )
    return Learner(config).start()


def joined(learner: Learner, **options: Any) -> RL4SysAgent:
    return open_agent(learner, **{"observation_space": OBSERVED, "overflow": "wait", **options})


@pytest.fixture
def policy(tmp_path: Path) -> StoredPolicy:
    """Write a policy of the same algorithm to the folder ``policy``, and return it."""
    made = make_algorithm("PPO", OBSERVED, DiscreteSpace(2), SMALL, 5)
    flat, others = made.spec().flatten(made.snapshot())
    flat = flat + np.float32(0.125)
    origin = PolicyOrigin(client_id="teacher", algorithm_name="PPO", updates=3, steps=24, saved_unix_s=1.0)
    policy = StoredPolicy(made.spec(), PolicySnapshot(1, 3, digest(flat), flat, others), origin)
    write_policy(tmp_path / "policy", encode_policy(policy))
    return policy


def test_a_client_starts_with_given_weights_once(tmp_path: Path, policy: StoredPolicy) -> None:
    with start(tmp_path, tmp_path / "policy") as learner:
        with joined(learner) as agent:
            assert (agent.version, agent.digest) == (0, policy.snapshot.digest)
            play(agent, np.zeros((8, 3), np.float32))
            agent.flush(20.0)
            agent.wait_version(1, 20.0)
            trained = agent.digest
        assert trained != policy.snapshot.digest
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [e["init"] for e in events if e["event"] == "warm_started"] == [str(tmp_path / "policy")]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["clients"]["lab"]["init"] == str(tmp_path / "policy")
    with start(tmp_path, tmp_path / "policy") as learner, joined(learner) as agent:
        assert (agent.version, agent.digest) == (1, trained), "its checkpoint counts"
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert len([e for e in events if e["event"] == "warm_started"]) == 1


def demonstrations(path: Path) -> DemonstrationsConfig:
    """Write a file with one episode, in which action 1 follows a positive first observation."""
    observations = np.random.default_rng(0).normal(size=(201, 3)).astype(np.float32)
    actions = (observations[:-1, 0] > 0).astype(np.int64)
    episode = Demonstration([observations], actions, None, terminated=False)
    write_demonstrations(path, OBSERVED, DiscreteSpace(2), [episode])
    return DemonstrationsConfig(path=path, clone_steps=200, clone_batch_size=32, clone_learning_rate=1e-2)


def test_a_client_clones_demonstrations_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.learner.training.demonstrating.REPORT_S", 0.0)
    given = demonstrations(tmp_path / "d.npz")

    def learner() -> Learner:
        client = ClientConfig(algorithm_name="PPO", algorithm_parameters=SMALL, demonstrations=given)
        return Learner(LearnerConfig(bind="inproc://*", run_dir=tmp_path / "run", clients={"lab": client}, seed=1))

    with learner() as first, joined(first, explore=False, report_returns=False) as agent:
        cloned = agent.digest
        assert first.status()["clients"]["lab"]["scalars"]["clone/progress"] == 1.0
        wanted = [int(np.sign(x) > 0) for x in (-1.0, 1.0, -2.0, 2.0)]
        found = [int(agent.request_for_action(None, np.array([x, 0.0, 0.0], np.float32))[1].act) for x in (-1.0, 1.0, -2.0, 2.0)]
        assert found == wanted
    (tmp_path / "d.npz").write_bytes(b"")
    with learner() as again, pytest.raises(ClientFailed, match="not a file of demonstrations"):
        joined(again)
    (tmp_path / "d.npz").unlink()
    demonstrations(tmp_path / "d.npz")
    with learner() as again, joined(again) as agent:
        assert agent.digest == cloned, "its checkpoint counts"


def test_the_first_checkpoint_makes_the_file_dispensable(tmp_path: Path, policy: StoredPolicy) -> None:
    with start(tmp_path, tmp_path / "policy") as learner, joined(learner):
        pass
    _, stored = newest_policy(tmp_path / "run")
    assert stored.snapshot.digest == policy.snapshot.digest


def test_a_policy_that_does_not_fit_is_refused(tmp_path: Path, policy: StoredPolicy) -> None:
    refused = pytest.raises(HandshakeRefused, match=r"init: the policy in .* has the observation_space")
    with start(tmp_path, tmp_path / "policy") as learner, refused:
        joined(learner, observation_space=BoxSpace((4,)))


def test_an_algorithm_without_the_method_says_so(tmp_path: Path, policy: StoredPolicy) -> None:
    register_algorithm("NO_WARM_START", FakeAlgorithm.factory(steps_per_update=4))
    entry = ClientConfig(algorithm_name="NO_WARM_START", init=tmp_path / "policy")
    config = LearnerConfig(bind=fresh_address("inproc", tmp_path), run_dir=None, clients={"lab": entry})
    with Learner(config) as learner, pytest.raises(HandshakeRefused, match="no method load_policy"):
        joined(learner)


def test_serve_checks_the_source_before_it_starts(tmp_path: Path, policy: StoredPolicy) -> None:
    for module in ("tensorboard", "rich"):
        pytest.importorskip(module)
    from rl4sys_zmq.cli import serve

    plain = LearnerConfig(run_dir=None)
    assert serve._with_init(plain, tmp_path / "policy", None).clients["teacher"].init == tmp_path / "policy"
    merged = serve._with_init(replace(plain, clients={"lab": ClientConfig(algorithm_name="PPO")}), tmp_path / "policy", "lab")
    assert (merged.clients["lab"].algorithm_name, merged.clients["lab"].init) == ("PPO", tmp_path / "policy")
    with pytest.raises(ConfigError, match="could run code"):
        serve._with_init(plain, tmp_path / "weights.pt", "lab")
    (tmp_path / "w.safetensors").touch()
    with pytest.raises(ConfigError, match="--client ID"):
        serve._with_init(plain, tmp_path / "w.safetensors", None)
    with pytest.raises(ConfigError, match="neither the folder"):
        serve._with_init(replace(plain, clients={"lab": ClientConfig(init=tmp_path / "x")}), None, None)
