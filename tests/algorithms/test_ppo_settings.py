"""Tests of A2C, A3C, REINFORCE and RPO: PPO with their settings agrees with their papers and with RL4Sys's programs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from harness.rl4sys_blocks import learner_block
from torch import Tensor

from rl4sys_zmq.algorithms import ALGORITHMS, make_algorithm
from rl4sys_zmq.algorithms.action_distributions import ActionDistributionBuilder
from rl4sys_zmq.algorithms.onpolicy.ppo import A2C, A3C, PPO, REINFORCE, RPO
from rl4sys_zmq.algorithms.onpolicy.ppo_parameters import PPOParameters
from rl4sys_zmq.algorithms.onpolicy.rollout import join_segments
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import rl4sys_notes
from rl4sys_zmq.testing.check_algorithm import _RandomEnvironment
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment

OBS, ACT, ARM = BoxSpace((3,)), DiscreteSpace(4), BoxSpace((2,), low=-1.0, high=1.0)
PLAIN: dict[str, Any] = {"hidden_sizes": [8, 8], "normalise_observations": False, "normalise_rewards": False}


def play(algorithm: Any, steps: int, seed: int = 0) -> list[Segment]:
    """Return segments with actions of the algorithm's own policy."""
    world = _RandomEnvironment(algorithm, seed)
    segments: list[Segment] = []
    while sum(s.steps for s in segments) < steps:
        segments.append(world.segment(min(8, algorithm.rollout_length)))
    return segments


def updated(algorithm: Any, segments: list[Segment]) -> Mapping[str, float]:
    for segment in segments:
        algorithm.observe(segment)
    metrics: Mapping[str, float] | None = algorithm.update(partial=True)
    assert metrics is not None
    return metrics


def columns_of(algorithm: PPO, segments: list[Segment]) -> Any:
    actions = ActionDistributionBuilder(algorithm.spec().action_space)
    rollout = join_segments([(s, False) for s in segments], algorithm._observation_space, actions)
    return algorithm._prepare(rollout, 0.2)[0]


def torch_step(algorithm: PPO, where: slice, loss: Tensor, rate: float, *, rms_prop: bool = False) -> Tensor:
    """Return the parameters after one step of torch's Adam, or of its RMSProp."""
    free = torch.nn.Parameter(algorithm._network.flat[where].detach().clone())
    free.grad = algorithm._network.gradient(loss)[where].clone()
    optimizer = torch.optim.RMSprop([free], rate, eps=1e-5) if rms_prop else torch.optim.Adam([free], rate, eps=1e-5)
    optimizer.step()
    return free.detach()


@pytest.mark.parametrize("kind", [A2C, A3C])
def test_a2c_is_one_step_along_the_policy_gradient(kind: type[PPO]) -> None:
    """The update is that of Mnih et al. 2016 with RMSProp: no ratio, no clipping, the whole batch once."""
    given = {**PLAIN, "gamma": 0.9, "ent_coef": 0.02, "max_grad_norm": None}
    algorithm, twin = kind(OBS, ACT, given, 0), kind(OBS, ACT, given, 0)
    segments = play(algorithm, 80)
    columns = columns_of(twin, segments)
    outputs, estimates = twin._network(columns.features)
    head = torch.distributions.Categorical(logits=outputs)
    policy = -(head.log_prob(columns.actions) * (columns.targets - columns.values)).mean() - 0.02 * head.entropy().mean()
    loss = policy + 0.5 * 0.5 * ((estimates.squeeze(1) - columns.targets) ** 2).mean()
    expected = torch_step(twin, slice(None), loss, 7e-4, rms_prop=True)
    updated(algorithm, segments)
    torch.testing.assert_close(algorithm._network.flat.detach(), expected, atol=1e-6, rtol=1e-5)
    assert algorithm._optimizer.steps == [1, 1]


