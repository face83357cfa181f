"""The fast path of an ordinary step has the same results as the full path, for all inputs."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.actor.acting import ActionSelector
from rl4sys_zmq.actor.action import LARGEST, AgentIdentity, PolicyStamp, RL4SysAction, as_reward, new_action, new_actions
from rl4sys_zmq.actor.inputs import InputValidator
from rl4sys_zmq.actor.slots import ActionSlots
from rl4sys_zmq.actor.trajectory import TrajectoryManager
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import RewardError, RL4SysError
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.policies import RandomSource, bind, build_policy
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, PolicySpec

WIDTH = 4
SPACES = [DiscreteSpace(3), BoxSpace((2,), low=-1.0, high=1.0)]


def policy_of(spec: PolicySpec, scale: float = 0.3, seed: int = 0) -> Any:
    flat = np.random.default_rng(seed).normal(0, scale, spec.size).astype(np.float32)
    if spec.tensors[0].name == "obs_mean":
        spec.views(flat)["obs_scale"][:] = 1.0
    return build_policy(spec, PolicySnapshot(generation=1, version=0, flat=flat, digest=0))


@given(
    head=st.sampled_from(["categorical", "gaussian", "squashed_gaussian", "deterministic", "q_values"]),
    hidden=st.lists(st.integers(1, 20), max_size=3),
    activation=st.sampled_from(["tanh", "relu", "gelu"]),
    shape=st.sampled_from([(4,), (2, 3)]),
    dtype=st.sampled_from(["<f4", "<f8", "<i4"]),
    normalise=st.booleans(),
    explore=st.booleans(),
    masked=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_a_bound_policy_acts_as_the_policy(
    head: str,
    hidden: list[int],
    activation: str,
    shape: tuple[int, ...],
    dtype: str,
    normalise: bool,
    explore: bool,
    masked: bool,
    seed: int,
) -> None:
    discrete = head in ("categorical", "q_values")
    action_space = DiscreteSpace(3, start=5) if discrete else BoxSpace((2,), low=-1.0, high=1.0)
    spec = mlp_spec(
        BoxSpace(shape, dtype), action_space, head, tuple(hidden), activation=activation, normalise_observations=normalise
    )
    policy = policy_of(spec, seed=seed)
    quick = bind(policy, RandomSource(seed), explore)
    slow = RandomSource(seed)
    rng = np.random.default_rng(seed)
    kept = []
    for _ in range(5):
        observation = (3 * rng.normal(size=shape)).astype(dtype)
        mask = np.array([True, False, True]) if masked and discrete else None
        got, want = quick(observation, mask), policy.act(observation, mask, slow, explore)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
        kept.append((got, [np.array(part) for part in got]))
    for got, copies in kept:  # no returned array lies in a buffer that is written again
        for a, b in zip(got, copies, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("scale", [1e3, 1e30])
def test_a_bound_policy_takes_extreme_logits(scale: float) -> None:
    policy = policy_of(mlp_spec(BoxSpace((4,)), DiscreteSpace(3), "categorical", (8,)), scale)
    with np.errstate(all="ignore"):
        quick, slow = bind(policy, RandomSource(3), True), RandomSource(3)
        for value in (0.0, 1.0, -1.0, 1e30):
            observation = np.full(4, value, np.float32)
            got, want = quick(observation, None), policy.act(observation, None, slow, True)
            if scale < 1e6:  # above this, the overflows depend on the order of a sum
                assert np.isfinite(got[2]) and np.isfinite(want[2])
                assert got[0] == want[0]
                np.testing.assert_allclose(got[2], want[2], rtol=1e-3, atol=1e-3)
            assert all(0 <= action < 3 and (log_prob <= 0 or np.isnan(log_prob)) for _, action, log_prob in (got, want))


@pytest.fixture(scope="module")
def learner() -> Iterator[Learner]:
    register_algorithm("FAST", FakeAlgorithm.factory("offpolicy", steps_per_update=1 << 30, rollout_length=6))
    with Learner(LearnerConfig(bind="inproc://*", run_dir=None)) as learner:
        yield learner


def agent_of(learner: Learner, action_space: BoxSpace | DiscreteSpace) -> RL4SysAgent:
    return RL4SysAgent(
        config=AgentConfig(
            client_id=f"fast-{type(action_space).__name__}",
            algorithm_name="FAST",
            observation_space=BoxSpace((WIDTH,)),
            action_space=action_space,
            train_server_address=learner.address,
            max_traj_length=16,
            seed=3,
        )
    )


@pytest.fixture(scope="module", params=SPACES, ids=["discrete", "box"])
def agents(request: pytest.FixtureRequest, learner: Learner) -> Iterator[tuple[RL4SysAgent, RL4SysAgent]]:
    """Yield two agents that differ only in their names."""

    with agent_of(learner, request.param) as first, agent_of(learner, request.param) as second:
        yield first, second


def observation(kind: str, value: float) -> object:
    array = np.full(WIDTH, value, np.float32)
    array[0] = 0.5
    match kind:
        case "plain":
            return array
        case "leading":
            return array[None]
        case "list":
            return array.tolist()
        case "double":
            return array.astype(np.float64)
        case "strided":
            return np.repeat(array, 2)[::2]
        case "short":
            return array[:-1]
        case "text":
            return "text"
        case _:
            return array.astype(">f4")


OBSERVATIONS = st.tuples(
    st.sampled_from(["plain", "plain", "plain", "leading", "list", "double", "strided", "short", "text", "swapped"]),
    st.sampled_from([0.0, 1.0, -2.5, 3e38, np.nan, np.inf, -np.inf]),
)
REWARDS = st.sampled_from([1.0, -0.5, 2, True, np.float32(1.5), np.array([2.0]), None, np.nan, 1e39, "word"])
STEPS = st.lists(
    st.tuples(
        OBSERVATIONS,
        st.sampled_from([None, None, None, [1, 0, 1], [[0, 1, 1]], [0, 0, 0], [1]]),
        REWARDS,
        st.sampled_from(["add first", "reward first", "never", "twice", "done", "end", "cut"]),
    ),
    min_size=1,
    max_size=20,
)


def outcome(call: Any) -> Any:
    try:
        return call()
    except RL4SysError as exc:
        return type(exc), str(exc)


def live(agent: RL4SysAgent, steps: list[Any], seen: list[Any]) -> None:
    """Execute `steps`, and record all that a host can see."""
    traj: Any = None
    for (kind, value), mask, reward, manner in steps:
        answer = outcome(lambda: agent.request_for_action(traj, observation(kind, value), mask))  # noqa: B023
        if isinstance(answer[0], type):
            seen.append(answer)
            continue
        traj, action = answer
        seen.append((np.array(action.act), np.array(action.obs), action.log_prob, traj.steps, len(traj.closed.writers)))
        calls = [lambda: agent.add_to_trajectory(traj, action), lambda: action.update_reward(reward)]  # noqa: B023
        match manner:
            case "reward first":
                calls.reverse()
            case "never":
                calls = []
            case "twice":
                calls.insert(0, calls[0])
            case "done":
                calls.append(lambda: setattr(action, "done", True))  # noqa: B023
            case "end":
                calls.append(lambda: agent.mark_end_of_trajectory(traj, action))  # noqa: B023
            case "cut":
                calls.append(lambda: agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=[0.0] * WIDTH))  # noqa: B023
        seen.extend(outcome(call) for call in calls)
        writer = traj.writer
        rows = writer.steps
        seen.append((action.reward, action.stored, traj.completed, rows, writer.missing, writer.segment_index))
        columns = (writer.observations, writer.actions, writer.rewards, writer.log_probs, writer.versions)
        seen.extend(column[:rows].copy() for column in columns)


@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_the_ordinary_step_does_what_the_whole_story_does(agents: tuple[RL4SysAgent, RL4SysAgent], steps: list[Any]) -> None:
    quick, whole = agents
    for agent in agents:
        context, acting = agent._parts, agent._open
        assert acting is not None
        context.threads.__init__(5, itertools.count(), True, context.owner, context._sampler())  # type: ignore[misc]
        agent._open = ActionSelector(context, agent.spec, acting.episodes.rollout, None, acting)  # compiled, it knows the thread
        agent._steps = agent._open.steps
    seen: tuple[list[Any], list[Any]] = ([], [])
    live(quick, steps, seen[0])
    assert whole._open is not None
    with pytest.MonkeyPatch.context() as patch:
        selector: Any = whole._open
        patch.setattr(selector, "request", selector._request)  # now every step takes the full path
        patch.setattr(RL4SysAction, "update_reward", RL4SysAction._set_any_reward, raising=False)
        patch.setattr(RL4SysAgent, "add_to_trajectory", lambda agent, *step: agent._episodes.add(*step))
        live(whole, steps, seen[1])
    assert len(seen[0]) == len(seen[1])
    for a, b in zip(*seen, strict=True):
        np.testing.assert_equal(a, b)


@pytest.mark.parametrize("action_space", SPACES)
def test_most_steps_are_ordinary(learner: Learner, action_space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests above compare the full path with itself."""
    whole: list[str] = []

    def noted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            whole.append(name)
            return method(*arguments)

        return call

    for part, name in ((ActionSelector, "_request"), (TrajectoryManager, "add")):
        monkeypatch.setattr(part, name, noted(name, getattr(part, name)))
    with agent_of(learner, action_space) as agent:
        traj: Any = None
        for _ in range(6):  # one segment: only its first request and its first row take the full path
            traj, action = agent.request_for_action(traj, np.zeros(WIDTH, np.float32))
            agent.add_to_trajectory(traj, action)
            action.update_reward(1.0)
    assert whole == ["_request", "add"]


