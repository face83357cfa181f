"""The heads of off-policy algorithms for bounded actions."""

import math
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies import RandomSource, build_policy
from rl4sys_zmq.policies.bounded import LEAST_STD, PYTHON_MAX_SIZE
from rl4sys_zmq.policies.layer_policy import read_network
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.testing import check_policy
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, PolicySpec

FOUR = BoxSpace((4,))
ARM = BoxSpace((3,), low=(-1.0, 0.0, -5.0), high=(2.0, 0.5, 5.0))
WIDE = BoxSpace((PYTHON_MAX_SIZE + 1,), low=-2.0, high=1.0)
HEADS = ["squashed_gaussian", "deterministic"]
SPACES = [
    ARM,
    WIDE,
    BoxSpace((2, 2), "<f8", -0.1, 0.1),
    BoxSpace((2,), "<i4", -3, 3),
    BoxSpace((1,), "<f2", 0.0, 1.0),
    BoxSpace((2,), low=(0.0, -1.0), high=(0.0, 1.0)),
]


def policy_of(spec: PolicySpec, seed: int = 0, scale: float = 0.5, **tensors: Any) -> Any:
    flat = np.random.default_rng(seed).normal(0.0, scale, spec.size).astype(np.float32)
    for name, value in tensors.items():
        spec.views(flat)[name][:] = value
    return build_policy(spec, PolicySnapshot(3, 4, 5, flat))


def of_outputs(space: BoxSpace, head: str, outputs: Any, **tensors: Any) -> Any:
    """Return a policy whose network returns the given numbers for any observation."""
    spec = mlp_spec(FOUR, space, head, ())
    given: dict[str, Any] = {"layers.0.weight": 0.0, "layers.0.bias": np.asarray(outputs, np.float32), **tensors}
    return policy_of(spec, **given)


