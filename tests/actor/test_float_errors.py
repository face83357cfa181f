"""A host that makes NumPy raise on float errors, or makes exceptions of warnings, gets actions as any other host does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq import FrozenAgent
from rl4sys_zmq.policies import PolicyOrigin, StoredPolicy, build_policy
from rl4sys_zmq.policies.folder import encode_policy, write_policy
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, PolicySnapshot
from rl4sys_zmq.weights import digest

from .conftest import Bench

SCALES = (1.0, 1e-20, 1e-38, 1e-44, 1e-300, 1e30, 3e38)
HEADS = ("categorical", "q_values", "gaussian", "squashed_gaussian", "deterministic")
BOX = BoxSpace((2,), low=(-1.0, 1e-300), high=1.0)


@pytest.fixture(params=["raise", "warn"])
def errors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make NumPy raise on float errors, or warn, which pytest's configuration turns into exceptions."""
    with np.errstate(all=request.param):
        yield


def observations(dtype: str, count: int = 40) -> Iterator[Any]:
    rng = np.random.default_rng(1)
    for number in range(count):
        with np.errstate(all="ignore"):
            observation = (np.clip(rng.standard_normal(3), -1, 1) * SCALES[number % len(SCALES)]).astype(dtype)
        yield observation


@pytest.mark.usefixtures("errors")
@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2"])
@pytest.mark.parametrize("head", HEADS)
def test_a_policy_acts(tmp_path: Path, head: str, dtype: str) -> None:
    pytest.importorskip("safetensors")
    action_space = DiscreteSpace(3) if head in ("categorical", "q_values") else BOX
    spec = mlp_spec(BoxSpace((3,), dtype), action_space, head, (8,))
    flat = (0.3 * np.random.default_rng(0).standard_normal(spec.size)).astype(np.float32)
    for tensor in spec.views(flat).values():
        if tensor.ndim == 1:
            tensor[:] = 0.0  # a bias would hide that a product is too small
    origin = PolicyOrigin(client_id="lab", algorithm_name="PPO", updates=1, steps=1, saved_unix_s=1.0)
    write_policy(tmp_path / "policy", encode_policy(StoredPolicy(spec, PolicySnapshot(5, 9, digest(flat), flat), origin)))
    for explore in (False, True):
        with FrozenAgent(tmp_path / "policy", explore=explore) as agent:
            traj = None
            for observation in observations(dtype):
                if np.isfinite(observation).all():
                    traj, _ = agent.request_for_action(traj, observation)
                    agent.request_for_actions([None, None], np.stack([observation, observation]))


@pytest.mark.usefixtures("errors")
@pytest.mark.parametrize("weight", [1e-44, 1.0, 100.0, 3e38])
@pytest.mark.parametrize("head", HEADS)
def test_a_policy_with_any_finite_weights_is_built(head: str, weight: float) -> None:
    """The I/O thread builds it. There an exception would make the thread start again, and fetch the weights again."""
    spec = mlp_spec(BoxSpace((3,)), DiscreteSpace(3) if head in ("categorical", "q_values") else BOX, head, (8,))
    flat = np.full(spec.size, weight, np.float32)
    build_policy(spec, PolicySnapshot(5, 9, digest(flat), flat))


@pytest.mark.usefixtures("errors")
@pytest.mark.parametrize("overflow", ["drop_oldest", "wait"])
@pytest.mark.parametrize("tree", [False, True], ids=["array", "tree"])
@pytest.mark.parametrize("action_space", [DiscreteSpace(3), BOX], ids=["discrete", "box"])
def test_an_agent_acts_and_stores(bench: Bench, action_space: Any, tree: bool, overflow: str) -> None:
    """The observations go through the fast path, the full path, a batch, and the end of an episode."""
    one = BoxSpace((3,))
    space = DictSpace({"a": one, "b": one}) if tree else one
    agent = bench.agent(algorithm_name="KEEPER_OFF", overflow=overflow, observation_space=space, action_space=action_space)
    traj = None
    steps = 0
    for number, array in enumerate(observations("<f4"), 1):
        observation = {"a": array, "b": array.tolist()} if tree else array
        traj, action = agent.request_for_action(traj, observation)
        action.update_reward(1e-300 if number % 2 else np.float64(3e38))
        agent.add_to_trajectory(traj, action)
        steps += 1
        if number % 10 == 0:
            final = {"a": (array * 1).tolist(), "b": np.full(3, 1e-300)} if tree else np.full(3, 1e-300)
            agent.mark_end_of_trajectory(traj, truncated=True, final_obs=final)
    batch = np.stack(list(observations("<f4", 7)))
    trajs, actions = agent.request_for_actions(None, {"a": batch, "b": batch} if tree else batch)
    for traj, action in zip(trajs, actions, strict=True):
        action.update_reward(0.0)
        agent.mark_end_of_trajectory(traj, action)
    agent.flush(10.0)
    assert agent.stats()["steps"] == steps + len(trajs)


@pytest.mark.usefixtures("errors", "pure_form")
def test_the_replacement_of_an_unusable_action_is_computed_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path finds an action whose log-probability is not finite, and the policy before it raises."""
    agent = bench.agent()
    observation = np.zeros(4, np.float32)
    traj, action = agent.request_for_action(None, observation)
    agent.add_to_trajectory(traj, action)
    selector: Any = agent._open
    thread, replace = agent._parts.threads.state, selector._fallback.roll_back_and_act
    states = []

    def raising_once(*given: Any) -> Any:
        states.append(np.geterr()["under"])
        if len(states) == 1:
            raise FloatingPointError("underflow encountered in dot")
        return replace(*given)

    act = thread.act
    monkeypatch.setattr(selector._fallback, "roll_back_and_act", raising_once)
    monkeypatch.setattr(thread, "act", lambda *given: (*act(*given)[:2], float("nan")))
    _, action = agent.request_for_action(traj, observation)
    assert action.act in range(3) and len(states) == 2
