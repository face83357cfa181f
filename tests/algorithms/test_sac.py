"""Tests of SAC's formulas against slow twins, and against the results of Stable-Baselines3 in the same order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kit import segment_with

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from rl4sys_zmq.algorithms.offpolicy.sac import ContinuousSAC, DiscreteSAC, make_sac, squash  # noqa: E402
from rl4sys_zmq.policies import RandomSource, build_policy  # noqa: E402
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, Segment  # noqa: E402

from .test_resume import segments, updates  # noqa: E402

OBS, ARM, FOUR = BoxSpace((3,)), BoxSpace((2,), low=(-1.0, 0.0), high=(3.0, 0.5)), DiscreteSpace(4, 1)
SMALL: dict[str, Any] = {"hidden_sizes": [8, 8], "batch_size": 16, "learning_starts": 8, "train_frequency": 8}


def continuous(**parameters: Any) -> ContinuousSAC:
    algorithm = make_sac(OBS, ARM, {**SMALL, **parameters}, 3)
    assert isinstance(algorithm, ContinuousSAC)
    return algorithm


def discrete(**parameters: Any) -> DiscreteSAC:
    algorithm = make_sac(OBS, FOUR, {**SMALL, **parameters}, 3)
    assert isinstance(algorithm, DiscreteSAC)
    return algorithm


def modules(stack: Any, extras: int = 0) -> list[nn.Sequential]:
    """Return the networks of a stack as ordinary modules with copies of the weights."""
    found = []
    for part in stack.parts:
        flat, at, layers = stack.flat[part].detach(), 0, list[nn.Module]()
        for rows, columns in stack._layers:
            linear = nn.Linear(columns, rows)
            linear.weight.data = flat[at : at + rows * columns].view(rows, columns).clone()
            linear.bias.data = flat[at + rows * columns : at + rows * columns + rows].clone()
            at += rows * columns + rows
            layers += [linear, nn.ReLU()]
        assert at == len(flat) - extras
        found.append(nn.Sequential(*layers[:-1]))
    return found


def filled(algorithm: Any, masked: bool = False, seed: int = 1) -> Any:
    for segment, _ in zip(segments(algorithm.spec().action_space, seed, masked=masked), range(4), strict=False):
        algorithm.observe(segment)
    return algorithm


def test_the_log_density_is_that_of_the_change_of_variables() -> None:
    rng = np.random.default_rng(1)
    means, log_stds, noise = rng.normal(0, 1, (50, 3)), rng.uniform(-3, 1, (50, 3)), rng.standard_normal((50, 3))
    actions, log_probs = squash(*map(torch.from_numpy, (means, log_stds, noise)))
    for row in range(50):
        expected = 0.0
        for mean, std, e, action in zip(means[row], np.exp(log_stds[row]), noise[row], actions[row].numpy(), strict=True):
            u = mean + std * e
            assert action == pytest.approx(math.tanh(u))
            density = math.exp(-((u - mean) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))
            expected += math.log(density / (1 - math.tanh(u) ** 2 + 1e-6))
        assert float(log_probs[row]) == pytest.approx(expected, rel=1e-6)


def test_the_density_of_an_action_at_a_bound_has_a_limit_and_no_gradient() -> None:
    means = torch.tensor([[40.0], [-40.0]], requires_grad=True)
    _, log_probs = squash(means, torch.zeros(2, 1), torch.zeros(2, 1))
    (gradient,) = torch.autograd.grad(log_probs.sum(), means)
    assert log_probs.tolist() == pytest.approx([-math.log(1e-6) - 0.5 * math.log(2 * math.pi)] * 2)
    assert not gradient.any()


def test_actors_have_the_density_of_the_learner() -> None:
    algorithm = continuous()
    policy: Any = build_policy(algorithm.spec(), PolicySnapshot(1, 0, 0, algorithm.spec().flatten(algorithm.snapshot())[0]))
    observation = np.array([0.3, -1.0, 2.0], np.float32)
    raw, _, log_prob = policy.act(observation, None, RandomSource(3), True)
    noise = torch.from_numpy(RandomSource(3).normals(2).copy())[None]
    with torch.no_grad():
        actions, log_probs = algorithm._sample(torch.from_numpy(observation)[None], noise)
    half = (ARM.high_array() - ARM.low_array()) / 2
    assert float(log_probs) - np.log(half).sum() == pytest.approx(log_prob, abs=1e-5)
    torch.testing.assert_close(algorithm._scale(torch.from_numpy(raw)[None]), actions, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("learned", [True, False])
def test_a_gradient_step_with_continuous_actions_is_that_of_the_twin(learned: bool) -> None:
    algorithm = filled(continuous(learn_temperature=learned, temperature=0.3, learning_rate=1e-2, critic_learning_rate=2e-2))
    (policy,), critics, targets = modules(algorithm._policy, 1), modules(algorithm._critics), modules(algorithm._targets)
    log_alpha = nn.Parameter(torch.tensor(math.log(0.3)))
    adams = [
        torch.optim.Adam([p for critic in critics for p in critic.parameters()], lr=2e-2),
        torch.optim.Adam(policy.parameters(), lr=1e-2),
        torch.optim.Adam([log_alpha], lr=1e-2),
    ]

    def sample(observations: Any, noise: Any) -> tuple[Any, Any]:
        mean, log_std = policy(observations).chunk(2, 1)
        log_std = log_std.clamp(-20.0, 2.0)
        u = mean + log_std.exp() * noise
        normal = torch.distributions.Normal(mean, log_std.exp()).log_prob(u)
        return u.tanh(), (normal - torch.log(1 - u.tanh() ** 2 + 1e-6)).sum(1)

    centre, half = torch.tensor([1.0, 0.25]), torch.tensor([2.0, 0.25])
    for _ in range(5):
        rows = algorithm._replay.draw(16, algorithm._draws)
        batch = algorithm._replay.gather(rows)
        columns = algorithm._columns(batch)
        metrics = algorithm._step(columns, algorithm.parameters.learning_rate).metrics

        alpha = log_alpha.detach().exp()
        now, then = torch.from_numpy(batch.observations), torch.from_numpy(batch.successors)
        actions = ((torch.from_numpy(batch.actions) - centre) / half).clamp(-1, 1)
        with torch.no_grad():
            next_actions, next_log_probs = sample(then, columns["successor_noise"])
            q = torch.min(*(target(torch.cat((then, next_actions), 1)).squeeze(1) for target in targets))
            goal = torch.from_numpy(batch.returns) + torch.from_numpy(batch.discounts) * (q - alpha * next_log_probs)
        loss: Any = sum(0.5 * (critic(torch.cat((now, actions), 1)).squeeze(1) - goal).square().mean() for critic in critics)
        adams[0].zero_grad()
        loss.backward()
        adams[0].step()

        chosen, log_probs = sample(now, columns["noise"])
        q = torch.min(*(critic(torch.cat((now, chosen), 1)).squeeze(1) for critic in critics))
        policy_loss = (alpha * log_probs - q).mean()
        adams[1].zero_grad()
        policy_loss.backward()
        adams[1].step()
        if learned:
            adams[2].zero_grad()
            (-(log_alpha * (log_probs.detach() - 2.0)).mean()).backward()
            adams[2].step()
        with torch.no_grad():
            for target, critic in zip(targets, critics, strict=True):
                for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                    slow.mul_(0.995).add_(0.005 * fast)
        assert float(metrics["losses/qf_loss"]) == pytest.approx(float(loss.detach()), rel=1e-3)
        assert float(metrics["losses/actor_loss"]) == pytest.approx(float(policy_loss.detach()), rel=1e-3, abs=1e-4)
    assert_same(algorithm, policy, critics, targets, log_alpha)


@pytest.mark.parametrize("masked", [False, True])
def test_a_gradient_step_with_discrete_actions_is_that_of_the_twin(masked: bool) -> None:
    algorithm = filled(discrete(temperature=0.3, learning_rate=1e-2, target_entropy_ratio=0.5), masked)
    (policy,), critics, targets = modules(algorithm._policy, 1), modules(algorithm._critics), modules(algorithm._targets)
    log_alpha = nn.Parameter(torch.tensor(math.log(0.3)))
    adams = [
        torch.optim.Adam([p for critic in critics for p in critic.parameters()], lr=1e-2),
        torch.optim.Adam([*policy.parameters()], lr=1e-2),
        torch.optim.Adam([log_alpha], lr=1e-2),
    ]

    def expectation(logits: Any, allowed: Any, of: Any) -> Any:
        """Return the expectation of ``of(action, log-probability)`` over the allowed actions of one row."""
        few = [action for action in range(4) if allowed[action]]
        log_probs = logits[few].log_softmax(0)
        return sum(log_probs[i].exp() * of(action, log_probs[i]) for i, action in enumerate(few))

    for _ in range(4):
        batch = algorithm._replay.gather(algorithm._replay.draw(16, algorithm._draws))
        algorithm._step(algorithm._columns(batch), algorithm.parameters.learning_rate)

        alpha = log_alpha.detach().exp()
        now, then = (torch.from_numpy(tree["observation"]) for tree in (batch.observations, batch.successors))
        allowed, then_allowed = (tree["allowed"] for tree in (batch.observations, batch.successors))
        assert masked == (not allowed.all())
        loss: Any = 0.0
        for row in range(16):
            with torch.no_grad():
                q = torch.min(*(target(then[row]) for target in targets))
                value = expectation(policy(then[row]), then_allowed[row], lambda a, lp, q=q, w=alpha: q[a] - w * lp)
                goal = batch.returns[row] + batch.discounts[row] * value
            loss += sum(0.5 * (critic(now[row])[batch.actions[row]] - goal).square() for critic in critics) / 16
        adams[0].zero_grad()
        loss.backward()
        adams[0].step()

        policy_loss: Any = 0.0
        alpha_loss: Any = 0.0
        for row in range(16):
            with torch.no_grad():
                q = torch.min(*(critic(now[row]) for critic in critics))
            logits, few = policy(now[row]), allowed[row]
            policy_loss += expectation(logits, few, lambda a, lp, q=q, w=alpha: w * lp - q[a]) / 16
            entropy = -expectation(logits.detach(), few, lambda _, lp: lp)
            alpha_loss += log_alpha * (entropy - 0.5 * math.log(few.sum())) / 16
        for adam, one in zip(adams[1:], (policy_loss, alpha_loss), strict=True):
            adam.zero_grad()
            one.backward()
            adam.step()
        with torch.no_grad():
            for target, critic in zip(targets, critics, strict=True):
                for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                    slow.mul_(0.995).add_(0.005 * fast)
    assert_same(algorithm, policy, critics, targets, log_alpha)


def assert_same(algorithm: Any, policy: Any, critics: Any, targets: Any, log_alpha: Any) -> None:
    for stack, nets, extra in (
        (algorithm._policy, [policy], [log_alpha.view(1)]),
        (algorithm._critics, critics, []),
        (algorithm._targets, targets, []),
    ):
        expected = torch.cat([*(p.reshape(-1) for net in nets for p in net.parameters()), *extra])
        torch.testing.assert_close(stack.flat, expected.detach(), atol=2e-4, rtol=2e-3)


def test_forbidden_actions_have_no_probability_and_no_gradient() -> None:
    algorithm = discrete()
    features = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    forbidden = torch.tensor([[False, True, False, True]] * 5)
    log_probs = algorithm._log_probs(features, forbidden)
    assert not log_probs.exp()[forbidden].any()
    gradient = algorithm._policy.gradient((log_probs.exp() * log_probs).sum())
    assert torch.isfinite(gradient).all()


def test_a_mask_that_forbids_everything_is_none() -> None:
    """The last observation of a segment has such a mask if no action was requested for it."""
    algorithm, source = discrete(), segments(FOUR, 4, masked=True)
    segment = next(one for one in source if one.masks is not None and not one.terminated)
    assert segment.masks is not None
    segment.masks[-1] = False
    stored: Any = algorithm._stored(segment)
    assert stored.observations["allowed"][-1].all() and stored.masks is None
    np.testing.assert_array_equal(stored.observations["allowed"][:-1], segment.masks[:-1])


@pytest.mark.parametrize("target", [-2.0, 0.5])
def test_the_temperature_moves_the_entropy_to_its_target(target: float) -> None:
    """Actions near the middle have the largest rewards. Without the temperature, the policy would become deterministic."""
    algorithm = continuous(target_entropy=target, learning_rate=1e-2, train_frequency=1, gamma=0.0, batch_size=64)
    found = []
    for segment, _ in zip(paid_by_distance(), range(80), strict=False):
        algorithm.observe(segment)
        while (metrics := algorithm.update()) is not None:
            found.append(metrics["losses/entropy"])
    assert np.mean(found[-200:]) == pytest.approx(target, abs=0.5)


def paid_by_distance() -> Iterator[Segment]:
    rng = np.random.default_rng(0)
    while True:
        scaled = rng.uniform(-1.0, 1.0, (16, 2))
        yield segment_with(
            16,
            "truncated",
            observations=rng.normal(size=(17, 3)).astype(np.float32),
            actions=(scaled * [2.0, 0.25] + [1.0, 0.25]).astype(np.float32),
            rewards=-10.0 * np.square(scaled).sum(axis=1).astype(np.float32),
        )


def test_a_fixed_temperature_stays() -> None:
    algorithm = continuous(learn_temperature=False)
    updates(algorithm, segments(ARM, 1), 5)
    assert float(algorithm._policy.flat[-1]) == pytest.approx(math.log(0.2))


def test_the_policy_starts_near_uniform_and_the_snapshot_has_no_temperature() -> None:
    algorithm = continuous(hidden_sizes=[64, 64])
    assert sum(array.size for array in algorithm.snapshot().values()) == algorithm._policy.flat.numel() - 1
    policy: Any = build_policy(algorithm.spec(), PolicySnapshot(1, 0, 0, algorithm.spec().flatten(algorithm.snapshot())[0]))
    raws = policy.act_batch(np.zeros((4000, 3), np.float32), None, RandomSource(0), True)[0]
    assert (raws.std(axis=0) / (ARM.high_array() - ARM.low_array()) > 0.25).all()