def plays(policy: Any, count: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Return actions of many single calls and then of a batch, as columns."""
    rng = RandomSource(seed)
    singles = [policy.act(np.zeros(4, np.float32), None, rng, True) for _ in range(count)]
    batch = policy.act_batch(np.zeros((count, 4), np.float32), None, rng, True)
    return tuple(np.concatenate([np.array(one), many]) for one, many in zip(zip(*singles, strict=True), batch, strict=True))  # type: ignore[return-value]


def squashed_density(action: float, mean: float, std: float, low: float, high: float) -> float:
    """Return the log-density of one dimension, in float64, from the action alone."""
    centre, half = (high + low) / 2, (high - low) / 2
    squashed = (action - centre) / half
    sample = math.atanh(squashed)
    normal = -0.5 * ((sample - mean) / std) ** 2 - math.log(std * math.sqrt(2 * math.pi))
    return normal - math.log(1 - squashed**2) - math.log(half)


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("head", HEADS)
def test_they_keep_the_contract_of_a_policy(space: BoxSpace, head: str) -> None:
    check_policy(mlp_spec(FOUR, space, head, (8,)))
    check_policy(mlp_spec(BoxSpace((2, 2), "|u1", 0, 255), space, head, (8,), "relu", True))


@pytest.mark.parametrize("space", [ARM, WIDE], ids=["few", "many"])
def test_the_density_of_a_squashed_gaussian_is_exact(space: BoxSpace) -> None:
    rng = np.random.default_rng(1)
    means, log_stds = rng.normal(0, 0.7, space.size), rng.uniform(-2.0, 0.0, space.size)
    policy = of_outputs(space, "squashed_gaussian", [*means, *log_stds])
    raws, envs, log_probs = plays(policy, 50)
    for raw, env, log_prob in zip(raws, envs, log_probs, strict=True):
        bounds = zip(raw, means, np.exp(log_stds), space.low_array(), space.high_array(), strict=True)
        assert log_prob == pytest.approx(sum(squashed_density(*map(float, one)) for one in bounds), rel=1e-3, abs=1e-3)
        np.testing.assert_array_equal(raw, env)


def test_saturated_actions_stay_in_the_bounds_with_finite_densities() -> None:
    for outputs in ([30.0, -3000.0, 0.0, 2.0, -20.0, 90.0], [0.0, 0.0, 0.0, -1e30, 1e30, 0.0]):
        raws, envs, log_probs = plays(of_outputs(ARM, "squashed_gaussian", outputs), 20)
        assert np.isfinite(log_probs).all() and np.isfinite(raws).all()
        assert (envs >= ARM.low_array()).all() and (envs <= ARM.high_array()).all()


@pytest.mark.parametrize("limits", [(-20.0, 2.0), (-1.0, -0.5)])
def test_the_standard_deviation_is_clipped_to_the_range_of_the_document(limits: tuple[float, float]) -> None:
    least, most = limits
    spec = mlp_spec(FOUR, BoxSpace((2,), low=-1.0, high=1.0), "squashed_gaussian", (), log_std_range=(least, most))
    assert (spec.document["log_std_min"], spec.document["log_std_max"]) == limits
    given: dict[str, Any] = {"layers.0.weight": 0.0, "layers.0.bias": np.array([0.0, 0.0, -50.0, 50.0])}
    policy = policy_of(spec, **given)
    raws, _, _ = plays(policy, 4000)
    samples = np.arctanh(np.clip(raws, -1 + 1e-7, 1 - 1e-7))
    if most < 0:
        assert samples.std(axis=0) == pytest.approx(np.exp(limits), rel=0.05)
    else:
        assert samples[:, 0].std() < 1e-6 and samples[:, 1].std() > 4


@pytest.mark.parametrize("space", [ARM, WIDE], ids=["few", "many"])
def test_a_deterministic_policy_adds_noise_in_units_of_half_the_range(space: BoxSpace) -> None:
    policy = of_outputs(space, "deterministic", np.zeros(space.size), noise_std=0.1, epsilon=0.0)
    raws, envs, log_probs = plays(policy, 3000)
    low, high = space.low_array(), space.high_array()
    half = (high - low) / 2
    assert (raws.mean(axis=0) - (low + high) / 2) / half == pytest.approx(np.zeros(space.size), abs=0.01)
    assert raws.std(axis=0) / half == pytest.approx(np.full(space.size, 0.1), rel=0.05)
    for raw, log_prob in zip(raws[::100], log_probs[::100], strict=True):
        z = (raw - (low + high) / 2) / (0.1 * half)
        assert log_prob == pytest.approx((-0.5 * z**2 - np.log(0.1 * half * np.sqrt(2 * np.pi))).sum(), rel=1e-3, abs=1e-3)
    np.testing.assert_array_equal(raws, envs)


@pytest.mark.parametrize("space", [ARM, WIDE], ids=["few", "many"])
def test_epsilon_is_the_probability_of_a_uniform_action(space: BoxSpace) -> None:
    low, high = space.low_array(), space.high_array()
    everywhere = of_outputs(space, "deterministic", np.full(space.size, 9.0), noise_std=0.1, epsilon=1.0)
    raws, _, log_probs = plays(everywhere, 3000)
    assert ((raws - low) / (high - low)).mean(axis=0) == pytest.approx(np.full(space.size, 0.5), abs=0.03)
    assert ((raws - low) / (high - low)).std(axis=0) == pytest.approx(np.full(space.size, 12**-0.5), abs=0.03)
    assert log_probs == pytest.approx(np.full(6000, -np.log(high - low).sum()), abs=1e-4)

    mixed = of_outputs(space, "deterministic", np.zeros(space.size), noise_std=0.01, epsilon=0.25)
    raws, _, log_probs = plays(mixed, 3000)
    half, centre = (high - low) / 2, (high + low) / 2
    z = (raws - centre) / (0.01 * half)
    far = (np.abs(z) > 6).any(axis=1)
    assert far.mean() == pytest.approx(0.25, abs=0.03)
    normal = np.log(0.75) + (-0.5 * z**2 - np.log(0.01 * half * np.sqrt(2 * np.pi))).sum(axis=1)
    uniform = np.log(0.25) - np.log(high - low).sum()
    assert log_probs == pytest.approx(np.logaddexp(normal, uniform), rel=1e-3, abs=2e-3)


def test_without_noise_the_action_is_the_mode() -> None:
    policy = of_outputs(ARM, "deterministic", [0.5, -0.5, 0.0], noise_std=0.0, epsilon=0.0)
    raws, _, log_probs = plays(policy, 5)
    mode, _, log_prob = policy.act(np.zeros(4, np.float32), None, RandomSource(1), False)
    centre, half = (ARM.high_array() + ARM.low_array()) / 2, (ARM.high_array() - ARM.low_array()) / 2
    assert mode == pytest.approx(centre + half * np.tanh([0.5, -0.5, 0.0]), rel=1e-5)
    assert (raws == mode).all() and log_probs == pytest.approx(log_prob)
    assert log_prob == pytest.approx(-3 * math.log(LEAST_STD * math.sqrt(2 * math.pi)) - np.log(half).sum())


@pytest.mark.parametrize("head", HEADS)
def test_what_they_cannot_do_is_refused(head: str) -> None:
    with pytest.raises(ConfigError, match="needs a bounded Box of actions"):
        mlp_spec(FOUR, BoxSpace((2,)), head)
    with pytest.raises(ConfigError, match="cannot act in"):
        mlp_spec(FOUR, DiscreteSpace(2), head)
    with pytest.raises(ConfigError, match="squash has no meaning"):
        mlp_spec(FOUR, ARM, head, squash="tanh")


def test_the_range_of_the_standard_deviation_belongs_to_one_head() -> None:
    with pytest.raises(ConfigError, match="log_std_min has no meaning for a gaussian head"):
        mlp_spec(FOUR, ARM, "gaussian", log_std_range=(-5.0, 2.0))
    with pytest.raises(ConfigError, match="log_std_min 1 is above log_std_max 0"):
        mlp_spec(FOUR, ARM, "squashed_gaussian", log_std_range=(1.0, 0.0))
    plain = mlp_spec(FOUR, ARM, "gaussian")
    assert "log_std_min" not in plain.document and read_network(plain)[0].log_std_min == -20.0
