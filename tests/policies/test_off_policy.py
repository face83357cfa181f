"""Estimates of a policy's value from another policy's decisions: slow twins, a known value, and invalid input."""

import math
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies import off_policy_value


def test_the_estimates_are_those_of_the_formulas() -> None:
    rewards, logged, wanted = [1.0, 0.0, 3.0, 2.0], [0.5, 0.25, 0.1, 1.0], [0.2, 0.5, 0.3, 0.0]
    found = off_policy_value(rewards, np.log(logged), wanted)
    weights = [w / p for w, p in zip(wanted, logged, strict=True)]
    products = [w * r for w, r in zip(weights, rewards, strict=True)]
    mean = sum(products) / 4
    assert found.ips == pytest.approx(mean)
    assert found.ips_error == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in products) / 3 / 4))
    assert found.snips == pytest.approx(sum(products) / sum(weights))
    assert found.effective_decisions == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights))
    assert found.decisions == 4
    cut = off_policy_value(rewards, np.log(logged), wanted, max_weight=1.0)
    assert cut.ips == pytest.approx((0.4 * 1.0 + 1.0 * 0.0 + 1.0 * 3.0) / 4)


def test_it_finds_the_value_of_a_policy_that_was_never_played() -> None:
    """Uniform decisions among three actions with known mean rewards give the value of the policy that takes the best action."""
    rng = np.random.default_rng(0)
    actions = rng.integers(3, size=20_000)
    rewards = np.array([0.1, 0.4, 0.9])[actions] + rng.normal(0.0, 0.1, actions.size)
    found = off_policy_value(rewards, np.full(actions.size, -math.log(3)), (actions == 2).astype(float))
    assert found.ips == pytest.approx(0.9, abs=5 * found.ips_error)
    assert found.snips == pytest.approx(0.9, abs=0.01)
    assert found.effective_decisions == pytest.approx((actions == 2).sum())


def test_edges() -> None:
    one = off_policy_value([2.0], [math.log(0.5)], [0.5])
    assert one.ips == one.snips == 2.0 and math.isnan(one.ips_error)
    never = off_policy_value([2.0, 1.0], [0.0, 0.0], [0.0, 0.0])
    assert never.ips == 0.0 and math.isnan(never.snips) and never.effective_decisions == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], []), r"one length of at least 1, not rewards \(0,\)"),
        (([1.0], [0.0, 0.0], [1.0]), r"log_probs \(2,\)"),
        (([1.0, math.nan], [0.0, 0.0], [1.0, 1.0]), r"rewards\[1\] is nan"),
        (([1.0], [0.5], [1.0]), "no probabilities; expected logarithms of at most 0"),
        (([1.0], [0.0], [1.5]), "no probabilities"),
    ],
)
def test_bad_input_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        off_policy_value(*arguments)


def test_a_bad_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_weight is 0; expected a number above 0"):
        off_policy_value([1.0], [0.0], [1.0], max_weight=0)
