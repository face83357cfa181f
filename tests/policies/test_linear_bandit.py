"""The policy of the linear bandit: scores equal to slow twins, probabilities equal to frequencies, and errors."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, MaskError, ObservationError
from rl4sys_zmq.policies import RandomSource, build_policy
from rl4sys_zmq.policies.linear_bandit import LinearBanditPolicy, context_features, linear_bandit_spec
from rl4sys_zmq.testing import check_policy
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, PolicySnapshot, PolicySpec, TensorSpec

OBS, ACTIONS = BoxSpace((2,)), DiscreteSpace(3, start=5)
MEANS = np.array([[0.3, -0.2, 0.1], [0.2, 0.4, -0.3], [-0.5, 0.1, 0.6]], np.float32)
FACTORS = np.tril(np.random.default_rng(2).normal(size=(3, 3, 3))).astype(np.float32)
CONTEXT = np.array([0.7, -1.2], np.float32)


def bandit(
    strategy: str, scale: float = 0.5, epsilon: float = 0.0, samples: int = 256, means: NDArray[np.float32] = MEANS
) -> LinearBanditPolicy:
    spec = linear_bandit_spec(OBS, ACTIONS, strategy, samples=samples)
    tensors = {"means": means, "factors": FACTORS, "scale": np.array([scale]), "epsilon": np.array([epsilon])}
    flat, others = spec.flatten(tensors)
    policy = build_policy(spec, PolicySnapshot(1, 2, 3, flat, others))
    assert isinstance(policy, LinearBanditPolicy)
    return policy


def scores(action: int) -> tuple[float, float]:
    """Return the mean and the standard error of an action in `CONTEXT`, from the inverse of the precision matrix."""
    x = [0.7, -1.2, 1.0]
    covariance = FACTORS[action].astype(float).T @ FACTORS[action].astype(float)
    mean = sum(float(MEANS[action][i]) * x[i] for i in range(3))
    return mean, math.sqrt(sum(x[i] * covariance[i][j] * x[j] for i in range(3) for j in range(3)))


@pytest.mark.parametrize("strategy", ["thompson", "ucb", "greedy", "softmax"])
@pytest.mark.parametrize("space", [OBS, DiscreteSpace(4, start=-1), DictSpace({"a": OBS, "b": DiscreteSpace(2)})])
def test_it_keeps_the_contract_of_a_policy(strategy: str, space: Any) -> None:
    samples = 1024 if strategy == "thompson" else 8
    check_policy(linear_bandit_spec(space, DiscreteSpace(3, start=1), strategy, samples=samples))


def test_ucb_takes_the_highest_upper_bound_and_is_certain() -> None:
    bounds = [mean + 0.5 * error for mean, error in map(scores, range(3))]
    action, _, log_prob = bandit("ucb").act(CONTEXT, None, RandomSource(0), True)
    assert action == 5 + bounds.index(max(bounds)) and log_prob == 0.0
    mask = np.ones(3, bool)
    mask[bounds.index(max(bounds))] = False
    action, _, log_prob = bandit("ucb").act(CONTEXT, mask, RandomSource(0), True)
    assert action == 5 + bounds.index(sorted(bounds)[1]) and log_prob == 0.0


def test_epsilon_mixes_a_uniform_choice_of_the_allowed_actions() -> None:
    means = [scores(action)[0] for action in range(3)]
    best = means.index(max(means))
    chances = bandit("greedy", epsilon=0.3).probabilities(CONTEXT[None])[0]
    assert chances == pytest.approx([0.1 + 0.7 * (action == best) for action in range(3)], abs=1e-6)
    mask = np.array([[True, True, False]])
    chances = bandit("greedy", epsilon=0.3).probabilities(CONTEXT[None], mask)[0]
    best = means.index(max(means[:2]))
    assert chances == pytest.approx([0.15 + 0.7 * (action == best) for action in range(2)] + [0.0], abs=1e-6)


def test_softmax_of_the_means() -> None:
    exps = [math.exp(scores(action)[0] / 0.5) for action in range(3)]
    assert bandit("softmax").probabilities(CONTEXT[None])[0] == pytest.approx([e / sum(exps) for e in exps], rel=1e-5)
    means = [scores(action)[0] for action in range(3)]
    assert bandit("softmax", scale=0.0).probabilities(CONTEXT[None])[0].argmax() == means.index(max(means))


def test_thompson_samples_the_posterior() -> None:
    """Compare with samples of the whole coefficient vector, as in the paper."""
    rng = np.random.default_rng(4)
    x = np.append(CONTEXT, 1.0)
    wins = np.zeros(3)
    samples = 20_000
    drawn = np.empty((samples, 3))
    for action in range(3):
        covariance = FACTORS[action].astype(float).T @ FACTORS[action].astype(float)
        drawn[:, action] = rng.multivariate_normal(MEANS[action], 0.25 * covariance, samples) @ x
    wins = np.bincount(drawn.argmax(axis=1), minlength=3) / samples
    chances = bandit("thompson", samples=samples).probabilities(CONTEXT[None])[0]
    assert chances == pytest.approx(wins, abs=5 * math.sqrt(0.5 / samples))


def test_importance_weights_with_few_samples_are_unbiased() -> None:
    """The mean of 1 / propensity over the decisions for an action is 1 / p of the support, for any number of samples."""
    policy = bandit("thompson", samples=50)
    count = 20_000
    actions, _, log_probs = policy.act_batch(np.tile(CONTEXT, (count, 1)), None, RandomSource(3), True)
    weights = np.exp(-log_probs.astype(float))
    exact = bandit("thompson", samples=20_000).probabilities(CONTEXT[None])[0]
    for action in range(3):
        estimate = float(np.where(actions == 5 + action, weights, 0.0).mean())
        support = 1.0 - (1.0 - exact[action]) ** 50
        spread = float(np.where(actions == 5 + action, weights, 0.0).std() / math.sqrt(count))
        assert estimate == pytest.approx(support, abs=5 * spread)


def test_without_exploration_it_takes_the_highest_mean() -> None:
    means = [scores(action)[0] for action in range(3)]
    for strategy in ("thompson", "ucb", "greedy", "softmax"):
        action, _, log_prob = bandit(strategy, epsilon=0.5).act(CONTEXT, None, RandomSource(0), False)
        assert action == 5 + means.index(max(means)) and log_prob == 0.0


def test_a_batch_larger_than_a_chunk_is_that_of_single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.policies.linear_bandit._CHUNK", 2 * 3 * 64)
    contexts = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    chances = bandit("thompson", samples=64).probabilities(contexts)
    assert chances.shape == (7, 3) and chances.sum(axis=1) == pytest.approx(np.ones(7))
    large = bandit("thompson", samples=20_000).probabilities(contexts)
    assert np.abs(chances - large).max() < 5 * math.sqrt(0.25 / 64)


def test_what_is_not_finite_never_chooses_a_forbidden_action() -> None:
    spec = linear_bandit_spec(OBS, ACTIONS, "thompson")
    policy: Any = build_policy(spec, PolicySnapshot(1, 2, 3, np.full(spec.size, np.nan, np.float32)))
    action, _, log_prob = policy.act(CONTEXT, np.array([False, False, True]), RandomSource(0), False)
    assert action == 7 and math.isnan(log_prob)


@pytest.mark.parametrize("strategy", ["thompson", "ucb", "softmax", "greedy"])
@pytest.mark.parametrize("explore", [True, False])
def test_scores_beyond_float32_choose_an_allowed_action_without_a_finite_log_probability(strategy: str, explore: bool) -> None:
    far, mask = np.array([3e38, -3e38], np.float32), np.array([False, True, True])
    policy = bandit(strategy, epsilon=0.1, means=20 * MEANS)
    with np.errstate(all="ignore"):
        for seed in range(20):
            action, _, log_prob = policy.act(far, mask, RandomSource(seed), explore)
            assert action in (6, 7) and not np.isfinite(log_prob)
            actions, _, log_probs = policy.act_batch(
                np.stack([CONTEXT, far]), np.stack([mask, mask]), RandomSource(seed), explore
            )
            assert set(actions.tolist()) <= {6, 7} and np.isfinite(log_probs).tolist() == [True, False]


def test_features() -> None:
    box = context_features(BoxSpace((2, 2), "<i4"), np.arange(8, dtype=np.int32).reshape(2, 2, 2), True)
    assert box.tolist() == [[0, 1, 2, 3, 1], [4, 5, 6, 7, 1]] and box.dtype == np.float32
    assert context_features(DiscreteSpace(3, start=2), np.array([2, 4]), False).tolist() == [[1, 0, 0], [0, 0, 1]]
    tree = DictSpace({"b": DiscreteSpace(2), "a": BoxSpace((1,))})
    given = {"a": np.array([[0.5], [2.0]], np.float32), "b": np.array([1, 0])}
    assert context_features(tree, given, True).tolist() == [[0.5, 0, 1, 1], [2, 1, 0, 1]]
    with pytest.raises(ObservationError, match="outside"):
        context_features(DiscreteSpace(3), np.array([3]), False)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a Discrete action space, not Box"):
        linear_bandit_spec(OBS, BoxSpace((2,)), "ucb")
    with pytest.raises(ConfigError, match=r"'thompson' or 'ucb' or .*did you mean 'thompson'"):
        linear_bandit_spec(OBS, ACTIONS, "thomson")
    with pytest.raises(ConfigError, match="samples: expected an integer from 1 to 65536"):
        linear_bandit_spec(OBS, ACTIONS, "ucb", samples=0)
    good = linear_bandit_spec(OBS, ACTIONS, "ucb")
    wrong = PolicySpec(OBS, ACTIONS, "linear_bandit", dict(good.document), (TensorSpec("means", (3, 3)),))
    with pytest.raises(ConfigError, match="tensors of a linear bandit do not match"):
        build_policy(wrong, PolicySnapshot(1, 2, 3, np.zeros(9, np.float32)))
    with pytest.raises(MaskError, match="forbids every action"):
        bandit("ucb").probabilities(CONTEXT[None], np.zeros((1, 3), bool))
