"""The log-probability of an action that the policy did not choose: that of its own choices, and of those that it never makes."""

import math
from typing import Any, cast

import numpy as np
import pytest

from rl4sys_zmq.layers.gru import GRU
from rl4sys_zmq.policies import AssessingPolicy, ExtraColumnPolicy, RandomSource, build_policy
from rl4sys_zmq.policies.action_bounds import bounder, unbounder
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.layer_policy import layers_spec
from rl4sys_zmq.policies.linear_bandit import linear_bandit_spec
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.testing.check_policy import random_observations
from rl4sys_zmq.values import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    PolicySnapshot,
    PolicySpec,
    TupleSpace,
)
from rl4sys_zmq.values.observations import leaves_of
from rl4sys_zmq.values.trees import flatten

FOUR, FEW, MANY = BoxSpace((4,)), DiscreteSpace(3, start=2), DiscreteSpace(50)
ARM = BoxSpace((2, 2), low=-9.0, high=9.0)
WIDE = BoxSpace((17,), low=-9.0, high=9.0)
TREE = DictSpace({"arm": ARM, "hand": TupleSpace((MultiDiscreteSpace((2, 3)), MultiBinarySpace(2))), "mode": FEW})
SPECS: dict[str, PolicySpec] = {
    "categorical": mlp_spec(FOUR, FEW, "categorical", (8,)),
    "categorical, many": mlp_spec(FOUR, MANY, "categorical", (8,)),
    "gaussian": mlp_spec(FOUR, ARM, "gaussian", (8,)),
    "gaussian, tanh": mlp_spec(FOUR, ARM, "gaussian", (8,), squash="tanh"),
    "joint": mlp_spec(FOUR, TREE, "joint", (8,), squash="tanh"),
    "squashed_gaussian": mlp_spec(FOUR, ARM, "squashed_gaussian", (8,)),
    "squashed_gaussian, many": mlp_spec(FOUR, WIDE, "squashed_gaussian", (8,)),
    "deterministic": mlp_spec(FOUR, ARM, "deterministic", (8,)),
    "q_values": mlp_spec(FOUR, FEW, "q_values", (8,)),
    "q_values, ladder": layers_spec(FOUR, FEW, HeadParameters(head="q_values", epsilon_ladder=3.0), [GRU(units=5)]),
    "q_distribution": layers_spec(FOUR, FEW, HeadParameters(head="q_distribution", atoms=5), [GRU(units=5)]),
    "gru": layers_spec(FOUR, FEW, HeadParameters(head="categorical"), [GRU(units=5)]),
    "gru, gaussian": layers_spec(FOUR, ARM, HeadParameters(head="gaussian"), [GRU(units=5)]),
    "ucb": linear_bandit_spec(FOUR, FEW, "ucb"),
    "softmax": linear_bandit_spec(FOUR, FEW, "softmax"),
}


def policy_of(spec: PolicySpec, **tensors: float) -> Any:
    flat = np.random.default_rng(1).normal(0.0, 0.3, spec.size).astype(np.float32)
    known = {tensor.name for tensor in spec.tensors}
    for name, value in {"epsilon": 0.4, "noise_std": 0.1, "scale": 1.0, **tensors}.items():
        if name in known:
            spec.views(flat)[name][:] = value
    return build_policy(spec, PolicySnapshot(3, 7, 0, flat))


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("name", SPECS)
def test_it_knows_its_own_choices(name: str, masked: bool) -> None:
    spec = SPECS[name]
    policy, rng = policy_of(spec), RandomSource(2, place=0.5)
    assert isinstance(policy, AssessingPolicy)
    policy = cast(Any, policy)
    mask = None
    if masked:
        if spec.action_space not in (FEW, MANY):
            pytest.skip("no choice")
        mask = np.arange(spec.action_space.n) != 1
    leaves, state = leaves_of(spec.observation_space), None
    for observation in leaves.rows(random_observations(spec.observation_space, 40, np.random.default_rng(3))):
        if isinstance(policy, ExtraColumnPolicy):
            raw, act, log_prob, _, after = policy.step(observation, mask, rng, True, state)
        else:
            (raw, act, log_prob), after = policy.act(observation, mask, rng, True), None
        if name == "deterministic" and np.abs(raw).max() == 9.0:
            continue  # clipped: the noise is lost
        again, assessed = policy.assess(act, observation, mask, rng, state)
        for one, other in zip(flatten(raw, by_key=True)[0], flatten(again, by_key=True)[0], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
            assert (np.shape(one), np.asarray(one).dtype) == (np.shape(other), np.asarray(other).dtype)
        assert assessed == pytest.approx(log_prob, rel=1e-2, abs=1e-2)  # rounding near a bound
        state = after


@pytest.mark.parametrize("name", ["q_values", "ucb"])
def test_what_it_never_takes_has_no_probability(name: str) -> None:
    policy, observation = policy_of(SPECS[name], epsilon=0.0), np.ones(4, np.float32)
    taken = policy.act(observation, None, RandomSource(0), True)[0]
    found = {action: policy.assess(np.int64(action), observation, None, RandomSource(0), None)[1] for action in (2, 3, 4)}
    assert found == {action: 0.0 if action == taken else -math.inf for action in (2, 3, 4)}


@pytest.mark.parametrize("space", [ARM, BoxSpace((3,), "<i4", -3, 3), BoxSpace((2,), low=(0.0, -1.0), high=(0.0, 1.0))], ids=str)
@pytest.mark.parametrize("squash", ["clip", "tanh"])
def test_the_raw_action_of_a_bound_is_finite_and_leads_back_to_it(space: BoxSpace, squash: str) -> None:
    for edge in (space.low_array(), space.high_array(), (space.low_array() + space.high_array()) / 2):
        act = edge.astype(space.dtype)
        raw = unbounder(space, squash)(act)
        assert raw.dtype == np.float32 and np.isfinite(raw).all()
        np.testing.assert_allclose(bounder(space, squash)(raw), act.reshape(-1), rtol=1e-6, atol=1e-6)
