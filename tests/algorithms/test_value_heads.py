"""Tests of DQN's dueling, categorical and quantile heads against slow twins of their papers, and of the published policy."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from harness.rl4sys_blocks import learner_block
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4sys_zmq.algorithms import ALGORITHMS, make_algorithm
from rl4sys_zmq.algorithms.offpolicy.dqn_parameters import DQNParameters
from rl4sys_zmq.algorithms.offpolicy.value_heads import CategoricalHead, QuantileHead, ScalarHead, expand, squash
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies import build_policy
from rl4sys_zmq.testing import check_algorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot

from .test_resume import segments, updates

OBS, FOUR = BoxSpace((3,)), DiscreteSpace(4, 1)
SMALL: dict[str, Any] = {
    "hidden_sizes": [8], "batch_size": 16, "learning_starts": 20, "train_frequency": 8, "buffer_size": 150, "learning_rate": 1e-2,
    "initialisation": "uniform", "target_net_update_frequency": 3, "max_grad_norm": None,
}  # fmt: skip
HEADS: dict[str, dict[str, Any]] = {
    "dueling": {"dueling": True},
    "categorical": {"distribution": "categorical", "atoms": 7, "v_min": -5.0, "v_max": 5.0},
    "quantile": {"distribution": "quantile", "quantiles": 5},
    "dueling categorical": {"dueling": True, "distribution": "categorical", "atoms": 6, "v_min": -5.0, "v_max": 5.0},
    "dueling quantile": {"dueling": True, "distribution": "quantile", "quantiles": 4, "prioritised": True},
    "prioritised categorical": {"distribution": "categorical", "prioritised": True},
}


def make(case: str, seed: int = 0, **parameters: Any) -> Any:
    return make_algorithm("DQN", OBS, FOUR, {**SMALL, **HEADS[case], **parameters}, seed)


def tensor(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.tensor(3 * rng.normal(size=shape), dtype=torch.float32)


def test_rescaled_targets_are_those_of_the_paper() -> None:
    """The targets are those of Pohlen et al. 2018: h(r + γ h⁻¹(q)). The twin finds h⁻¹ by bisection."""
    rng = np.random.default_rng(0)
    returns, successors = 100.0 * tensor(rng, 20), 4.0 * tensor(rng, 20, 1)
    discounts = torch.tensor(rng.choice([0.0, 0.9], 20), dtype=torch.float32)
    head = ScalarHead(DQNParameters(huber_delta=1.0, value_rescaling=True), 3)

    def h(x: float) -> float:
        return math.copysign(math.sqrt(abs(x) + 1.0) - 1.0, x) + 1e-3 * x

    def inverse(y: float) -> float:
        low, high = -1e6, 1e6
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if h(middle) < y else (low, middle)
        return low

    slow = [h(float(r) + float(d) * inverse(float(q))) for r, d, q in zip(returns, discounts, successors.squeeze(1), strict=True)]
    np.testing.assert_allclose(head.targets(returns, discounts, successors).squeeze(1).numpy(), slow, rtol=1e-5)
    wide = torch.tensor([-1e6, -3.0, -1e-3, 0.0, 1e-3, 0.5, 300.0, 1e6])
    torch.testing.assert_close(expand(squash(wide)), wide, rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match="value_rescaling: it is for distribution none, not quantile"):
        make("quantile", value_rescaling=True)


@given(atoms=st.integers(2, 9), low=st.floats(-5, 1), span=st.floats(0.5, 9), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_projection_is_that_of_the_paper(atoms: int, low: float, span: float, seed: int) -> None:
    """The twin is Bellemare et al. 2017, algorithm 1, atom by atom."""
    rng = np.random.default_rng(seed)
    head = CategoricalHead(DQNParameters(atoms=atoms, v_min=low, v_max=low + span), 3)
    returns, logits = tensor(rng, 6), tensor(rng, 6, atoms)
    discounts = torch.tensor(rng.choice([0.0, 0.9, 1.0], 6), dtype=torch.float32)
    found = head.targets(returns, discounts, logits)
    spacing = span / (atoms - 1)
    for row in range(6):
        weights = np.exp(logits[row].double().numpy())
        slow = [0.0] * atoms
        for j in range(atoms):
            moved = min(max(float(returns[row]) + float(discounts[row]) * (low + j * spacing), low), low + span)
            place = (moved - low) / spacing
            for i in range(atoms):
                slow[i] += weights[j] / weights.sum() * max(0.0, 1.0 - abs(place - i))
        np.testing.assert_allclose(found[row].numpy(), slow, atol=2e-4)
    np.testing.assert_allclose(found.sum(1).numpy(), 1.0, atol=1e-5)


def test_the_categorical_loss_is_the_cross_entropy_and_its_error_the_divergence() -> None:
    rng = np.random.default_rng(0)
    head = CategoricalHead(DQNParameters(atoms=4, v_min=0.0, v_max=3.0), 3)
    logits, targets = tensor(rng, 5, 4), tensor(rng, 5, 4).softmax(1)
    targets[0] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    losses, errors, values = head.losses(logits, targets), head.errors(logits, targets), head.values(logits)
    for row in range(5):
        weights = [math.exp(float(x)) for x in logits[row]]
        p = [w / sum(weights) for w in weights]
        m = [float(x) for x in targets[row]]
        assert float(losses[row]) == pytest.approx(-sum(a * math.log(b) for a, b in zip(m, p, strict=True)), rel=1e-4)
        divergence = sum(a * math.log(a / b) for a, b in zip(m, p, strict=True) if a > 0)
        assert float(errors[row]) == pytest.approx(divergence, rel=1e-4, abs=1e-5)
        assert float(values[row]) == pytest.approx(sum(k * b for k, b in enumerate(p)), rel=1e-4)


@pytest.mark.parametrize("kappa", [0.5, 1.0, 20.0])
def test_the_quantile_loss_is_that_of_the_paper(kappa: float) -> None:
    """The twin is Dabney et al. 2018, equations 9 and 10, pair by pair."""
    rng = np.random.default_rng(1)
    head = QuantileHead(DQNParameters(quantiles=4, kappa=kappa), 3)
    estimates, targets = tensor(rng, 5, 4), tensor(rng, 5, 4)
    losses = head.losses(estimates, targets)
    for row in range(5):
        total = 0.0
        for i in range(4):
            for j in range(4):
                u = float(targets[row, j] - estimates[row, i])
                huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                total += abs((2 * i + 1) / 8 - (u < 0)) * huber / kappa / 4
        assert float(losses[row]) == pytest.approx(total, rel=1e-4)
    moved = head.targets(torch.tensor([2.0]), torch.tensor([0.5]), torch.tensor([[0.0, 2.0, 4.0, 8.0]]))
    assert moved.tolist() == [[2.0, 3.0, 4.0, 6.0]]
    assert head.values(moved).tolist() == [3.75] and head.errors(moved, moved + 1.0).tolist() == [-1.0]


def test_dueling_is_that_of_the_paper() -> None:
    """The values are those of Wang et al. 2016, equation 9."""
    head = ScalarHead(DQNParameters(dueling=True, huber_delta=1.0), 3)
    assert head.outputs == 4
    found = head.values(head.estimates(torch.tensor([[1.0, 2.0, 6.0, 10.0]])))
    assert found.tolist() == [[10.0 + a - 3.0 for a in (1.0, 2.0, 6.0)]]


@pytest.mark.parametrize("case", HEADS)
def test_they_keep_the_contract(case: str) -> None:
    parameters = {**SMALL, **HEADS[case], "learning_starts": 8, "batch_size": 8, "rollout_length": 8}
    check_algorithm(ALGORITHMS.get("DQN"), observation_space=OBS, action_space=FOUR, parameters=parameters)


@pytest.mark.parametrize("case", HEADS)
def test_an_actor_gets_the_values_of_the_network(case: str) -> None:
    algorithm = make(case)
    updates(algorithm, segments(FOUR, 3), 5)
    spec = algorithm.spec()
    flat, _ = spec.flatten(algorithm.snapshot())
    policy: Any = build_policy(spec, PolicySnapshot(1, 0, 0, flat))
    observations = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    outputs = policy._network.batch(observations)
    values = outputs if policy._head._atoms is None else policy._head.means(outputs)
    head = algorithm._head
    own = head.values(head.estimates(algorithm._online(torch.from_numpy(observations))[0])).detach()
    np.testing.assert_allclose(values, own.numpy(), rtol=1e-4, atol=1e-4)


def test_atoms_without_a_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="v_min: 10 is not below v_max 10"):
        make("categorical", v_min=10.0, v_max=10.0)


def test_c51_is_dqn_with_the_defaults_of_cleanrl() -> None:
    algorithm: Any = make_algorithm("C51", OBS, FOUR, {}, 0)
    p = algorithm.parameters
    assert (p.distribution, p.atoms, p.v_min, p.v_max, p.double_q, p.n_step) == ("categorical", 101, -100.0, 100.0, False, 1)
    assert (p.learning_rate, p.buffer_size, p.learning_starts, p.train_frequency) == (2.5e-4, 10_000, 10_000, 10)
    assert (p.target_every, p.target_steps) == (None, 500)
    assert algorithm.spec().document["head"] == "q_distribution"
    assert ALGORITHMS.get("c51").plan(OBS, FOUR, {}) == algorithm.spec()  # type: ignore[misc]
    with pytest.raises(ConfigError, match="C51 needs a Discrete action space"):
        make_algorithm("C51", OBS, BoxSpace((2,)), {}, 0)


def test_rl4sys_block_of_c51_is_read() -> None:
    p: Any = make_algorithm("C51", OBS, FOUR, learner_block("C51"), 0).parameters  # type: ignore[attr-defined]
    assert (p.atoms, p.v_min, p.v_max, p.traj_per_epoch, p.gradient_steps, p.target_every) == (51, -500.0, 1000.0, 5, 50, 2500)
    assert (p.epsilon_at(1000), p.learning_rate) == (pytest.approx(0.999**1000), 1e-5)
