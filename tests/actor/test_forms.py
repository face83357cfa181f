"""The compiled form of an actor and the pure one: which is chosen, and that both act alike."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq import AgentConfig, RL4SysAgent, native
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.policies import RandomSource
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, MultiDiscreteSpace

from .conftest import Bench, Keeper

pytestmark = pytest.mark.skipif(native.load() is None, reason="the extension is not here")
ARM = BoxSpace((2,), low=-1.0, high=1.0)
LACKING = MultiDiscreteSpace((2, 3))


def episode(agent: RL4SysAgent, steps: int = 8) -> list[tuple[Any, float]]:
    rng, taken = np.random.default_rng(3), list[tuple[Any, float]]()
    traj: Any = None
    for _ in range(steps):
        traj, action = agent.request_for_action(traj, rng.normal(size=4).astype(np.float32))
        agent.add_to_trajectory(traj, action)
        action.update_reward(1.0)
        taken.append((action.act, action.log_prob))
    assert traj is not None
    agent.mark_end_of_trajectory(traj)
    return taken


def test_the_form_is_named(bench: Bench, tmp_path: Path) -> None:
    assert bench.agent(native="always").stats()["form"] == "compiled"
    assert bench.agent(native="never").stats()["form"] == "pure: native: never"
    assert "a spool" in bench.agent(native="auto", spool=tmp_path / "spool").stats()["form"]


def test_the_environment_is_the_default(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RL4SYS_NATIVE", "never")
    assert bench.agent().stats()["form"] == "pure: RL4SYS_NATIVE=never"
    monkeypatch.setenv("RL4SYS_NATIVE", "always")
    assert bench.agent().stats()["form"] == "compiled"
    assert bench.agent(spool=tmp_path / "spool").stats()["form"].startswith("pure: ")


@pytest.mark.parametrize(
    "option", [{"spool": "spool"}, {"inference": "auto"}, {"sidecar": True, "train_server_address": "ipc:///x"}]
)
def test_always_refuses_what_the_compiled_form_lacks(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^native: .*{next(iter(option))}"):
        RL4SysAgent(config=AgentConfig(client_id="lab", native="always", **option))


def test_a_policy_that_only_the_pure_form_has_changes_the_form(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rl4sys_zmq"):
        agent = bench.agent(native="auto", action_space=LACKING, client_id="many")
    assert "MultiDiscrete" in agent.stats()["form"] and agent.stats()["form"].startswith("pure: ")
    assert [record for record in caplog.records if "uses the pure form" in record.message]
    episode(agent)
    agent.flush(20.0)
    assert agent.stats()["accepted"] == 1
    with pytest.raises(ConfigError, match=r"native: .*MultiDiscrete"):
        bench.agent(native="always", action_space=LACKING, client_id="many")


def test_an_actor_that_began_without_its_learner_can_change_the_form(bench: Bench) -> None:
    options = {"connect_timeout_s": 0.0, "fallback": "random", "action_space": LACKING, "client_id": "later"}
    agent = bench.agent(native="auto", **options)
    traj = None
    while agent.version < 0:
        traj, _ = agent.request_for_action(traj, np.zeros(4, np.float32))
    assert agent.stats()["form"].startswith("pure: ")
    episode(agent)
    agent.flush(20.0)


@pytest.mark.parametrize("space", [DiscreteSpace(3), ARM], ids=["discrete", "box"])
@pytest.mark.parametrize("explore", [True, False])
def test_both_forms_act_alike(bench: Bench, space: Any, explore: bool) -> None:
    taken = [
        episode(bench.agent(native=form, seed=5, actor_id=f"{form}-actor", action_space=space, explore=explore), 100)
        for form in ("always", "never")
    ]
    for (ours, our_log_prob), (theirs, their_log_prob) in zip(*taken, strict=True):
        assert type(ours) is type(theirs) and ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
        assert our_log_prob == pytest.approx(their_log_prob, abs=1e-5)


class Linear(Keeper):
    """A keeper whose first layer has large weights: the outputs for a large observation are not finite."""

    def snapshot(self) -> dict[str, Any]:
        tensors = super().snapshot()
        return {name: tensor * np.float32(20.0 if 4 in tensor.shape else 1.0) for name, tensor in tensors.items()}


@pytest.mark.parametrize("space", [DiscreteSpace(3), ARM], ids=["discrete", "box"])
@pytest.mark.parametrize("explore", [True, False])
def test_an_action_that_is_not_finite_costs_one_draw(bench: Bench, space: Any, explore: bool) -> None:
    def make(observations: Any, actions: Any, parameters: Any, seed: int) -> Keeper:
        head = "categorical" if isinstance(actions, DiscreteSpace) else "gaussian"
        return Linear(mlp_spec(observations, actions, head, (8,), activation="identity"), 64, bench.kept)

    register_algorithm("LINEAR", make)
    options = {"algorithm_name": "LINEAR", "client_id": "linear", "action_space": space, "explore": explore}
    taken: dict[str, list[Any]] = {}
    for form in ("always", "never"):
        agent, traj = bench.agent(native=form, actor_id=f"{form}-actor", **options), None
        for size in (0.01, 0.01, 3e38, 0.01, 0.01, 3e38, *[0.01] * 20):
            traj, action = agent.request_for_action(traj, np.array([size, 0.0, 0.0, 0.0], np.float32))
            agent.add_to_trajectory(traj, action)
            action.update_reward(1.0)
            taken.setdefault(form, []).append((*np.ravel(action.act), action.log_prob, action.raw is None))
        assert agent.stats()["counters"]["policies_not_finite"] == 2
    np.testing.assert_allclose(taken["always"], taken["never"], atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**128 + 17])
def test_the_random_numbers_are_the_same(seed: int) -> None:
    from rl4sys_zmq.policies.compiled import CompiledRandomSource

    sources = RandomSource(seed), CompiledRandomSource(native.require(), seed)
    for _ in range(3):
        ours, theirs = ([s.uniform(), *s.uniforms((2, 3)).flat, *s.normals(700)] for s in sources)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
