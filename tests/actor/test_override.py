"""`RL4SysAction.override`: what the host did is what is recorded, or the call says why it cannot be."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policies.stored import stored

from rl4sys_zmq import FrozenAgent, RL4SysAgent
from rl4sys_zmq.actor.inputs import MAX_SOURCES
from rl4sys_zmq.errors import ActionError
from rl4sys_zmq.policies.folder import encode_policy, write_policy
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    TupleSpace,
)

from .conftest import OBS, Bench, obs

ARM = BoxSpace((2,), low=(-1.0, 0.0), high=(1.0, 5.0))
TREE = DictSpace({"arm": ARM, "hand": TupleSpace((MultiDiscreteSpace((2, 3)), MultiBinarySpace(2))), "mode": DiscreteSpace(3, 2)})


Make = Callable[..., RL4SysAgent]


@pytest.fixture
def make(bench: Bench) -> Make:
    """Return a function that returns an off-policy agent with some actions."""

    def agent_of(actions: Any, squash: str = "clip", **options: Any) -> RL4SysAgent:
        parameters = {"squash": squash}
        return bench.agent(algorithm_name="KEEPER_OFF", action_space=actions, algorithm_parameters=parameters, **options)

    return agent_of


def test_an_action_cannot_be_replaced_in_silence(make: Make) -> None:
    agent = make(TREE)
    traj, action = agent.request_for_action(None, obs(0))
    with pytest.raises(ActionError, match=r"call action\.override\(act\)"):
        action.act = action.act
    trajs, actions = agent.request_for_actions(None, np.stack([obs(0), obs(1)]))
    for one in (action, *actions):
        for array in (one.act["arm"], *one.act["hand"]):
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0
    assert len(trajs) == 2 and len(traj) == 0


def test_an_override_is_recorded_in_segments_of_its_source(bench: Bench, make: Make) -> None:
    agent = make(DiscreteSpace(3))
    traj: Any = None
    log_probs = []
    for step in range(8):
        traj, action = agent.request_for_action(traj, obs(step))
        if 2 <= step < 5:
            action.override(2, source="human" if step < 4 else "safety")
            assert (action.act, type(action.act), action.source) == (2, np.int64, "human" if step < 4 else "safety")
        log_probs.append(action.log_prob)
        agent.add_to_trajectory(traj, action)
        action.update_reward(step)
    agent.mark_end_of_trajectory(traj, action)
    segments = bench.segments(agent)
    assert [(s.source, s.steps, s.segment_index) for s in segments] == [
        ("", 2, 0),
        ("human", 2, 1),
        ("safety", 1, 2),
        ("", 3, 3),
    ]
    assert [int(s.observations[-1][0]) for s in segments] == [2, 4, 5, 7]
    assert np.concatenate([s.actions for s in segments])[2:5].tolist() == [2, 2, 2]
    np.testing.assert_allclose(np.concatenate([s.log_probs for s in segments]), log_probs, rtol=1e-6)
    assert all(math.isfinite(log_prob) and log_prob < 0.0 for log_prob in log_probs)
    assert segments[-1].episode_return is None, "it is not the policy's"
    counters, stats = agent.stats()["counters"], agent.stats()
    assert (counters["overridden_steps"], counters["overridden_episodes"], stats["mean_return"]) == (3, 1, None)


@pytest.mark.parametrize("squash", ["clip", "tanh"])
@pytest.mark.parametrize("leading", [False, True])
def test_a_box_action_is_recorded_as_the_raw_action_that_leads_to_it(
    bench: Bench, make: Make, squash: str, leading: bool
) -> None:
    agent = make(ARM, squash)
    done = [[-1.0, 5.0], [0.25, 4.0], [1.0, 0.0]]
    traj: Any = None
    for step, act in enumerate(done):
        traj, action = agent.request_for_action(traj, obs(step)[None] if leading else obs(step))
        action.override(act)
        assert action.act.shape == ((1, 2) if leading else (2,)) and action.act.dtype == np.float32
        agent.add_to_trajectory(traj, action)
        action.update_reward(0.0)
    agent.mark_end_of_trajectory(traj, action)
    (segment,) = bench.segments(agent)
    assert np.isfinite(segment.actions).all() and np.isfinite(segment.log_probs).all()
    shares = np.tanh(segment.actions) if squash == "tanh" else None
    recorded = segment.actions if shares is None else shares * [1.0, 2.5] + [0.0, 2.5]
    np.testing.assert_allclose(recorded, done, rtol=1e-6, atol=1e-6)


def test_the_actions_of_a_batch_are_overridden_one_by_one(bench: Bench, make: Make) -> None:
    agent = make(TREE)
    done = {"arm": [0.5, 2.0], "hand": (np.array([1, 2]), [1, 0]), "mode": 4}
    trajs, actions = agent.request_for_actions(None, np.stack([obs(0), obs(1), obs(2)]))
    actions[1].override(done)
    for traj, action in zip(trajs, actions, strict=True):
        agent.add_to_trajectory(traj, action)
        action.update_reward(0.0)
        agent.mark_end_of_trajectory(traj, action)
    segments = bench.segments(agent)
    assert sorted(s.source for s in segments) == ["", "", "human"]
    (segment,) = (s for s in segments if s.source)
    assert [leaf[0].tolist() for leaf in segment.action_leaves] == [[0.5, 2.0], [1, 2], [1, 0], 4]


WRONG: dict[str, tuple[Any, Any, str]] = {
    "no action": (DiscreteSpace(3), 3, "outside 0 to 2"),
    "a fraction": (DiscreteSpace(3), 0.5, "change in int64"),
    "a shape": (ARM, [0.0], r"shape \(1,\)"),
    "a bound": (ARM, [0.0, 5.1], r"actions element 1 is 5.1; the space allows 0 to 5: clip"),
    "not a number": (ARM, [0.0, math.nan], "must be finite"),
    "a text": (ARM, "left", "not str"),
    "a part": (TREE, {"arm": [0.0, 0.0], "mode": 2}, "keys"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_action_is_refused_and_changes_nothing(make: Make, case: str) -> None:
    space, act, message = WRONG[case]
    agent = make(space)
    _, action = agent.request_for_action(None, obs(0))
    before = action.act
    with pytest.raises(ActionError, match=message) as caught:
        action.override(act)
    assert "observation" not in str(caught.value)
    assert action.act is before and not action.source


@pytest.mark.parametrize("source", ["", "a b", "x" * 33, "käthe", "a@b"])
def test_a_source_is_a_short_name(make: Make, source: str) -> None:
    agent = make(DiscreteSpace(3))
    _, action = agent.request_for_action(None, obs(0))
    with pytest.raises(ActionError, match="expected 1 to 32"):
        action.override(1, source=source)
    for number in range(MAX_SOURCES):
        action.override(1, source=f"s{number}")
    with pytest.raises(ActionError, match="one source too many"):
        action.override(1, source="another")


def test_a_mask_forbids_an_override_too(bench: Bench, make: Make) -> None:
    agent = make(DiscreteSpace(3))
    traj, action = agent.request_for_action(None, obs(0), [1, 0, 1])
    with pytest.raises(ActionError, match="the mask forbids the action"):
        action.override(1)
    action.override(2)
    assert action.log_prob < 0.0
    action.update_reward(0.0)
    agent.mark_end_of_trajectory(traj, action)
    assert bench.segments(agent)[0].masks is not None


def test_a_stored_action_cannot_be_overridden(make: Make) -> None:
    agent = make(DiscreteSpace(3))
    traj, action = agent.request_for_action(None, obs(0))
    agent.add_to_trajectory(traj, action)
    with pytest.raises(ActionError, match="before add_to_trajectory"):
        action.override(1)


def test_with_bad_input_dropped_a_wrong_override_leaves_the_step_unrecorded(bench: Bench, make: Make) -> None:
    agent = make(DiscreteSpace(3), on_bad_input="drop")
    traj: Any = None
    for step in range(4):
        traj, action = agent.request_for_action(traj, obs(step))
        if step == 2:
            action.override(7)
        agent.add_to_trajectory(traj, action)
        action.update_reward(step)
    agent.mark_end_of_trajectory(traj, action)
    assert [(s.segment_index, s.observations[:, 0].tolist()) for s in bench.segments(agent)] == [(0, [0, 1, 2]), (2, [3])]
    assert agent.stats()["counters"]["bad_input.ActionError"] == 1 == agent.stats()["counters"]["unrecorded_actions"]


def test_an_action_that_no_policy_chose_stays_unrecorded(make: Make) -> None:
    agent = make(DiscreteSpace(3), on_bad_input="drop")
    traj, _ = agent.request_for_action(None, obs(0))
    traj, idle = agent.request_for_action(traj, obs(math.nan))
    idle.override(2)
    assert (idle.act, idle.source) == (2, "")
    agent.add_to_trajectory(traj, idle)
    assert not idle.stored


def test_the_return_of_an_evaluation_with_an_override_is_not_reported(make: Make) -> None:
    agent = make(DiscreteSpace(3), explore=False)
    for overridden in (False, True, False):
        traj, action = agent.request_for_action(None, obs(0))
        if overridden:
            action.override(1)
        agent.add_to_trajectory(traj, action)
        action.update_reward(5.0)
        agent.mark_end_of_trajectory(traj, action)
    stats = agent.stats()
    assert (stats["submitted"], stats["counters"]["overridden_episodes"]) == (2, 1)


def test_a_policy_that_is_gone_leaves_the_log_probability_unknown(make: Make) -> None:
    agent = make(DiscreteSpace(3))
    _, action = agent.request_for_action(None, obs(0))
    object.__setattr__(action.stamp, "policy", lambda: None)
    action.override(1)
    assert math.isnan(action.log_prob) and action.raw == 1


def test_a_frozen_agent_accepts_an_override(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    write_policy(tmp_path / "policy", encode_policy(stored(mlp_spec(OBS, ARM, "gaussian", (8,)))))
    with FrozenAgent(tmp_path / "policy") as agent:
        traj, action = agent.request_for_action(None, obs(0))
        action.override([0.5, 0.5])
        agent.add_to_trajectory(traj, action)
        assert action.act.tolist() == [0.5, 0.5] and len(traj) == 1
        with pytest.raises(ActionError):
            action.override([0.5, 9.0])