def test_data_of_an_older_version_are_weighted_by_their_ratio_without_a_limit() -> None:
    given = {**PLAIN, "max_grad_norm": None, "rms_prop": False, "ent_coef": 0.0}
    algorithm, twin = A3C(OBS, ACT, given, 0), A3C(OBS, ACT, given, 0)
    segments = play(PPO(OBS, ACT, PLAIN, 7), 80)
    for one in segments:
        one.log_probs.flags.writeable = True
        one.log_probs[:] -= 1.0  # the actor's policy was almost three times less likely to choose these actions
    columns = columns_of(twin, segments)
    outputs, estimates = twin._network(columns.features)
    log_probs = torch.distributions.Categorical(logits=outputs).log_prob(columns.actions)
    weights = (log_probs - columns.log_probs).exp().detach()
    assert weights.min() > 1.5
    policy = -(weights * log_probs * (columns.targets - columns.values)).mean()
    loss = policy + 0.5 * 0.5 * ((estimates.squeeze(1) - columns.targets) ** 2).mean()
    expected = torch_step(twin, slice(None), loss, 7e-4)
    updated(algorithm, segments)
    torch.testing.assert_close(algorithm._network.flat.detach(), expected, atol=1e-6, rtol=1e-5)


def whole_episodes(algorithm: Any) -> list[Segment]:
    found = [s for s in play(algorithm, 400) if s.ended and s.segment_index == 0]
    assert len(found) > 3
    return found


def discounted_returns(segments: list[Segment], gamma: float) -> Tensor:
    """Return the discounted return from each step on, without a value after the last step."""
    returns: list[float] = []
    for one in segments:
        following, episode = 0.0, list[float]()
        for reward in reversed(one.rewards.tolist()):
            following = reward + gamma * following
            episode.append(following)
        returns += reversed(episode)
    return torch.tensor(returns)


def test_reinforce_without_a_baseline_learns_from_discounted_returns() -> None:
    given = {**PLAIN, "gamma": 0.9, "learning_rate": 1e-2}
    algorithm, twin = REINFORCE(OBS, ACT, given, 0), REINFORCE(OBS, ACT, given, 0)
    segments = whole_episodes(algorithm)
    columns, returns = columns_of(twin, segments), discounted_returns(segments, 0.9)
    advantages = (returns - returns.mean()) / returns.std(unbiased=False)
    torch.testing.assert_close(columns.advantages, advantages, atol=1e-5, rtol=1e-5)
    log_probs = torch.distributions.Categorical(logits=twin._network(columns.features)[0]).log_prob(columns.actions)
    policy, value = twin._network.parts
    expected = torch_step(twin, policy, -(log_probs * advantages).mean(), 1e-2)
    before = algorithm._network.flat.clone()
    metrics = updated(algorithm, segments)
    torch.testing.assert_close(algorithm._network.flat[policy].detach(), expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(algorithm._network.flat[value], before[value]), "the value network is not trained"
    assert algorithm._optimizer.steps == [1, 0] and "losses/value_loss" not in metrics


def test_reinforce_with_a_baseline_trains_the_policy_once_and_then_the_value_network() -> None:
    algorithm = REINFORCE(OBS, ACT, {**PLAIN, "with_vf_baseline": True, "train_vf_iters": 7}, 0)
    metrics = updated(algorithm, play(algorithm, 64))
    assert algorithm._optimizer.steps == [1, 7] and np.isfinite(metrics["losses/value_loss"])


def test_the_baseline_learns_the_discounted_return_and_the_advantage_is_generalized() -> None:
    algorithm = REINFORCE(OBS, ACT, {**PLAIN, "with_vf_baseline": True, "gamma": 0.9, "lam": 0.5}, 0)
    segments = [s for s in whole_episodes(algorithm) if s.terminated]
    columns = columns_of(algorithm, segments)
    torch.testing.assert_close(columns.targets, discounted_returns(segments, 0.9), atol=1e-5, rtol=1e-5)
    ppo = PPO(OBS, ACT, {**PLAIN, "gamma": 0.9, "gae_lambda": 0.5}, 0)
    torch.testing.assert_close(columns.advantages, columns_of(ppo, segments).advantages)


def test_reinforce_waits_for_whole_episodes() -> None:
    algorithm = REINFORCE(OBS, ACT, {**PLAIN, "traj_per_epoch": 2}, 0)
    assert algorithm.rollout_length == 4096, "a segment is an episode, because the return ends where a segment is cut"
    assert REINFORCE(OBS, ACT, {"with_vf_baseline": True}, 0).rollout_length == 128
    segments = play(algorithm, 200)
    for one in segments:
        assert algorithm.demand() > 0
        algorithm.observe(one)
        if algorithm.update() is not None:
            break
    assert sum(s.ended for s in segments[: segments.index(one) + 1]) == 2
    assert REINFORCE(OBS, ACT, {"steps_per_update": 64}, 0).demand() == 64


def test_the_kind_of_actions_in_rl4syss_block_must_be_the_clients() -> None:
    with pytest.raises(ConfigError, match="discrete: it is true, but the action space of REINFORCE is") as caught:
        make_algorithm("REINFORCE", OBS, ARM, {"discrete": True}, 0)
    assert caught.value.key == "algorithm_parameters.discrete"
    make_algorithm("REINFORCE", OBS, ARM, {"discrete": False}, 0)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, 32),
        ({"minibatch_size": 64}, 32),
        ({"minibatch_size": 512}, 4),
        ({"batch_size": 256}, 8),
        ({"minibatch_size": 512, "batch_size": 64}, 4),
        ({"minibatch_size": 512, "num_minibatches": 2}, 2),
        ({"train_pi_iters": 3, "batch_size": 64}, 32),
    ],
    ids=str,
)
def test_a_size_of_minibatches_replaces_their_default_number(given: dict[str, int], count: int) -> None:
    rpo: Any = ALGORITHMS.get("RPO").read(given)
    assert rpo.minibatches(2048) == count


