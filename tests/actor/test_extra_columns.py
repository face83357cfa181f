"""Policies with extra columns in an actor: trajectories carry the state, and a segment begins where the state breaks off."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.actor.extra_columns import ExtraColumnAction, ExtraColumnSegmentWriter
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.policies import ExtraColumnPolicy, register_policy
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters
from rl4sys_zmq.values import BoxSpace, ColumnSpec, DiscreteSpace, PolicySpec, TensorSpec

COLUMNS = (ColumnSpec("before", per="segment", dtype="<i8"), ColumnSpec("count", dtype="<i4"), ColumnSpec("pair", (2,)))
OBSERVATION = np.ones(2, np.float32)


class Counter(ExtraColumnPolicy):
    """A policy whose state is the number of its steps. Its class attributes inject faults."""

    columns: dict[str, Any] = {}
    bad_versions: set[int] = set()

    def step(self, observation: Any, mask: Any, rng: Any, explore: bool, state: Any) -> Any:
        count = 0 if state is None else state[0]
        log_prob = float("nan") if self.version in self.bad_versions else 0.0
        columns = {"before": np.int64(count), "count": np.int32(count + 1), "pair": observation * count, **self.columns}
        return np.int64(0), np.int64(0), log_prob, columns, [count + 1]


def counter(spec: PolicySpec, snapshot: Any) -> Counter:
    spec.views(snapshot.flat)
    return Counter(snapshot)


def factory(observation_space: Any, action_space: Any, parameters: Any, seed: int) -> FakeAlgorithm:
    spec = PolicySpec(observation_space, action_space, "counter", tensors=(TensorSpec("w", (1,)),), columns=COLUMNS)
    return FakeAlgorithm(spec, FakeParameters(steps_per_update=10**9, rollout_length=4), seed)


register_policy("counter", counter)
register_algorithm("COUNTER", factory)


@pytest.fixture
def learner() -> Iterator[Learner]:
    with Learner(LearnerConfig(bind="inproc://*", run_dir=None)) as learner:
        yield learner


def agent_of(learner: Learner, **options: Any) -> RL4SysAgent:
    config = AgentConfig(
        client_id="recorded",
        algorithm_name="COUNTER",
        observation_space=BoxSpace((2,)),
        action_space=DiscreteSpace(2),
        train_server_address=learner.address,
        **options,
    )
    return RL4SysAgent(config=config)


@pytest.fixture
def agent(learner: Learner) -> Iterator[RL4SysAgent]:
    with agent_of(learner, on_bad_input="drop") as agent:
        yield agent


class Kept:
    """The segments that an agent puts into its outbox."""

    def __init__(self, agent: RL4SysAgent, monkeypatch: pytest.MonkeyPatch) -> None:
        self.segments: list[Any] = []
        outbox = agent._parts.outbox
        put = outbox.put

        def keep(segment: Any) -> None:
            self.segments.append(segment)
            put(segment)

        monkeypatch.setattr(outbox, "put", keep)

    def counts(self) -> list[tuple[int, int, list[int]]]:
        """Return the index, the initial value and the counts of each segment."""
        return [(s.segment_index, int(s.initial["before"]), s.extras["count"].tolist()) for s in self.segments]


@pytest.fixture
def kept(agent: RL4SysAgent, monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(agent, monkeypatch)


def act(agent: RL4SysAgent, traj: Any, *, add: bool = True) -> Any:
    traj, action = agent.request_for_action(traj, OBSERVATION)
    if add:
        agent.add_to_trajectory(traj, action)
        action.update_reward(1.0)
    return traj, action


def test_the_state_goes_on_over_segments_and_starts_anew_with_an_episode(agent: RL4SysAgent, kept: Kept) -> None:
    for steps in (6, 3):
        traj: Any = None
        for _ in range(steps):
            traj, action = act(agent, traj)
        agent.mark_end_of_trajectory(traj, action)
    assert kept.counts() == [(0, 0, [1, 2, 3, 4]), (1, 4, [5, 6]), (0, 0, [1, 2, 3])]
    first = kept.segments[0]
    assert (first.extras["count"].dtype, first.initial["before"].dtype, first.initial["before"].shape) == (np.int32, np.int64, ())
    np.testing.assert_array_equal(first.extras["pair"], [[0, 0], [1, 1], [2, 2], [3, 3]])
    assert (
        first.nbytes
        == sum(c.nbytes for c in (first.observations, first.actions, first.rewards, first.log_probs)) + 4 * (8 + 4 + 8) + 8
    )


def test_an_action_that_is_not_added_leaves_a_gap_and_does_not_change_the_state(agent: RL4SysAgent, kept: Kept) -> None:
    traj, _ = act(agent, None)
    for _ in range(3):
        act(agent, traj, add=False)
    traj, action = act(agent, traj)
    agent.mark_end_of_trajectory(traj, action)
    assert kept.counts() == [(0, 0, [1]), (2, 1, [2])]
    assert agent.stats()["counters"]["skipped_actions"] == 3


def test_an_action_from_another_state_begins_a_segment(agent: RL4SysAgent, kept: Kept) -> None:
    traj, _ = act(agent, None)
    asked = [act(agent, traj, add=False)[1] for _ in range(2)]
    for action in asked:  # both continue from the first step, so the second does not continue from the one before it
        agent.add_to_trajectory(traj, action)
        action.update_reward(1.0)
    traj, action = act(agent, traj)
    agent.mark_end_of_trajectory(traj, action)
    assert kept.counts() == [(0, 0, [1, 2]), (1, 1, [2, 3])]


def test_a_fallback_action_keeps_the_state(agent: RL4SysAgent, kept: Kept) -> None:
    traj, _ = act(agent, None)
    traj, action = agent.request_for_action(traj, np.full(2, np.nan, np.float32))
    assert not isinstance(action, ExtraColumnAction)
    agent.add_to_trajectory(traj, action)
    traj, action = act(agent, traj)
    agent.mark_end_of_trajectory(traj, action)
    assert kept.counts() == [(0, 0, [1]), (2, 1, [2])], "the index shows that a step is missing"


def test_a_policy_without_a_finite_action_starts_anew(agent: RL4SysAgent, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    traj, _ = act(agent, None)
    monkeypatch.setattr(Counter, "bad_versions", {agent.version})
    traj, action = act(agent, traj, add=False)
    assert not isinstance(action, ExtraColumnAction), "there is no version before it, so a fallback acts"
    monkeypatch.setattr(Counter, "bad_versions", set())
    traj, action = act(agent, traj)
    agent.mark_end_of_trajectory(traj, action)
    assert kept.counts() == [(0, 0, [1]), (2, 0, [1])]


def test_without_exploration_the_state_goes_on_too(learner: Learner) -> None:
    with agent_of(learner, explore=False) as agent:
        traj = None
        for count in range(1, 10):
            traj, action = act(agent, traj)
            assert action.columns["count"] == count


def test_a_batch_is_as_many_single_requests(agent: RL4SysAgent, kept: Kept) -> None:
    trajs: Any = None
    for _ in range(3):
        trajs, actions = agent.request_for_actions(trajs, np.ones((2, 2), np.float32))
        for traj, action in zip(trajs, actions, strict=True):
            agent.add_to_trajectory(traj, action)
            action.update_reward(1.0)
    trajs[0], actions[0] = act(agent, trajs[0])
    for traj, action in zip(trajs, actions, strict=True):
        agent.mark_end_of_trajectory(traj, action)
    assert kept.counts() == [(0, 0, [1, 2, 3, 4]), (0, 0, [1, 2, 3])]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"pair": np.ones(3, np.float32)},
            r"column 'pair' of a policy of kind 'counter' is float32 \(3,\); expected float32 \(2,\)",
        ),
        ({"pair": np.float32(1)}, r"is float32 \(\)"),
        ({"count": 1.5}, r"column 'count' .* is float64 \(\); expected int32 \(\)"),
        ({"more": 1}, "returns the columns .*'more'.*; its spec has"),
    ],
)
def test_other_columns_than_the_spec_has_are_an_error(
    agent: RL4SysAgent, monkeypatch: pytest.MonkeyPatch, columns: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(Counter, "columns", columns)
    with pytest.raises(ConfigError, match=words) as caught:
        agent.request_for_action(None, OBSERVATION)
    assert caught.value.key == "columns"
    with pytest.raises(ConfigError, match="column"):
        agent.request_for_actions(None, np.ones((2, 2), np.float32))


@pytest.mark.parametrize("steps", [127, 128, 129, 300])
def test_columns_grow_with_their_segment(steps: int) -> None:
    spec = PolicySpec(BoxSpace((2,)), DiscreteSpace(2), "counter", tensors=(TensorSpec("w", (1,)),), columns=COLUMNS)
    writer = ExtraColumnSegmentWriter(spec, 1000, 0)
    from rl4sys_zmq.actor.action import AgentIdentity, PolicyStamp

    stamp = PolicyStamp(1, 0, AgentIdentity(Counters(), drops_bad_input=False))
    for row in range(steps):
        action = ExtraColumnAction()
        action.obs, action.raw, action.log_prob, action.stamp, action.mask = OBSERVATION, 0, 0.0, stamp, None
        action.known_reward, action.writer, action.before, action.state = 0.0, None, row, row + 1
        action.columns = {"before": np.array(7 + row), "count": np.array(row), "pair": np.array([row, -row])}
        writer.write(action)
    writer.terminated, writer.episode_length = True, steps
    segment = writer.build(1, 0.0)
    assert segment.extras["count"].tolist() == list(range(steps))
    assert segment.extras["pair"][:, 1].tolist() == [-row for row in range(steps)]
    assert segment.initial["before"] == 7
    assert segment.versions.tolist() == [0] * steps
