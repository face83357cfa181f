"""The policy that scores jobs: the contract of policies, its torch form, and PPO with it."""

import math

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from job_scheduling.features import FEATURES, USED, WINDOW
from job_scheduling.network import JobScorer
from job_scheduling.plugin import ScorerOptions
from job_scheduling.policy import ACTION_SPACE, KIND, OBSERVATION_SPACE, ScoringPolicy, scoring_spec
from rl4sys_zmq.algorithms import ALGORITHMS, make_algorithm
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.testing import check_algorithm, check_policy
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot

SPEC = scoring_spec(OBSERVATION_SPACE, ACTION_SPACE, (12, 6))


def make_network(seed: int = 1) -> JobScorer:
    network = JobScorer(ScorerOptions(hidden_sizes=(12, 6), value_units=5), SPEC)
    network.initialise(torch.Generator().manual_seed(seed), (1.0, 1.0))
    return network


def make_observations(count: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    observations = rng.random((count, WINDOW, len(FEATURES))).astype(np.float32)
    for row, jobs in enumerate(rng.integers(1, WINDOW, count)):
        observations[row, jobs:] = 0.0
    return observations


def test_the_numpy_form_is_the_torch_form() -> None:
    network, observations = make_network(), make_observations(6)
    flat = network.flat[network.parts[0]].detach().numpy()
    policy = ScoringPolicy.of(SPEC, PolicySnapshot(0, 0, 0, flat))
    scores, values = network(torch.from_numpy(observations.reshape(6, -1)))
    assert scores.detach().numpy() == pytest.approx(policy.scores(observations), abs=1e-4)
    assert network.one(0, torch.from_numpy(observations.reshape(6, -1))).equal(scores)
    assert network.one(1, torch.from_numpy(observations.reshape(6, -1))).equal(values)
    for row in range(6):
        assert policy.scores(observations[row]) == pytest.approx(policy.scores(observations)[row], abs=1e-4)


def one_by_one(flat: torch.Tensor, observation: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the scores of the jobs of an observation ``[jobs, features]``, each by itself, and the value."""
    shapes = [tensor.shape for tensor in SPEC.tensors] + [(5, 8), (5,), (5, 5), (5,), (1, 5), (1,)]
    parts = flat.split([math.prod(shape) for shape in shapes])
    linear, w0, b0, w1, b1, out, v0, c0, v1, c1, v2, c2 = (part.view(s) for part, s in zip(parts, shapes, strict=True))
    scores, total = [], torch.zeros(5)
    for job in observation:
        if job[USED] > 0:
            hidden = torch.relu(w1 @ torch.relu(w0 @ job + b0) + b1)
            scores.append(20 * (linear @ job + out @ hidden))
            total = total + torch.relu(v0 @ job + c0)
    return scores, v2 @ torch.relu(v1 @ (total / 128) + c1) + c2


def test_the_networks_are_those_of_each_job_by_itself() -> None:
    network, observations = make_network(), torch.from_numpy(make_observations(2))
    flat = network.flat.detach().clone().requires_grad_()
    scores, values = network(observations.view(2, -1))
    network_loss, twin_loss = scores.logsumexp(1).sum() + values.sum(), torch.zeros(())
    for row in range(2):
        each, value = one_by_one(flat, observations[row])
        assert scores[row, : len(each)].tolist() == pytest.approx(torch.stack(each).tolist(), rel=1e-4, abs=1e-3)
        assert values[row].item() == pytest.approx(value.item(), rel=1e-4, abs=1e-5)
        missing = torch.zeros(WINDOW - len(each))
        twin_loss = twin_loss + torch.cat([torch.stack(each), missing]).logsumexp(0) + value.sum()
    expected = torch.autograd.grad(twin_loss, flat)[0]
    assert network.gradient(network_loss).numpy() == pytest.approx(expected.numpy(), rel=1e-3, abs=1e-3)
    only = network.gradient(network.one(1, observations.view(2, -1)).sum(), 1)
    assert not only[network.parts[0]].any() and only[network.parts[1]].any()


@pytest.mark.parametrize("preferred", ["requested time", "outlook"])
def test_an_untrained_policy_has_a_preference(preferred: str) -> None:
    options = ScorerOptions(preferred=preferred)
    network = JobScorer(options, scoring_spec(OBSERVATION_SPACE, ACTION_SPACE, options.hidden_sizes))
    network.initialise(torch.Generator().manual_seed(1), (0.01, 1.0))
    observations = make_observations(1)
    scores = network.one(0, torch.from_numpy(observations.reshape(1, -1)))[0].detach().numpy()
    used = observations[0, :, USED] > 0
    first = observations[0, :, FEATURES.index(preferred)]
    assert scores[used].argmax() == first[used].argmin()


def test_the_policy_keeps_the_contract() -> None:
    check_policy(scoring_spec(BoxSpace((5, 8), low=-1.0, high=2.0), DiscreteSpace(5, start=2), (4,)))


PARAMETERS = {
    "network": {"kind": "job_scorer", "hidden_sizes": [4], "value_units": 4},
    "normalise_observations": False,
    "steps_per_update": 16,
    "minibatch_size": 8,
    "update_epochs": 2,
}


def test_ppo_with_it_keeps_the_contract() -> None:
    check_algorithm(
        ALGORITHMS.get("PPO"),
        parameters=PARAMETERS,
        observation_space=BoxSpace((5, 8), low=-1.0, high=2.0),
        action_space=DiscreteSpace(5),
    )


def test_other_spaces_and_parameters_are_refused() -> None:
    assert KIND == "job_scorer"
    with pytest.raises(ConfigError, match=r"observations of the shape \(jobs, 8\)"):
        scoring_spec(BoxSpace((4,)), DiscreteSpace(2), (4,))
    with pytest.raises(ConfigError, match=r"observations of the shape \(jobs, 8\)"):
        scoring_spec(OBSERVATION_SPACE, DiscreteSpace(2), (4,))
    with pytest.raises(ConfigError, match="needs a hidden layer"):
        scoring_spec(OBSERVATION_SPACE, ACTION_SPACE, ())
    with pytest.raises(ConfigError, match="normalise_observations: false"):
        make_algorithm("PPO", OBSERVATION_SPACE, ACTION_SPACE, {"network": "job_scorer"}, 1)