def test_rpo_moves_the_mean_of_each_action_by_a_uniform_number() -> None:
    """RPO is that of Rahman & Xue 2022, algorithm 1: the log-probability is under a normal distribution with a moved mean."""
    algorithm = RPO(OBS, ARM, PLAIN, 0)
    columns = columns_of(algorithm, play(algorithm, 400))
    moved = [algorithm._moved(columns).actions for _ in range(2)]
    mean_moves = columns.actions - moved[0]
    assert mean_moves.abs().max() <= 0.5 < 4 * mean_moves.abs().mean() < 1.5 and mean_moves.abs().max() > 0.45
    assert not torch.equal(*moved), "each pass draws new numbers"
    means, _ = algorithm._network(columns.features)
    extras = algorithm._network.extras
    assert extras is not None
    slow = torch.distributions.Normal(means + mean_moves, extras.exp()).log_prob(columns.actions).sum(1)
    torch.testing.assert_close(algorithm._distribution(means, None).log_probs(moved[0]), slow, atol=1e-5, rtol=1e-4)


def test_rpo_refuses_discrete_actions() -> None:
    with pytest.raises(ConfigError, match=r"RPO: rpo_alpha 0.5 moves the mean of continuous actions, but .*use PPO") as caught:
        make_algorithm("RPO", OBS, ACT, {}, 0)
    assert caught.value.key == "algorithm_parameters.rpo_alpha"


def test_rl4syss_blocks_are_read_with_rl4syss_meaning() -> None:
    rpo: Any = ALGORITHMS.get("RPO").read(learner_block("RPO"))
    assert rpo.batch().steps == 2048 and rpo.minibatches(2048) == 32 and rpo.total_steps == 1_000_000 and rpo.rpo_alpha == 0.5
    reinforce: Any = ALGORITHMS.get("REINFORCE").read(learner_block("REINFORCE"))
    as_ppo: PPOParameters = reinforce.ppo()
    assert reinforce.batch().trajectories == 12, "RL4Sys's REINFORCE counts trajectories, unlike its PPO"
    assert as_ppo.iterations() == (1, 100) and as_ppo.minibatches(999) == 1
    assert (as_ppo.learning_rate, as_ppo.value_learning_rate, as_ppo.gae_lambda) == (3e-4, 1e-3, 0.97)
    assert rl4sys_notes(reinforce) == [
        "episodes_per_update 12 (traj_per_epoch): ended trajectories per update",
        "with_vf_baseline: one gradient step of the policy, then 100 of the value network, each on the whole batch",
    ]