def test_a_batch_of_actions_is_as_many_single_ones() -> None:
    stamp = PolicyStamp(1, 2, AgentIdentity(Counters(), drops_bad_input=False))
    observations, raws = np.zeros((3, WIDTH), np.float32), np.arange(3)
    log_probs, masks = np.array([-1.0, -2.0, -3.0], np.float32), [None, np.array([True]), None]
    batch = new_actions(observations, raws, raws + 1, log_probs, stamp, masks)
    columns = zip(observations, raws, raws + 1, log_probs.tolist(), [stamp] * 3, masks, strict=True)
    single = [new_action(RL4SysAction, *row) for row in columns]
    slots = {*ActionSlots.__slots__} - {"row"}
    for ours, theirs in zip(batch, single, strict=True):
        for slot in slots:
            np.testing.assert_equal(getattr(ours, slot), getattr(theirs, slot))


def test_nothing_is_ordinary_once_an_agent_is_closed(learner: Learner) -> None:
    agent = agent_of(learner, DiscreteSpace(3))
    traj, _ = agent.request_for_action(None, np.zeros(WIDTH, np.float32))
    agent.close()
    with pytest.raises(RL4SysError, match="closed"):
        agent.request_for_action(traj, np.zeros(WIDTH, np.float32))


@given(st.lists(st.floats(width=32), min_size=WIDTH, max_size=WIDTH))
def test_a_number_that_is_not_finite_is_found(values: list[float]) -> None:
    inputs = InputValidator(BoxSpace((WIDTH,)), DiscreteSpace(2))
    given_array = np.array(values, np.float32)
    got = outcome(lambda: inputs.observation(given_array)[0])
    if np.isfinite(given_array).all():
        np.testing.assert_array_equal(got, given_array)
    else:
        assert "must be finite" in got[1]


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_finite_numbers_of_infinite_length_are_taken(dtype: str) -> None:
    inputs = InputValidator(BoxSpace((2,), dtype), DiscreteSpace(2))
    numbers = np.array([3.4e38, 3.4e38], dtype)
    np.testing.assert_array_equal(inputs.observation(numbers)[0], numbers)


@pytest.mark.parametrize("reward", [1e39, -1e39, 10**400, float("inf"), np.float64("nan")])
def test_a_reward_must_be_finite_in_float32(reward: Any) -> None:
    with pytest.raises(RewardError):
        as_reward(reward)
    assert as_reward(LARGEST) == LARGEST
