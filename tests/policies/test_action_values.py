"""Epsilon-greedy policies: the means of distributions, and the ladder of epsilons."""

import math
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies import RandomSource, bind, build_policy
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.layer_policy import layers_spec
from rl4sys_zmq.policies.mlp import hidden_layers, mlp_spec
from rl4sys_zmq.testing import check_policy
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, PolicySpec

OBSERVED, ACTED = BoxSpace((4,)), DiscreteSpace(3, 5)


def spec_of(head: str, hidden: tuple[int, ...] = (8,), **options: Any) -> PolicySpec:
    return layers_spec(OBSERVED, ACTED, HeadParameters(head=head, **options), hidden_layers(hidden, "tanh"))


def policy_of(spec: PolicySpec, epsilon: float, seed: int = 0) -> Any:
    flat = np.random.default_rng(seed).normal(size=spec.size).astype(np.float32)
    spec.views(flat)["epsilon"][:] = epsilon
    return build_policy(spec, PolicySnapshot(generation=1, version=0, digest=0, flat=flat))


def slow_values(spec: PolicySpec, policy: Any, observation: Any) -> list[float]:
    """Return the mean of each action's distribution, atom by atom."""
    document, tensors = spec.document, spec.views(policy.snapshot.flat)
    hidden = np.tanh(tensors["layers.0.weight"].astype(float) @ observation + tensors["layers.0.bias"])
    logits = tensors["layers.1.weight"].astype(float) @ hidden + tensors["layers.1.bias"]
    atoms, low, high = document["atoms"], document["v_min"], document["v_max"]
    found = []
    for action in range(ACTED.n):
        weights = [math.exp(logits[action * atoms + k]) for k in range(atoms)]
        values = [low + k * (high - low) / (atoms - 1) for k in range(atoms)]
        found.append(sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights))
    return found


def test_distributions_are_compared_by_their_means() -> None:
    spec = spec_of("q_distribution", atoms=5, v_min=-2.0, v_max=6.0)
    policy = policy_of(spec, 0.0)
    quick = bind(policy, RandomSource(0), True)
    observations = np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32)
    batch = policy.act_batch(observations, None, RandomSource(0), True)[0]
    chosen = set()
    for observation, many in zip(observations, batch, strict=True):
        values = slow_values(spec, policy, observation)
        one = policy.act(observation, None, RandomSource(0), True)[0]
        np.testing.assert_allclose(policy._head.means(policy._network.single(observation)), values, rtol=1e-4, atol=1e-5)
        assert one == quick(observation, None)[0] == many == int(np.argmax(values)) + 5
        best = max((1, 2), key=lambda a: values[a])
        assert policy.act(observation, np.array([False, True, True]), RandomSource(0), False)[0] == best + 5
        chosen.add(int(one))
    assert len(chosen) > 1


@pytest.mark.parametrize("head", ["q_values", "q_distribution"])
@pytest.mark.parametrize("ladder", [0.0, 7.0])
def test_policies_of_action_values_keep_the_contract(head: str, ladder: float) -> None:
    spec = spec_of(head, epsilon_ladder=ladder)
    flat = np.random.default_rng(0).normal(size=spec.size).astype(np.float32)
    tensors = spec.views(flat)
    tensors["epsilon"][:] = 0.25
    check_policy(spec, tensors)


@pytest.mark.parametrize(("place", "epsilon"), [(0.0, 0.4), (0.5, 0.4**4.5), (0.999, 0.4**7.993)])
def test_each_actor_has_its_own_epsilon(place: float, epsilon: float) -> None:
    policy = policy_of(spec_of("q_values", epsilon_ladder=7.0), 0.4)
    observation = np.ones(4, np.float32)
    greedy = policy.act(observation, None, RandomSource(0), False)[0]
    other = next(action for action in (5, 6, 7) if action != greedy)
    rng = RandomSource(3, place)
    act = bind(policy, rng, True)
    many = policy.act_batch(np.tile(observation, (4000, 1)), None, rng, True)
    assert np.mean(many[0] != greedy) == pytest.approx(epsilon * 2 / 3, abs=0.03)
    assert math.exp(policy.act(observation, None, rng, False)[2]) == pytest.approx(1 - epsilon * 2 / 3)
    found = {int(action): log_prob for action, _, log_prob in (act(observation, None) for _ in range(300))}
    assert math.exp(found[int(greedy)]) == pytest.approx(1 - epsilon * 2 / 3)
    if place == 0.0:
        assert math.exp(found[int(other)]) == pytest.approx(epsilon / 3)


def test_a_document_is_as_before_without_a_ladder() -> None:
    assert spec_of("q_values") == mlp_spec(OBSERVED, ACTED, "q_values", (8,))
    assert set(spec_of("q_values").document) == {"head", "squash", "layers_version", "layers"}


@pytest.mark.parametrize(
    ("head", "options", "message"),
    [
        ("q_distribution", {"v_min": 1.0, "v_max": 1.0}, "v_min 1 is not below v_max 1"),
        ("q_values", {"atoms": 7}, "atoms has no meaning for a q_values head"),
        ("categorical", {"epsilon_ladder": 7.0}, "epsilon_ladder has no meaning"),
        ("q_distribution", {"atoms": 1}, "atoms"),
    ],
)
def test_wrong_options_are_refused(head: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(head, **options)
