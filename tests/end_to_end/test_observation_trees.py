"""Observations that are trees of arrays: from the host's dicts through the actor and real sockets to a plug-in algorithm."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from kit import drained, play, play_batch

from rl4sys_zmq.errors import ConfigError, ObservationError
from rl4sys_zmq.learner import Learner, register_algorithm
from rl4sys_zmq.policies import RandomSource, register_policy
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters, check_algorithm, check_policy
from rl4sys_zmq.values import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    PolicySnapshot,
    PolicySpec,
    Segment,
    TensorSpec,
    TupleSpace,
)

from .conftest import Lab

SPACE = DictSpace(
    {
        "position": BoxSpace((2,), "<f4", -10.0, 10.0),
        "inventory": TupleSpace((MultiDiscreteSpace((3, 4)), MultiBinarySpace(2))),
        "camera": BoxSpace((4, 4), "|u1", 0, 255),
        "mode": DiscreteSpace(3),
    }
)
TWO = DiscreteSpace(2)


class TreePolicy:
    """A policy that acts by the sum of the position and the mode."""

    def __init__(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        self.snapshot, self.generation, self.version = snapshot, snapshot.generation, snapshot.version
        spec.views(snapshot.flat)

    def act(self, observation: Any, mask: Any, rng: RandomSource, explore: bool) -> Any:
        assert observation["camera"].dtype == np.uint8 and observation["inventory"][0].shape == (2,)
        act = np.int64(observation["position"].sum() + observation["mode"] > 0)
        return act, act, 0.0

    def act_batch(self, observations: Any, masks: Any, rng: RandomSource, explore: bool) -> Any:
        assert observations["inventory"][1].shape == (len(observations["mode"]), 2)
        acts = (observations["position"].sum(axis=1) + observations["mode"] > 0).astype(np.int64)
        return acts, acts, np.zeros(len(acts), np.float32)


class TreeAlgorithm(FakeAlgorithm):
    """A fake algorithm that accepts a segment only if its actions follow from its observations."""

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        tree, steps = segment.observations, segment.steps
        assert list(tree) == ["camera", "inventory", "mode", "position"]
        assert len(tree["camera"]) == len(tree["inventory"][1]) == steps + (not segment.terminated)
        expected = tree["position"].sum(axis=1) + tree["mode"] > 0
        assert np.array_equal(expected[:steps], segment.actions)
        super().observe(segment, correct=correct)


def plan(observation_space: Any, action_space: Any, parameters: Mapping[str, object]) -> PolicySpec:
    return PolicySpec(observation_space, action_space, "tree", tensors=(TensorSpec("w", (1,)),))


def make_tree(observation_space: Any, action_space: Any, parameters: Mapping[str, object], seed: int) -> TreeAlgorithm:
    known = {"steps_per_update": 8, "rollout_length": 5}
    if unknown := set(parameters) - set(known):
        raise ConfigError(f"unknown parameters {sorted(unknown)}", key="algorithm_parameters")
    return TreeAlgorithm(plan(observation_space, action_space, {}), FakeParameters(**{**known, **parameters}), seed)  # type: ignore[arg-type]


register_policy("tree", TreePolicy)
register_algorithm("TREE", make_tree)


def observation(rng: np.random.Generator, rows: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return a random observation in the form that a host has, or a batch of them."""
    return {
        "mode": rng.integers(0, 3, rows),
        "position": rng.normal(size=(*rows, 2)).tolist(),
        "camera": rng.integers(0, 256, (*rows, 4, 4), np.uint8),
        "inventory": [rng.integers(0, 3, (*rows, 2)), rng.integers(0, 2, (*rows, 2)).astype(bool)],
    }


def joined(lab: Lab, learner: Learner, **options: Any) -> Any:
    return lab.agent(learner, **{"algorithm_name": "TREE", "observation_space": SPACE, "action_space": TWO, **options})


def episode(agent: Any, steps: int, seed: int, *, truncated: bool = False) -> None:
    rng = np.random.default_rng(seed)
    seen = [observation(rng) for _ in range(steps)]
    play(agent, seen, truncated=truncated, final_obs=observation(rng) if truncated else None)


def test_the_plug_in_keeps_the_contracts() -> None:
    check_policy(plan(SPACE, TWO, {}), masks=False)
    check_algorithm(make_tree, observation_space=SPACE, action_space=TWO)


def test_trees_arrive_as_they_were_observed(lab: Lab, observed: list[Segment]) -> None:
    learner = lab.learner()
    agent = joined(lab, learner)
    assert agent.spec.observation_space == SPACE
    for number, steps in enumerate((3, 12, 5)):
        episode(agent, steps, number, truncated=number == 1)
    verdicts = drained(learner, agent)["verdicts"]
    assert (verdicts["trained"], verdicts["quarantined"], verdicts["refused"]) == (5, 0, 0)
    first = observed[0]
    rng = np.random.default_rng(0)
    for row in range(3):
        sent = observation(rng)
        np.testing.assert_array_equal(first.observations["camera"][row], sent["camera"])
        np.testing.assert_array_equal(first.observations["position"][row], np.float32(sent["position"]))
        np.testing.assert_array_equal(first.observations["inventory"][1][row], sent["inventory"][1])
    dtypes = [leaf.dtype.str for leaf in first.observation_leaves]
    assert dtypes == ["|u1", "<i8", "|i1", "<i8", "<f4"]


