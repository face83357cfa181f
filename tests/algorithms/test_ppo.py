"""Tests of PPO as the learner thread uses it: its demand, its updates, its results, and exact resuming."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import segment_with

from rl4sys_zmq.algorithms.action_distributions import ActionDistributionBuilder
from rl4sys_zmq.algorithms.onpolicy.ppo import PPO, clipped_objective, equal_sizes, half_square_error, ratio_bounds
from rl4sys_zmq.algorithms.onpolicy.rollout import RewardScaler, RunningMoments, join_segments
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment

from .policy_twin import policy_outputs

OBS, ACT = BoxSpace((3,)), DiscreteSpace(4)
SMALL = {"steps_per_epoch": 32, "minibatch_size": 16, "update_epochs": 2, "hidden_sizes": [8, 8], "learning_rate": 1e-2}
PLAIN = {**SMALL, "normalise_observations": False, "normalise_rewards": False}


def make(parameters: dict[str, Any] | None = None, seed: int = 0, observations: Any = OBS, actions: Any = ACT) -> PPO:
    return PPO(observations, actions, {**PLAIN, **(parameters or {})}, seed)


def actor_log_probs(algorithm: PPO, observations: Any, actions: Any, masks: Any) -> Any:
    """Return the log-probabilities that an actor with the newest snapshot would have recorded."""
    spec, tensors = algorithm.spec(), algorithm.snapshot()
    action_space: Any = spec.action_space
    outputs = policy_outputs(spec, tensors, observations[: len(actions)])
    if spec.document["head"] == "gaussian":
        head = torch.distributions.Normal(outputs, torch.from_numpy(tensors["log_std"]).exp())
        return head.log_prob(torch.from_numpy(actions).reshape(outputs.shape)).sum(1).numpy()
    if masks is not None:
        outputs = outputs.masked_fill(torch.from_numpy(~masks[: len(actions)]), -torch.inf)
    index = torch.from_numpy(actions - action_space.start)
    return torch.distributions.Categorical(logits=outputs).log_prob(index).numpy()


def segment(
    algorithm: PPO, rng: np.random.Generator, steps: int = 8, end: str = "cut", *, masked: bool = False, **given: Any
) -> Segment:
    rows = steps + (end != "terminated")
    space: Any = algorithm.spec().observation_space
    action_space: Any = algorithm.spec().action_space
    observations: Any
    actions: Any
    if isinstance(space, DiscreteSpace):
        observations = rng.integers(space.start, space.start + space.n, rows)
    else:
        observations = rng.normal(size=(rows, *space.shape)).astype(np.float32)
    masks = None
    if isinstance(action_space, BoxSpace):
        actions = rng.normal(size=(steps, *action_space.shape)).astype(np.float32)
    else:
        actions = rng.integers(0, action_space.n, steps)
        if masked:
            masks = rng.random((rows, action_space.n)) < 0.5
            masks[np.arange(steps), actions] = True
        actions = actions + action_space.start
    columns = {
        "observations": observations,
        "actions": actions,
        "rewards": rng.normal(size=steps).astype(np.float32),
        "log_probs": actor_log_probs(algorithm, observations, actions, masks),
        "masks": masks,
        "episode_id": int(rng.integers(2**63)),
    }
    ended = {} if end == "cut" else {"episode_return": 1.0, "episode_length": steps}
    return segment_with(steps, end, **{**columns, **ended, **given})


def feed(algorithm: PPO, seed: int = 0, count: int = 4, correct: bool = False, **kinds: Any) -> Mapping[str, float]:
    rng = np.random.default_rng(seed)
    for k in range(count):
        algorithm.observe(segment(algorithm, rng, end=("terminated", "cut")[k % 2], **kinds), correct=correct)
    metrics = algorithm.update()
    return {} if metrics is None else metrics


def learner_values(algorithm: PPO, observations: Any) -> Any:
    return algorithm._network(torch.from_numpy(observations))[1].detach().squeeze(1).double().numpy()


def targets_of(algorithm: PPO, taken: Any) -> Any:
    spec = algorithm.spec()
    rollout = join_segments(taken, spec.observation_space, ActionDistributionBuilder(spec.action_space))
    columns, _ = algorithm._prepare(rollout, 0.2)
    return columns


def test_demand_counts_down_and_an_update_takes_all() -> None:
    algorithm, rng = make(), np.random.default_rng(0)
    assert algorithm.demand() == 32 and algorithm.update() is None
    algorithm.observe(segment(algorithm, rng, 20))
    assert algorithm.demand() == 12 and algorithm.update() is None
    algorithm.observe(segment(algorithm, rng, 25))
    assert algorithm.demand() == 0 and algorithm.update() is not None
    assert algorithm.demand() == 32 - 13 and algorithm.update() is None, "the surplus belongs to this batch"


def test_metrics_have_cleanrls_names() -> None:
    metrics = feed(make())
    assert set(metrics) == {
        "losses/policy_loss", "losses/value_loss", "losses/entropy", "losses/approx_kl", "losses/old_approx_kl",
        "losses/clipfrac", "losses/explained_variance", "losses/ratio_first", "losses/weight_change", "charts/learning_rate",
    }  # fmt: skip
    assert all(type(value) is float and np.isfinite(value) for value in metrics.values())


def test_traj_per_epoch_counts_steps_and_waits_for_the_end_of_a_trajectory() -> None:
    algorithm, rng = make({"steps_per_epoch": None, "traj_per_epoch": 10}), np.random.default_rng(0)
    algorithm.observe(segment(algorithm, rng, 5, end="terminated"))
    algorithm.observe(segment(algorithm, rng, 5, end="terminated"))
    assert algorithm.demand() == 1, "ten steps are not more than ten"
    algorithm.observe(segment(algorithm, rng, 7, episode_id=1))
    assert algorithm.demand() > 0 and algorithm.update() is None, "no trajectory ended with the eleventh step"
    algorithm.observe(segment(algorithm, rng, 3, episode_id=1, segment_index=1, end="truncated"))
    assert algorithm.demand() == 0 and algorithm.update() is not None
    assert algorithm.demand() == 11, "the next batch is as large"
    algorithm.observe(replace(segment(algorithm, rng, 12, episode_id=2), capped=True))
    assert algorithm.demand() == 0
    ours = make({"steps_per_epoch": 64, "traj_per_epoch": 10})
    assert ours.demand() == 64, "keys of our own win"


def moved_networks(algorithm: PPO, monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """Return a list that grows with each gradient step: True if it moved the policy, and True if it moved the value network."""
    seen = []
    policy, value = algorithm._network.parts
    step = algorithm._optimizer.step

    def watched(grad: torch.Tensor, rates: Any, *, max_norm: float | None = None) -> None:
        before = algorithm._network.flat.clone()
        step(grad, rates, max_norm=max_norm)
        moved = algorithm._network.flat != before
        seen.append((bool(moved[policy].any()), bool(moved[value].any())))

    monkeypatch.setattr(algorithm._optimizer, "step", watched)
    return seen


def test_rl4sys_update_trains_the_policy_first_and_then_the_value_network(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make({"train_pi_iters": 3, "train_v_iters": 5, "batch_size": 4, "minibatch_size": None, "ent_coef": 0.7})
    seen = moved_networks(algorithm, monkeypatch)
    assert np.isfinite(feed(algorithm)["losses/value_loss"])
    assert seen == [(True, False)] * 3 + [(False, True)] * 5, "one step each on the whole batch"
    assert algorithm._optimizer.steps == [3, 5]


def test_rl4sys_update_equals_its_slow_twin() -> None:
    """The twin has two optimizers, takes the whole batch, and computes the losses as RL4Sys does."""
    given: dict[str, Any] = {"train_pi_iters": 4, "train_v_iters": 6, "pi_lr": 3e-3, "vf_lr": 1e-2, "max_grad_norm": 0}
    given = {**{k: v for k, v in PLAIN.items() if k != "learning_rate"}, **given, "minibatch_size": None}
    algorithm, twin = PPO(OBS, ACT, given, 0), PPO(OBS, ACT, given, 0)
    rng = np.random.default_rng(2)
    for k in range(4):
        taken = segment(algorithm, rng, 8, episode_id=k, end="terminated")
        algorithm.observe(taken)
        twin.observe(taken)
    columns, _ = twin._prepare(join_segments(twin._taken, OBS, ActionDistributionBuilder(ACT)), 0.2)
    flat = twin._network.flat
    for part, rate, count in ((0, 3e-3, 4), (1, 1e-2, 6)):
        where = twin._network.parts[part]
        free = torch.nn.Parameter(flat[where].detach().clone())
        adam = torch.optim.Adam([free], lr=rate, eps=1e-5)
        for _ in range(count):
            outputs, estimates = twin._network(columns.features)
            if part == 0:
                log_probs = torch.distributions.Categorical(logits=outputs).log_prob(columns.actions)
                ratio = (log_probs - columns.log_probs).exp()
                loss = -torch.min(ratio * columns.advantages, ratio.clamp(0.8, 1.2) * columns.advantages).mean()
            else:
                loss = ((estimates.squeeze(1) - columns.targets) ** 2).mean()
            free.grad = twin._network.gradient(loss)[where].clone()
            adam.step()
            with torch.no_grad():
                flat[where] = free
    assert algorithm.update() is not None
    torch.testing.assert_close(algorithm._network.flat, flat, atol=1e-6, rtol=1e-5)


def test_rl4sys_update_ends_the_steps_of_the_policy_at_its_target() -> None:
    algorithm = make({"train_pi_iters": 30, "train_v_iters": 5, "target_kl": 1e-6, "learning_rate": 0.05, "minibatch_size": None})
    feed(algorithm)
    assert algorithm._optimizer.steps[0] < 30 and algorithm._optimizer.steps[1] == 5


@pytest.mark.parametrize("limit", [0, 0.0, None, -1])
@pytest.mark.parametrize("kind", [{}, {"train_pi_iters": 2, "train_v_iters": 2}])
def test_a_norm_of_zero_or_less_does_not_clip(limit: float | None, kind: dict[str, Any]) -> None:
    algorithm = make({"max_grad_norm": limit, **kind})
    before = algorithm._network.flat.clone()
    feed(algorithm)
    policy, value = algorithm._network.parts
    moved = algorithm._network.flat != before
    assert moved[policy].any() and moved[value].any()


def test_ended_and_capped_segments_are_trajectories() -> None:
    algorithm, rng = make({"steps_per_epoch": None, "episodes_per_update": 2, "rollout_length": 4}), np.random.default_rng(0)
    algorithm.observe(segment(algorithm, rng, 4, episode_id=1))
    assert algorithm.demand() > 0
    algorithm.observe(segment(algorithm, rng, 2, episode_id=1, segment_index=1, end="terminated"))
    assert algorithm.demand() > 0
    algorithm.observe(replace(segment(algorithm, rng, 4, episode_id=2), capped=True))
    assert algorithm.demand() == 0


def test_the_estimate_of_a_trajectory_follows_those_that_ended() -> None:
    algorithm = make({"steps_per_epoch": None, "episodes_per_update": 4, "update_epochs": 1, "num_minibatches": 1})
    guess = algorithm.demand()
    for round_ in range(20):
        feed(algorithm, round_)
    assert algorithm.demand() < guess / 5


HEADS = [
    (OBS, ACT, {}),
    (OBS, ACT, {"masked": True}),
    (OBS, DiscreteSpace(3, start=-1), {}),
    (DiscreteSpace(5, start=2), ACT, {}),
    (BoxSpace((2, 2), "|u1", 0.0, 255.0), ACT, {}),
    (OBS, BoxSpace((2,), low=-1.0, high=1.0), {}),
    (OBS, BoxSpace((), low=-1.0, high=1.0), {}),
]


@pytest.mark.parametrize(("observations", "actions", "kinds"), HEADS)
@pytest.mark.parametrize("parameters", [SMALL, PLAIN])
def test_the_first_ratio_is_one_when_nothing_lags(
    observations: Any, actions: Any, kinds: Any, parameters: dict[str, Any]
) -> None:
    algorithm = PPO(observations, actions, parameters, 0)
    for round_ in range(3):
        metrics = feed(algorithm, round_, **kinds)
        new_statistics = round_ == 0 and algorithm._normalise
        assert metrics["losses/ratio_first"] < (5e-3 if new_statistics else 1e-4)
        assert all(np.isfinite(value) for value in metrics.values())
    assert all(np.isfinite(tensor).all() for tensor in algorithm.snapshot().values())


def test_a_terminal_state_is_worth_nothing_and_a_cut_is_worth_its_value() -> None:
    algorithm, rng = make({"gamma": 0.9, "norm_adv": False}), np.random.default_rng(0)
    for name in ("terminated", "truncated", "cut"):
        piece = segment(algorithm, rng, 1, name)
        columns = targets_of(algorithm, [(piece, False)])
        values = learner_values(algorithm, piece.observations)
        bootstrap = 0.0 if name == "terminated" else 0.9 * values[1]
        assert columns.targets[0].item() == pytest.approx(piece.rewards[0] + bootstrap, abs=1e-5), name
        assert columns.advantages[0].item() == pytest.approx(piece.rewards[0] + bootstrap - values[0], abs=1e-5), name


def test_a_trace_runs_on_across_a_cut_and_order_of_arrival_does_not_matter() -> None:
    algorithm, rng = make({"norm_adv": False}), np.random.default_rng(0)
    whole_number = segment(algorithm, rng, 10, episode_id=7, end="truncated")
    parts = []
    for k, (a, b) in enumerate([(0, 4), (4, 7), (7, 10)]):
        names = ("actions", "rewards", "log_probs", "versions")
        columns = {name: getattr(whole_number, name)[a:b] for name in names}
        rows = whole_number.observations[a : b + 1]
        parts.append(replace(whole_number, observations=rows, **columns, segment_index=k, truncated=b == 10))
    other = segment(algorithm, rng, 3)
    expected = targets_of(algorithm, [(whole_number, False)]).targets
    joined = targets_of(algorithm, [(parts[2], False), (other, False), (parts[0], False), (parts[1], False)]).targets
    torch.testing.assert_close(joined[:10], expected)
    gap = targets_of(algorithm, [(parts[0], False), (parts[2], False)]).targets
    torch.testing.assert_close(gap[4:], expected[7:])
    alone = targets_of(algorithm, [(parts[0], False)]).targets
    torch.testing.assert_close(gap[:4], alone)


def test_corrected_segments_get_vtrace_targets_and_others_do_not() -> None:
    algorithm, rng = make({"norm_adv": False, "gamma": 0.9, "gae_lambda": 0.7}), np.random.default_rng(0)
    piece = segment(algorithm, rng, 6)
    off = piece.log_probs + rng.normal(size=6).astype(np.float32)
    stale = replace(piece, log_probs=off)
    values = learner_values(algorithm, stale.observations)
    rhos = np.minimum(1.0, np.exp(piece.log_probs.astype(np.float64) - off))
    target, expected = values[6], np.zeros(6)
    for t in reversed(range(6)):
        delta = stale.rewards[t] + 0.9 * values[t + 1] - values[t]
        target = values[t] + rhos[t] * delta + 0.9 * 0.7 * rhos[t] * (target - values[t + 1])
        expected[t] = target
    np.testing.assert_allclose(targets_of(algorithm, [(stale, True)]).targets, expected, atol=1e-5)
    assert not np.allclose(targets_of(algorithm, [(stale, False)]).targets, expected, atol=1e-3)
    fresh = targets_of(algorithm, [(piece, True)]).targets
    torch.testing.assert_close(fresh, targets_of(algorithm, [(piece, False)]).targets, atol=1e-4, rtol=1e-4)


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.5), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_the_clipped_objective_is_the_papers(seed: int, clip: float, size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ratios = torch.randn(size, generator=generator).exp().requires_grad_()
    advantages = torch.randn(size, generator=generator)
    mine = clipped_objective(ratios, advantages, *ratio_bounds(advantages, clip))
    papers = -torch.min(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages).mean()
    torch.testing.assert_close(mine, papers, atol=1e-6, rtol=1e-4)
    gradients = [torch.autograd.grad(loss, ratios)[0] for loss in (mine, papers)]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


def test_the_value_losses() -> None:
    v, target, old = torch.tensor([1.0, 5.0]), torch.tensor([0.0, 6.0]), torch.tensor([0.0, 2.0])
    assert half_square_error(v, target, None, 0.2).item() == pytest.approx(0.5)
    clipped = old + (v - old).clamp(-0.2, 0.2)
    expected = 0.5 * torch.max((v - target) ** 2, (clipped - target) ** 2).mean()
    assert half_square_error(v, target, old, 0.2).item() == pytest.approx(expected.item())


@given(st.integers(1, 500), st.integers(0, 40))
def test_minibatches_are_equal(steps: int, count: int) -> None:
    sizes = equal_sizes(steps, count)
    assert sum(sizes) == steps and max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


def test_a_minibatch_keeps_rows_together() -> None:
    algorithm, rng = make(), np.random.default_rng(0)
    columns = targets_of(algorithm, [(segment(algorithm, rng, 9, masked=True), False)])
    seen = torch.cat([batch.targets for batch, _ in columns.minibatches([5, 4], torch.Generator().manual_seed(0))])
    assert sorted(seen.tolist()) == sorted(columns.targets.tolist())
    for batch, _ in columns.minibatches([5, 4], torch.Generator().manual_seed(0)):
        for k in range(len(batch.targets)):
            row = int((columns.targets == batch.targets[k]).nonzero()[0])
            for name in ("features", "actions", "log_probs", "advantages", "low", "high", "values", "forbidden"):
                assert torch.equal(getattr(batch, name)[k], getattr(columns, name)[row]), name


@pytest.mark.parametrize(("length", "updates"), [(12, 15), (32, 15), (7, 15), (40, 12)])
def test_the_surplus_of_a_batch_belongs_to_the_next(length: int, updates: int) -> None:
    """480 steps in batches of 32 are 15 updates, even if segments do not divide a batch. A larger segment is one batch."""
    algorithm, rng, done, fed = make(), np.random.default_rng(5), 0, 0
    while fed < 480:
        algorithm.observe(segment(algorithm, rng, min(length, 480 - fed)))
        fed += min(length, 480 - fed)
        if done == 3:  # the surplus survives a restart
            restarted = make()
            restarted.load(algorithm.state())
            for taken, correct in algorithm._taken:
                restarted.observe(taken, correct=correct)
            algorithm = restarted
        done += algorithm.update() is not None
    assert abs(done - updates) <= (fed % 32 != 0 or length % 32 != 0) * 1
    assert 32 - 16 <= 32 - algorithm._surplus <= 32


def test_an_update_stops_at_the_target_kl() -> None:
    free = feed(make({"update_epochs": 30, "learning_rate": 0.05}))
    held = feed(make({"update_epochs": 30, "learning_rate": 0.05, "target_kl": 0.01}))
    algorithm = make({"update_epochs": 30, "learning_rate": 0.05, "target_kl": 1e-9})
    feed(algorithm)
    assert held["losses/approx_kl"] < free["losses/approx_kl"]
    assert algorithm._optimizer.steps == [2, 2], "one pass of two minibatches"


def test_value_passes_of_their_own_go_on_without_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make({"update_epochs": 1, "value_epochs": 3})
    moved = moved_networks(algorithm, monkeypatch)
    metrics = feed(algorithm)
    assert moved == [(True, True)] * 2 + [(False, True)] * 4
    assert np.isfinite(metrics["losses/value_loss"])
    fewer = feed(make({"update_epochs": 3, "value_epochs": 1}))
    assert np.isfinite(fewer["losses/value_loss"])


def test_value_learning_rate_moves_the_value_network_alone() -> None:
    algorithm = make({"learning_rate": 0.0, "value_learning_rate": 1e-2})
    before = algorithm._network.flat.clone()
    feed(algorithm)
    policy, value = algorithm._network.parts
    assert torch.equal(before[policy], algorithm._network.flat[policy])
    assert not torch.equal(before[value], algorithm._network.flat[value])


def test_schedules_fall_linearly_to_their_floor() -> None:
    algorithm = make({"anneal_lr": True, "total_steps": 128, "anneal_floor": 0.1, "learning_rate": 1.0, "max_grad_norm": 1e-9})
    rates = [feed(algorithm, k)["charts/learning_rate"] for k in range(6)]
    assert rates == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.1, 0.1])


@pytest.mark.parametrize("masked", [False, True])
def test_masks_keep_forbidden_logits_out_of_the_gradient(masked: bool) -> None:
    algorithm, rng = make({"ent_coef": 0.0}), np.random.default_rng(0)
    everything_but_zero = np.ones((9, 4), np.bool_)
    everything_but_zero[:, 0] = False
    for _ in range(4):
        actions = rng.integers(1, 4, 8)
        given = {"actions": actions, "masks": everything_but_zero} if masked else {"actions": actions}
        if masked:
            given["log_probs"] = np.full(8, -np.log(3.0), np.float32)
        algorithm.observe(segment(algorithm, rng, 8, **given))
    before = algorithm.snapshot()
    algorithm.update()
    after = algorithm.snapshot()
    moved = [before[f"layers.2.{kind}"][0] != after[f"layers.2.{kind}"][0] for kind in ("weight", "bias")]
    assert any(np.any(m) for m in moved) is not masked


def test_segments_with_and_without_masks_mix() -> None:
    algorithm, rng = make(), np.random.default_rng(0)
    for masked in (True, False, True, False):
        algorithm.observe(segment(algorithm, rng, masked=masked))
    metrics = algorithm.update()
    assert metrics is not None and metrics["losses/ratio_first"] < 1e-4


def test_the_first_update_already_uses_the_statistics_of_its_batch() -> None:
    """Statistics that come after the training change the policy. Because of that, Pendulum once stayed at a return of -600."""
    algorithm, rng = make({"normalise_observations": True}), np.random.default_rng(0)
    piece = segment(algorithm, rng, 64)
    piece.observations[:, 0] = 100.0 + 50.0 * rng.normal(size=len(piece.observations))
    algorithm.observe(piece)
    seen: list[Any] = []
    train = algorithm._train

    def observed(rollout: Any) -> dict[str, float]:
        seen.append((algorithm._mean.clone(), algorithm._scale.clone()))
        return train(rollout)

    algorithm._train = observed  # type: ignore[method-assign]
    algorithm.update(partial=True)
    np.testing.assert_allclose(seen[0][0][0], piece.observations[:-1, 0].mean(), rtol=1e-5)
    np.testing.assert_allclose(seen[0][1][0], 1 / piece.observations[:-1, 0].std(), rtol=1e-5)
    tensors = algorithm.snapshot()
    np.testing.assert_array_equal(tensors["obs_mean"], seen[0][0])
    algorithm.observe(segment(algorithm, rng, 64))
    algorithm.update(partial=True)
    assert algorithm._moments.count == 128
    np.testing.assert_array_equal(seen[1][0], seen[0][0])  # later statistics are used from the end of the update on


def test_running_moments_are_those_of_all_rows() -> None:
    rows, moments = np.random.default_rng(0).normal(3, 5, (100, 4)), RunningMoments(4)
    rows[:, 2] = 1.5
    for part in np.split(rows, [1, 10, 60]):
        moments.update(part)
    moments.update(rows[:0])
    np.testing.assert_allclose(moments.mean, rows.mean(0))
    np.testing.assert_allclose(moments.variance, rows.var(0), atol=1e-12)
    assert moments.scale()[2] == 1.0
    np.testing.assert_allclose(moments.scale()[0], 1 / rows[:, 0].std())


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=12)
    slow: list[float] = []
    running: dict[int, float] = {}
    lengths, episodes, ended = [4, 3, 5], [1, 2, 1], [False, True, True]
    at = 0
    for length, episode, end in zip(lengths, episodes, ended, strict=True):
        for t in range(at, at + length):
            running[episode] = 0.9 * running.get(episode, 0.0) + rewards[t]
            slow.append(running[episode])
        if end:
            del running[episode]
        at += length
    scale = RewardScaler(0.9)
    np.testing.assert_allclose(scale(rewards, lengths, episodes, ended), np.clip(rewards / np.std(slow), -10, 10), rtol=1e-6)
    again = RewardScaler(0.9)
    again(rewards[:4], [4], [1], [False])
    third = RewardScaler(0.9)
    third.load(again.state())
    assert again(rewards[4:], lengths[1:], episodes[1:], ended[1:]).tolist() == third(
        rewards[4:], lengths[1:], episodes[1:], ended[1:]
    ).tolist()  # fmt: skip


def test_a_state_of_another_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="parameters"):
        make().load(make({"hidden_sizes": [9, 9]}).state())
