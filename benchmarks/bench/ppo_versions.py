"""A small PPO training that produces consecutive versions of weights, as data for the benchmark of diffs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "own_pairs", "train"]

Floats = NDArray[np.float32]
OBSERVATIONS = 4096


def own_pairs(seed: int) -> Iterator[tuple[str, Floats, tuple[int, ...]]]:
    """Train PPO on CartPole, and yield two series of three versions of the weights, as data for a benchmark of weight diffs.

    The versions of the first series are one PPO iteration apart, those of the second one optimizer step. A result is a tuple of
    the name, the versions ``[3, n]``, and the sizes of the tensors.
    """
    iterations, steps, sizes, _ = train("CartPole-v1", 64, 4, seed)
    yield "cartpole_64_ppo_iteration (own)", np.stack(iterations[-3:]), sizes
    yield "cartpole_64_adam_step (own)", np.stack(steps[-3:]), sizes


def train(
    env_id: str, hidden: int, iterations: int, seed: int, *, num_envs: int = 8, length: int = 256
) -> tuple[list[Floats], list[Floats], tuple[int, ...], Floats]:
    """Train PPO and collect versions of the weights.

    Args:
        env_id: Id of the Gymnasium environment.
        hidden: Width of the two hidden layers.
        iterations: Number of PPO iterations.
        seed: Seed of all random choices.
        num_envs: Number of environments.
        length: Number of steps of each environment in an iteration.

    Returns:
        The weights ``[n]`` before the first and after each iteration; the weights after each of the last three optimizer steps;
        the sizes of the tensors; and random observations from the second half of the training.
    """
    import gymnasium
    import torch
    from torch import nn

    choices: Any = torch.distributions.Categorical

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    envs = gymnasium.make_vec(env_id, num_envs=num_envs, vectorization_mode="sync")
    shape = envs.single_observation_space.shape
    assert shape is not None
    inputs, outputs = int(shape[0]), int(envs.single_action_space.n)  # type: ignore[attr-defined]

    def network(out: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, out))

    policy, critic = network(outputs), network(1)
    optimiser = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=3e-4, eps=1e-5)

    def flat() -> Floats:
        return np.concatenate([p.detach().numpy().ravel() for p in policy.parameters()])

    after, steps, seen = [flat()], list[Floats](), list[Floats]()
    now, _ = envs.reset(seed=seed)
    for _ in range(iterations):
        rows: dict[str, list[Any]] = {key: [] for key in ("obs", "act", "logp", "value", "reward", "ended")}
        for _ in range(length):
            obs = torch.as_tensor(now, dtype=torch.float32)
            with torch.no_grad():
                choice = choices(logits=policy(obs))
                act = choice.sample()
                value = critic(obs)[:, 0]
            now, reward, terminated, truncated, _ = envs.step(act.numpy())
            scaled = torch.as_tensor(0.1 * reward, dtype=torch.float32)
            ended = torch.as_tensor(terminated | truncated, dtype=torch.float32)
            for key, item in zip(rows, (obs, act, choice.log_prob(act), value, scaled, ended), strict=True):
                rows[key].append(item)
        obs, act, logp, value, reward, ended = (torch.stack(rows[key]) for key in rows)
        advantage = torch.zeros_like(value)
        with torch.no_grad():
            following, running = critic(torch.as_tensor(now, dtype=torch.float32))[:, 0], torch.zeros(num_envs)
        for t in reversed(range(length)):
            delta = reward[t] + 0.99 * following * (1 - ended[t]) - value[t]
            advantage[t] = running = delta + 0.99 * 0.95 * running * (1 - ended[t])
            following = value[t]
        data = [x.reshape(-1, *x.shape[2:]) for x in (obs, act, logp, advantage, advantage + value)]
        seen.append(data[0].numpy())
        for _ in range(4):
            for index in torch.randperm(num_envs * length).view(-1, 256):
                o, a, old, gain, target = (x[index] for x in data)
                ratio = (choices(logits=policy(o)).log_prob(a) - old).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                loss = (
                    -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                    + 0.5 * (critic(o)[:, 0] - target).square().mean()
                )
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_([*policy.parameters(), *critic.parameters()], 0.5)
                optimiser.step()
                steps = [*steps[-2:], flat()]
        after.append(flat())
    every = np.concatenate(seen[len(seen) // 2 :])
    chosen = np.random.default_rng(seed).choice(len(every), min(OBSERVATIONS, len(every)), replace=False)
    return after, steps, tuple(p.numel() for p in policy.parameters()), every[chosen]
