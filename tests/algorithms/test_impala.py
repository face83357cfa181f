"""Tests of IMPALA: an update is one gradient step on the losses of the paper, with weights for the age of the data."""

from typing import Any

import numpy as np
import pytest
import torch

from rl4sys_zmq.algorithms.onpolicy.impala import IMPALA
from rl4sys_zmq.testing.check_algorithm import _RandomEnvironment
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment

OBS, ACT, ARM = BoxSpace((3,)), DiscreteSpace(4), BoxSpace((2,), low=-1.0, high=1.0)
PLAIN: dict[str, Any] = {
    "hidden_sizes": [8, 8], "normalise_observations": False, "normalise_rewards": False, "max_grad_norm": None, "gamma": 0.9,
    "learning_rate": 1e-2,
}  # fmt: skip


def old_data(actions: Any, steps: int = 96) -> list[Segment]:
    """Return segments with actions of another policy, so that the weights differ from 1."""
    algorithm = IMPALA(OBS, actions, {**PLAIN, "log_std_init": 0.3}, 5)
    algorithm._network.flat.mul_(3.0)
    world = _RandomEnvironment(algorithm, 1)
    segments: list[Segment] = []
    while sum(s.steps for s in segments) < steps:
        segments.append(world.segment(12))
    return segments


def log_probs_of(algorithm: IMPALA, segment: Segment) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of the actions, the values of all observations, and the entropy of each distribution."""
    outputs, values = algorithm._network(torch.from_numpy(np.array(segment.observations)))
    outputs = outputs[: segment.steps]
    if algorithm._network.extras is None:
        head: Any = torch.distributions.Categorical(logits=outputs)
        return head.log_prob(torch.from_numpy(np.array(segment.actions))), values.squeeze(1), head.entropy()
    head = torch.distributions.Normal(outputs, algorithm._network.extras.exp())
    return head.log_prob(torch.from_numpy(np.array(segment.actions))).sum(1), values.squeeze(1), head.entropy().sum(1)


def slow_losses(algorithm: IMPALA, segments: list[Segment], rho_clip: float, c_clip: float, corrects: bool) -> torch.Tensor:
    """Return the loss of Espeholt et al. 2018, equation 1 and section 4.2, step by step, for whole episodes in `segments`."""
    policy, value, entropy, count = torch.zeros(()), torch.zeros(()), torch.zeros(()), 0
    for one in segments:
        log_probs, estimates, entropies = log_probs_of(algorithm, one)
        v = [*estimates.tolist(), 0.0]
        w = (log_probs.detach() - torch.from_numpy(np.array(one.log_probs))).exp().tolist() if corrects else [1.0] * one.steps
        targets = v[: one.steps + 1]
        for t in reversed(range(one.steps)):
            delta = min(rho_clip, w[t]) * (float(one.rewards[t]) + 0.9 * v[t + 1] - v[t])
            following = targets[t + 1] - v[t + 1] if t + 1 < one.steps else 0.0
            targets[t] = v[t] + delta + 0.9 * min(c_clip, w[t]) * following
        for t in range(one.steps):
            following = targets[t + 1] if t + 1 < one.steps else v[t + 1]
            advantage = float(one.rewards[t]) + 0.9 * following - v[t]
            policy = policy - min(rho_clip, w[t]) * log_probs[t] * advantage
            value = value + 0.5 * (estimates[t] - targets[t]) ** 2
            entropy = entropy + entropies[t]
        count += one.steps
    return (policy + 0.5 * value - 0.02 * entropy) / count


@pytest.mark.parametrize("actions", [ACT, ARM], ids=["discrete", "box"])
@pytest.mark.parametrize(("rho_clip", "c_clip", "corrects"), [(1.0, 1.0, True), (2.0, 0.5, True), (1.0, 1.0, False)])
@pytest.mark.parametrize("rms_prop", [False, True], ids=["adam", "rms_prop"])
def test_an_update_is_a_step_along_the_papers_gradient(
    actions: Any, rho_clip: float, c_clip: float, corrects: bool, rms_prop: bool
) -> None:
    given = {**PLAIN, "ent_coef": 0.02, "rho_clip": rho_clip, "c_clip": c_clip, "vtrace": corrects, "rms_prop": rms_prop}
    algorithm, twin = IMPALA(OBS, actions, given, 0), IMPALA(OBS, actions, given, 0)
    segments = [one for one in old_data(actions) if one.segment_index == 0]
    loss = slow_losses(twin, segments, rho_clip, c_clip, corrects)
    free = torch.nn.Parameter(twin._network.flat.detach().clone())
    free.grad = twin._network.gradient(loss).clone()
    (torch.optim.RMSprop if rms_prop else torch.optim.Adam)([free], lr=1e-2, eps=1e-5).step()
    for one in segments:
        algorithm.observe(one)
    metrics = algorithm.update(partial=True)
    assert metrics is not None and all(np.isfinite(value) for value in metrics.values())
    assert (metrics["losses/mean_weight"] == 1.0) is not corrects
    torch.testing.assert_close(algorithm._network.flat.detach(), free.detach(), atol=2e-6, rtol=1e-4)
    assert algorithm._optimizer.steps == [1, 1]


def test_data_of_any_age_are_used_and_the_defaults_are_impalas() -> None:
    algorithm = IMPALA(OBS, ACT, {}, 0)
    assert algorithm.max_policy_lag is None and algorithm.kind == "onpolicy"
    assert algorithm.demand() == 256 and algorithm.rollout_length == 32