def test_a_segment_with_many_large_columns_is_quarantined(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each column has a frame of its own, also in the dead letter, so the message has more frames than most others.
    monkeypatch.setattr(TreePolicy, "act", lambda *_: (np.int64(0), np.int64(0), 0.0))
    wide = DictSpace({f"part {n:02}": BoxSpace((300,)) for n in range(32)})
    learner = lab.learner()
    agent = joined(lab, learner, observation_space=wide, algorithm_parameters={"rollout_length": 64})
    play(agent, [{name: np.zeros(300, np.float32) for name in wide.spaces}] * 64, reward=2e12)  # beyond max_reward
    verdicts = drained(learner, agent)["verdicts"]
    assert (verdicts["trained"], verdicts["quarantined"]) == (0, 1)


def test_a_batch_of_trees(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner()
    agent = joined(inproc_lab, learner)
    rng = np.random.default_rng(3)
    _, actions = agent.request_for_actions(None, observation(rng, (3,)))
    assert [action.obs["camera"].shape for action in actions] == [(4, 4)] * 3
    play_batch(agent, [observation(rng, (3,)) for _ in range(7)])
    verdicts = drained(learner, agent)["verdicts"]
    assert (verdicts["trained"], verdicts["quarantined"]) == (6, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": 3}, r"observations\['mode'\]: observation 3 lies outside 0 to 2"),
        ({"position": [0.0, np.nan]}, r"observations\['position'\]: observation element 1 is nan"),
        ({"position": [0.0]}, r"observations\['position'\]: the observation has shape \(1,\)"),
        (
            {"inventory": [np.array([0, 4]), [0, 1]]},
            r"\['inventory'\]\[0\]: observation \[0, 4\] lies outside \[0, 0\] to \[2, 3\]",
        ),
        ({"inventory": [np.array([0, 1]), [0, 2]]}, r"\['inventory'\]\[1\]: observation \[0, 2\] lies outside"),
        ({"inventory": [np.array([0, 1])]}, r"the observation\['inventory'\] is a list of 1; expected a tuple of 2"),
        ({"inventory": 3}, r"the observation\['inventory'\] is a int; expected a tuple of 2"),
        ({"more": 3}, r"is a dict with the keys .*'more'.*; expected a dict with the keys"),
    ],
    ids=lambda value: str(next(iter(value))) if isinstance(value, dict) else "",
)
def test_an_invalid_leaf_is_named(inproc_lab: Lab, change: dict[str, Any], words: str) -> None:
    agent = joined(inproc_lab, inproc_lab.learner(), on_bad_input="raise")
    good = observation(np.random.default_rng(0))
    with pytest.raises(ObservationError, match=words):
        agent.request_for_action(None, {**good, **change})
    with pytest.raises(ObservationError, match="the observation is a ndarray; expected a dict with the keys"):
        agent.request_for_action(None, np.zeros(4, np.float32))
    traj, action = agent.request_for_action(None, good)
    agent.add_to_trajectory(traj, action)
    assert traj.steps == 1


def test_bad_input_repeats_the_last_observation(inproc_lab: Lab) -> None:
    agent = joined(inproc_lab, inproc_lab.learner(), on_bad_input="drop")
    traj, action = agent.request_for_action(None, {})
    assert action.obs["camera"].shape == (4, 4) and not action.obs["position"].any()
    traj, first = agent.request_for_action(traj, observation(np.random.default_rng(0)))
    agent.add_to_trajectory(traj, first)
    traj, action = agent.request_for_action(traj, {"mode": 1})
    np.testing.assert_array_equal(action.obs["camera"], first.obs["camera"])
    assert agent.stats()["counters"]["bad_input.ObservationError"] == 2


def test_values_far_out_of_the_bounds_of_a_leaf_are_quarantined(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner()
    agent = joined(inproc_lab, learner)
    for name, value in (("position", 3000.0), ("mode", 3), ("position", 11.0), ("camera", 0)):
        traj, action = agent.request_for_action(None, observation(np.random.default_rng(0)))
        action.obs = {**action.obs, name: np.full_like(action.obs[name], value)}
        agent.add_to_trajectory(traj, action)
        action.update_reward(1.0)
        agent.mark_end_of_trajectory(traj, action)
    verdicts = drained(learner, agent)["verdicts"]
    assert verdicts["quarantined"] == 2, "11 is within the tolerance of -10 to 10"


SMALL_BATCHES: dict[str, dict[str, object]] = {
    "PPO": {"batch_size": 16, "minibatch_size": 8},
    "IMPALA": {"steps_per_update": 16, "rollout_length": 8},
    "DQN": {"batch_size": 8, "learning_starts": 8, "publish_every_updates": 1},
    "SAC": {"batch_size": 8, "learning_starts": 8, "publish_every_updates": 1},
    "TD3": {"batch_size": 8, "learning_starts": 8, "publish_every_updates": 1},
}


@pytest.mark.parametrize("name", SMALL_BATCHES)
def test_an_algorithm_of_this_package_trains_on_trees(inproc_lab: Lab, name: str) -> None:
    pytest.importorskip("torch")
    learner = inproc_lab.learner()
    actions = BoxSpace((1,), low=-1.0, high=1.0) if name == "TD3" else TWO
    parameters = SMALL_BATCHES[name]
    agent = joined(inproc_lab, learner, algorithm_name=name, algorithm_parameters=parameters, action_space=actions)
    episode(agent, 40, 0, truncated=True)
    verdicts = drained(learner, agent)["verdicts"]
    assert (verdicts["quarantined"], verdicts["refused"]) == (0, 0)
    assert agent.wait_version(1, 20.0), "the algorithm has made updates"


def test_remote_inference_is_refused_in_one_line(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner(inference="auto")
    with pytest.raises(ConfigError, match="the service takes single arrays; use inference: local"):
        joined(inproc_lab, learner, inference="auto")
