"""Tests of the formulas of `examples/async_learner_actor.py` against slow twins, and of the pace of the learner."""

import importlib
import math
from typing import Any

import numpy as np
import pytest
from kit import python

torch = pytest.importorskip("torch")
gym = pytest.importorskip("gymnasium")

sac: Any = importlib.import_module("async_learner_actor")


def make_learner(**changes: Any) -> Any:
    settings = sac.Settings(hidden=(8, 8), batch_size=16, **changes)
    observations = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    actions = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
    return sac.Sac(observations, actions, settings, seed=3)


def make_batch(count: int = 16, *, reward: float = 1.0, terminated: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "observations": rng.standard_normal((count, 3)).astype(np.float32),
        "next_observations": rng.standard_normal((count, 3)).astype(np.float32),
        "actions": rng.uniform([-2.0, 0.0], [2.0, 5.0], (count, 2)).astype(np.float32),
        "rewards": np.full(count, reward, np.float32),
        "terminated": np.full(count, terminated),
    }


def test_the_log_probability_is_that_of_the_change_of_variables() -> None:
    rng = np.random.default_rng(1)
    mean, log_std, noise = rng.normal(0, 1, (50, 3)), rng.uniform(-3, 1, (50, 3)), rng.standard_normal((50, 3))
    action, log_prob = sac.squash(*map(torch.from_numpy, (mean, log_std, noise)))
    for row in range(50):
        expected = 0.0
        for m, s, e, a in zip(mean[row], np.exp(log_std[row]), noise[row], action[row].numpy(), strict=True):
            u = m + s * e
            assert a == pytest.approx(math.tanh(u))
            density = math.exp(-((u - m) ** 2) / (2 * s**2)) / (s * math.sqrt(2 * math.pi))
            expected += math.log(density / (1 - math.tanh(u) ** 2))
        assert float(log_prob[row]) == pytest.approx(expected, rel=1e-6)


def test_a_saturated_action_has_a_finite_log_probability() -> None:
    mean = torch.tensor([[40.0], [-40.0]], requires_grad=True)
    _, log_prob = sac.squash(mean, torch.zeros(2, 1), torch.zeros(2, 1))
    (gradient,) = torch.autograd.grad(log_prob.sum(), mean)
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(gradient).all()


def test_the_numpy_actor_is_the_torch_policy() -> None:
    learner = make_learner()
    for _ in range(5):
        learner.update(make_batch())
    params = learner.parameters_for_acting()
    rng = np.random.default_rng(2)
    for observation in np.random.default_rng(7).standard_normal((20, 3)).astype(np.float32):
        with torch.no_grad():
            mean, log_std = learner._policy(torch.from_numpy(observation)[None])[0, 0].chunk(2)
        noise = torch.from_numpy(np.random.default_rng(9).standard_normal(2, dtype=np.float32))
        centre, half = torch.tensor([0.0, 2.5]), torch.tensor([2.0, 2.5])
        greedy = centre + half * mean.tanh()
        sampled = centre + half * sac.squash(mean, log_std.clamp(sac.LOG_STD_MIN, sac.LOG_STD_MAX), noise)[0]
        np.testing.assert_allclose(sac.act(params, observation, rng, explore=False), greedy.numpy(), atol=1e-5)
        np.testing.assert_allclose(sac.act(params, observation, np.random.default_rng(9)), sampled.numpy(), atol=1e-5)
        assert sac.act(params, observation, rng).dtype == np.float32


@pytest.mark.parametrize("terminated", [True, False])
def test_the_critics_loss_is_that_of_the_paper(terminated: bool) -> None:
    """The target of a row is the reward alone if the task has ended, and bootstrapped if it goes on or the time has run out."""
    learner = make_learner(discount=0.9, reward_scale=0.5)
    batch = make_batch(reward=3.0, terminated=terminated)
    with torch.no_grad():
        learner._targets += 0.1  # as if the critics had moved away from them
        learner._log_temperature.fill_(math.log(0.3))
        twin = torch.Generator()
        twin.set_state(learner._generator.get_state())
        noise = torch.empty(16, 2).normal_(generator=twin)
        expected = 0.0
        for row in range(16):
            here, after = (torch.from_numpy(batch[name][row : row + 1]) for name in ("observations", "next_observations"))
            mean, log_std = learner._policy(after)[0].chunk(2, -1)
            next_action, next_log_prob = sac.squash(mean, log_std, noise[row : row + 1])
            first, second = learner._critics(torch.cat((after, next_action), -1), learner._targets).flatten().tolist()
            target = 0.5 * 3.0
            if not terminated:
                target += 0.9 * (min(first, second) - 0.3 * float(next_log_prob))
            action = torch.tensor([[batch["actions"][row, 0] / 2.0, (batch["actions"][row, 1] - 2.5) / 2.5]])
            for value in learner._critics(torch.cat((here, action), -1)).flatten().tolist():
                expected += 0.5 * (value - target) ** 2 / 16
    assert learner.update(batch)["critic_loss"] == pytest.approx(expected, rel=1e-4)


def test_unbounded_actions_are_refused() -> None:
    box = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    with pytest.raises(ValueError, match="bounds"):
        sac.Sac(box, box, sac.Settings(), seed=1)


@pytest.mark.parametrize("ratio", [0.25, 1.0, 3.5])
def test_the_replay_ratio_is_never_exceeded(ratio: float) -> None:
    """The steps come in bursts. The learner does all updates that the ratio allows, and no more."""
    rng = np.random.default_rng(4)
    pace, steps = sac.ReplayRatio(ratio, 100), 0
    for burst in rng.integers(0, 60, 100):
        steps += int(burst)
        while pace.due(steps):
            pace.count()
        assert pace.updates == max(0, math.floor(ratio * (steps - 100)))


def test_an_actor_takes_the_newest_network_once() -> None:
    networks = sac.Newest()
    assert networks.take(0.0) is None
    networks.put({"k": np.zeros(1)})
    networks.put({"k": np.ones(1)})
    assert networks.take(0.0)["k"] == 1.0
    assert networks.take(0.0) is None


def test_acting_loads_no_torch() -> None:
    python("-c", "import runpy, sys; runpy.run_path(sys.argv[1]); assert 'torch' not in sys.modules", sac.__file__)
