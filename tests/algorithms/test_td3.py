"""Tests of the formulas of TD3 and DDPG against slow twins, and of the exploration of their actors."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rl4sys_zmq.algorithms import make_algorithm  # noqa: E402
from rl4sys_zmq.values import BoxSpace  # noqa: E402

from .test_resume import segments, updates  # noqa: E402
from .test_sac import filled, modules  # noqa: E402

OBS, ARM = BoxSpace((3,)), BoxSpace((2,), low=(-1.0, 0.0), high=(3.0, 0.5))
SMALL: dict[str, Any] = {"hidden_sizes": [8, 8], "batch_size": 16, "learning_starts": 8, "train_frequency": 8}


def make(name: str = "TD3", **parameters: Any) -> Any:
    return make_algorithm(name, OBS, ARM, {**SMALL, **parameters}, 3)


@pytest.mark.parametrize(
    ("name", "given", "twins", "delay", "noise"),
    [("TD3", {}, 2, 2, 0.2), ("TD3", {"policy_delay": 3, "target_noise": 0.9}, 2, 3, 0.9), ("DDPG", {}, 1, 1, 0.0)],
)
def test_gradient_steps_are_those_of_the_twin(name: str, given: dict[str, Any], twins: int, delay: int, noise: float) -> None:
    """The twin has ordinary modules and torch's Adam, and follows the pseudocode of the papers."""
    algorithm = filled(make(name, learning_rate=1e-2, critic_learning_rate=2e-2, tau=0.01, **given))
    (policy,), (slow_policy,) = modules(algorithm._policy), modules(algorithm._target_policy)
    critics, slow_critics = modules(algorithm._critics), modules(algorithm._target_critics)
    assert len(critics) == twins
    adams = [
        torch.optim.Adam([p for critic in critics for p in critic.parameters()], lr=2e-2),
        torch.optim.Adam(policy.parameters(), lr=1e-2),
    ]
    centre, half = torch.tensor([1.0, 0.25]), torch.tensor([2.0, 0.25])
    for step in range(1, 8):
        batch = algorithm._replay.gather(algorithm._replay.draw(16, algorithm._draws))
        columns = algorithm._columns(batch)
        metrics = algorithm._step(columns, algorithm.parameters.learning_rate).metrics

        now, then = torch.from_numpy(batch.observations), torch.from_numpy(batch.successors)
        actions = ((torch.from_numpy(batch.actions) - centre) / half).clamp(-1, 1)
        with torch.no_grad():
            next_actions = slow_policy(then).tanh()
            if noise:
                next_actions = (next_actions + (columns["noise"] * noise).clamp(-0.5, 0.5)).clamp(-1, 1)
            values = torch.stack([critic(torch.cat((then, next_actions), 1)).squeeze(1) for critic in slow_critics])
            goal = torch.from_numpy(batch.returns) + torch.from_numpy(batch.discounts) * values.amin(0)
        loss: Any = sum((critic(torch.cat((now, actions), 1)).squeeze(1) - goal).square().mean() for critic in critics)
        adams[0].zero_grad()
        loss.backward()
        adams[0].step()
        assert float(metrics["losses/qf_loss"]) == pytest.approx(float(loss.detach()), rel=1e-3)
        assert ("losses/actor_loss" in metrics) is (step % delay == 0)
        if step % delay:
            continue
        policy_loss = -critics[0](torch.cat((now, policy(now).tanh()), 1)).mean()
        adams[1].zero_grad()
        policy_loss.backward()
        adams[1].step()
        assert float(metrics["losses/actor_loss"]) == pytest.approx(float(policy_loss.detach()), rel=1e-3, abs=1e-5)
        with torch.no_grad():
            for slow, fast in zip([slow_policy, *slow_critics], [policy, *critics], strict=True):
                for target, weight in zip(slow.parameters(), fast.parameters(), strict=True):
                    target.mul_(0.99).add_(0.01 * weight)
    for stack, nets in (
        (algorithm._policy, [policy]),
        (algorithm._target_policy, [slow_policy]),
        (algorithm._critics, critics),
        (algorithm._target_critics, slow_critics),
    ):
        expected = torch.cat([p.detach().reshape(-1) for net in nets for p in net.parameters()])
        torch.testing.assert_close(stack.flat, expected, atol=2e-4, rtol=2e-3)


def test_actors_explore_uniformly_before_the_training_and_then_with_noise() -> None:
    algorithm = make(exploration_noise=0.3, learning_starts=40)
    assert (algorithm.snapshot()["epsilon"], algorithm.snapshot()["noise_std"]) == (1.0, pytest.approx(0.3))
    updates(algorithm, segments(ARM, 1), 1)
    assert (algorithm.snapshot()["epsilon"], algorithm.snapshot()["noise_std"]) == (0.0, pytest.approx(0.3))


def test_ddpg_is_td3_with_other_defaults() -> None:
    given = {"twin_critics": False, "policy_delay": 1, "target_noise": 0.0}
    ddpg, td3 = make("DDPG"), make("TD3", **given)
    found = [updates(algorithm, segments(ARM, 1), 6) for algorithm in (ddpg, td3)]
    assert found[0] == found[1]
    both = make("DDPG", twin_critics=True, policy_delay=2, target_noise=0.2)
    assert updates(both, segments(ARM, 1), 6) == updates(make(), segments(ARM, 1), 6)
