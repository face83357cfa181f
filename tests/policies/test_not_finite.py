"""A policy whose network gives numbers that are not finite says so: the log-probability is not finite either."""

from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.policies import RandomSource, bind, build_policy
from rl4sys_zmq.policies.bounded import PYTHON_MAX_SIZE
from rl4sys_zmq.policies.draws import LOOP_MAX_LOGITS, PYTHON_MAX_ACTIONS
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, MultiDiscreteSpace, PolicySnapshot
from rl4sys_zmq.values.action_layout import action_layout

SEEN = BoxSpace((2,))
ARM = BoxSpace((2,), low=-1.0, high=1.0)
WIDE = BoxSpace((PYTHON_MAX_SIZE + 1,), low=-1.0, high=1.0)
HYBRID = DictSpace({"aim": ARM, "gear": DiscreteSpace(3), "keys": MultiDiscreteSpace((2, 4))})
CASES: list[tuple[str, Any, dict[str, float]]] = [
    ("gaussian", ARM, {}),
    ("gaussian", BoxSpace((2, 2)), {}),
    ("squashed_gaussian", ARM, {}),
    ("squashed_gaussian", WIDE, {}),
    ("deterministic", ARM, {"noise_std": 0.1}),
    ("deterministic", ARM, {"noise_std": 0.1, "epsilon": 1.0}),
    ("deterministic", WIDE, {"noise_std": 0.1, "epsilon": 0.5}),
    ("categorical", DiscreteSpace(3), {}),
    ("categorical", DiscreteSpace(PYTHON_MAX_ACTIONS + 1), {}),
    ("q_values", DiscreteSpace(3), {"epsilon": 0.5}),
    ("q_distribution", DiscreteSpace(3), {"epsilon": 0.5}),
    ("joint", HYBRID, {}),
    ("joint", MultiDiscreteSpace((PYTHON_MAX_ACTIONS, 3)), {}),
]


def chosen(head: str, space: Any, tensors: dict[str, float], place: int, value: float, explore: bool) -> list[tuple[Any, Any]]:
    """Return the actions and log-probabilities, chosen in all ways, of a policy with one output that is `value`."""
    spec = mlp_spec(SEEN, space, head, ())
    given = {tensor.name: np.full(tensor.shape, tensors.get(tensor.name, 0.0), np.float32) for tensor in spec.tensors}
    given["layers.0.bias"][place] = value
    flat, others = spec.flatten(given)
    policy = build_policy(spec, PolicySnapshot(1, 1, 0, flat, others))
    rng, seen = RandomSource(1), np.zeros(2, np.float32)
    ways: list[tuple[Any, Any, Any]] = [policy.act(seen, None, rng, explore), bind(policy, rng, explore)(seen, None)]
    ways += [policy.act_batch(np.zeros((rows, 2), np.float32), None, rng, explore) for rows in (1, LOOP_MAX_LOGITS)]
    return [(act, log_prob) for _, act, log_prob in ways]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("head", "space", "tensors"), CASES)
def test_an_output_that_is_not_finite_gives_no_finite_log_probability(
    head: str, space: Any, tensors: dict[str, float], value: float, explore: bool
) -> None:
    places = [0] if head != "joint" else [0, action_layout(space).outputs - 1]
    for place in places:
        for act, log_probs in chosen(head, space, tensors, place, value, explore):
            assert not np.isfinite(log_probs).any(), (head, place)
            if isinstance(space, DiscreteSpace):
                assert (np.asarray(act) >= 0).all() and (np.asarray(act) < space.n).all(), "no index is impossible"


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize(("head", "space", "tensors"), CASES)
def test_finite_outputs_give_finite_log_probabilities(head: str, space: Any, tensors: dict[str, float], explore: bool) -> None:
    for _, log_probs in chosen(head, space, tensors, 0, 1e3, explore):
        assert np.isfinite(log_probs).all()


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("head", ["categorical", "q_values"])
def test_an_option_can_be_ruled_out_by_minus_infinity(head: str, explore: bool) -> None:
    for act, log_probs in chosen(head, DiscreteSpace(3), {}, 1, -np.inf, explore):
        assert np.isfinite(log_probs).all() and (np.asarray(act) != 1).all()
