"""Advantages and targets against twins that loop over time as the papers write them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from rl4sys_zmq.algorithms.onpolicy.rollout import discounted_sums, explained_variance, vtrace

Floats = NDArray[np.float64]
Run = tuple[Floats, Floats, Floats, NDArray[np.bool_], Floats, float, float]
"""Rewards, values, values of the next states, marks of the cuts (False), ratios, gamma and lambda."""


def slow_gae(
    rewards: Floats, values: Floats, next_values: Floats, continues: NDArray[np.bool_], gamma: float, lam: float
) -> Floats:
    advantages = np.zeros(len(rewards))
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * next_values[t] - values[t]
        advantages[t] = delta + (gamma * lam * advantages[t + 1] if continues[t] and t + 1 < len(rewards) else 0.0)
    return advantages


def slow_vtrace_targets(
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    continues: NDArray[np.bool_],
    rhos: Floats,
    gamma: float,
    lam: float,
    limits: tuple[float, float] = (1.0, 1.0),
) -> Floats:
    """Return the targets of Espeholt et al. 2018, equation 1: sums over all later steps of a run. The limits are ρ̄ and c̄."""
    targets = np.zeros(len(rewards))
    for s in range(len(rewards)):
        total, product = values[s], 1.0
        for t in range(s, len(rewards)):
            delta = min(limits[0], rhos[t]) * (rewards[t] + gamma * next_values[t] - values[t])
            total += gamma ** (t - s) * product * delta
            product *= lam * min(limits[1], rhos[t])
            if not continues[t]:
                break
        targets[s] = total
    return targets


@st.composite
def batches(draw: st.DrawFn) -> Run:
    steps = draw(st.integers(1, 40))
    numbers = hnp.arrays(np.float64, steps, elements=st.floats(-10, 10))
    continues = draw(hnp.arrays(np.bool_, steps))
    continues[-1] = False
    rhos = draw(hnp.arrays(np.float64, steps, elements=st.floats(0, 3)))
    gamma, lam = draw(st.floats(0, 1)), draw(st.floats(0, 1))
    rewards, values, next_values = draw(numbers), draw(numbers), draw(numbers)
    next_values[:-1] = np.where(continues[:-1], values[1:], next_values[:-1])  # one state has one value
    return rewards, values, next_values, continues, rhos, gamma, lam


@given(batches())
@settings(max_examples=50, deadline=None)
def test_gae_is_vtrace_with_all_weights_one(batch: Run) -> None:
    rewards, values, next_values, continues, _, gamma, lam = batch
    advantages, targets = vtrace(rewards, values, next_values, continues, np.ones(len(rewards)), gamma=gamma, lam=lam)
    expected = slow_gae(rewards, values, next_values, continues, gamma, lam)
    np.testing.assert_allclose(advantages, expected, atol=1e-8)
    np.testing.assert_allclose(targets, expected + values, atol=1e-8)


@given(batches(), st.sampled_from([(1.0, 1.0), (2.0, 0.5), (0.7, 1.5)]))
@settings(max_examples=50, deadline=None)
def test_vtrace_targets_are_the_papers_sum(batch: Run, limits: tuple[float, float]) -> None:
    rewards, values, next_values, continues, rhos, gamma, lam = batch
    advantages, targets = vtrace(
        rewards, values, next_values, continues, rhos, gamma=gamma, lam=lam, rho_clip=limits[0], c_clip=limits[1]
    )
    expected = slow_vtrace_targets(rewards, values, next_values, continues, rhos, gamma, lam, limits)
    np.testing.assert_allclose(targets, expected, atol=1e-8)
    for t in range(len(rewards)):
        following = lam * (expected[t + 1] - next_values[t]) if continues[t] else 0.0
        assert advantages[t] == pytest.approx(rewards[t] + gamma * (next_values[t] + following) - values[t], abs=1e-8)


@given(st.integers(1, 70), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_discounted_sums_solve_the_recurrence(steps: int, seed: int, reverse: bool) -> None:
    rng = np.random.default_rng(seed)
    x, decay = rng.normal(size=steps), rng.uniform(0, 1, steps) * (rng.random(steps) < 0.9)
    y = discounted_sums(x, decay, reverse=reverse)
    order = range(steps) if reverse else reversed(range(steps))
    after, expected = 0.0, np.zeros(steps)
    for t in order:
        after = expected[t] = x[t] + decay[t] * after
    np.testing.assert_allclose(y, expected, atol=1e-10)


def test_nothing_leaks_across_a_cut() -> None:
    zeros = np.zeros(4)
    advantages, _ = vtrace(
        np.array([0.0, 0, 7, 7]), zeros, zeros, np.array([True, False, True, False]), np.ones(4), gamma=1, lam=1
    )
    assert advantages.tolist() == [0.0, 0.0, 14.0, 7.0]


def test_inputs_are_left_alone() -> None:
    x, decay = np.ones(5), np.full(5, 0.5)
    discounted_sums(x, decay)
    assert x.tolist() == [1.0] * 5 and decay.tolist() == [0.5] * 5


def test_explained_variance() -> None:
    targets = np.array([1.0, 2.0, 3.0])
    assert explained_variance(targets, targets) == 1.0
    assert explained_variance(np.zeros(3), targets) == 0.0
    assert explained_variance(targets, np.ones(3)) == 0.0
