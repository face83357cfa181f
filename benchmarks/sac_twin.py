"""SAC beside Stable-Baselines3 with the same random numbers: does anything else differ?

    python benchmarks/sac_twin.py --case sac-halfcheetah --updates 100 --seed 1

Stable-Baselines3 (the extra ``sb3``) trains in this process with the values of a case of ``benchmarks/learning.py``, but it
starts to train after 1,000 steps. Our SAC starts from the same weights, and takes each gradient step on the same batch with the
same noise. The script prints the distance between the weights of both sides after a number of gradient steps, relative to how far
theirs have moved. So a difference in a loss, a gradient, an optimizer, the temperature or the targets is visible in the first
step. It does not compare the replay, the actor, and the moments of the gradient steps. Rounding differs, and the distance grows
with each gradient step.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, cast

import torch
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from torch import Tensor, nn

from bench.learning_cases import CASES
from rl4sys_zmq.algorithms import make_algorithm
from rl4sys_zmq.values import observation_space_from, space_from

MARKS = (1, 10, 100, 1000, 10_000)
"""The numbers of gradient steps after which the script prints the distance."""


class NotedNoise:
    """The standard normal numbers that torch's Gaussians have drawn."""

    def __init__(self) -> None:
        self.drawn: list[Tensor] = []
        self._draw: Callable[..., Tensor] = getattr(torch.distributions.normal, "_standard_normal")
        setattr(torch.distributions.normal, "_standard_normal", self.draw)  # noqa: B010

    def draw(self, *arguments: Any, **named: Any) -> Tensor:
        """Draw, and note what was drawn."""
        self.drawn.append(self._draw(*arguments, **named))
        return self.drawn[-1]


class Twin(SAC):
    """Their SAC, which trains ours beside it."""

    def begin(self, case: str) -> None:
        """Build our SAC with their weights."""
        spaces = observation_space_from(self.observation_space), space_from(self.action_space)
        self.ours = cast(Any, make_algorithm("SAC", *spaces, CASES[case].values or {}, 0))
        self.rate = self.ours.parameters.learning_rate
        self.ours._policy.flat[:-1].copy_(self.policy_weights())
        self.ours._critics.flat.copy_(critic_weights(self.critic))
        self.ours._targets.flat.copy_(critic_weights(self.critic_target))
        self.first_policy, self.first_critics = self.policy_weights(), critic_weights(self.critic)
        self.noise, self.updates = NotedNoise(), 0

    def policy_weights(self) -> Tensor:
        """Return the weights of their policy in our order. Their heads of the mean and of log σ are one layer of ours."""
        mean, log_std = cast(nn.Linear, self.actor.mu), cast(nn.Linear, self.actor.log_std)
        heads = [torch.cat([mean.weight, log_std.weight]).ravel(), torch.cat([mean.bias, log_std.bias])]
        body = [parameter.ravel() for parameter in self.actor.latent_pi.parameters()]
        return torch.cat([*body, *heads]).detach().clone()

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Take one gradient step on both sides."""
        assert gradient_steps == 1 and self.replay_buffer is not None
        buffer, batches = self.replay_buffer, list[Any]()
        sample = buffer.sample
        self.noise.drawn.clear()

        def noted(*arguments: Any, **named: Any) -> Any:
            batches.append(sample(*arguments, **named))
            return batches[-1]

        buffer.sample = noted  # type: ignore[method-assign]
        super().train(gradient_steps, batch_size)
        buffer.sample = sample  # type: ignore[method-assign]
        (batch,), (now, then) = batches, self.noise.drawn
        columns = {
            "observations": batch.observations.float(),
            "actions": batch.actions,
            "returns": batch.rewards.squeeze(1),
            "discounts": self.gamma * (1 - batch.dones).squeeze(1),
            "successors": batch.next_observations.float(),
            "noise": now,
            "successor_noise": then,
        }
        self.ours._step(columns, self.rate)
        self.updates += 1
        if self.updates in MARKS:
            self.compare()

    def compare(self) -> None:
        """Print the distances."""
        log_temperature = cast(Tensor, self.log_ent_coef).detach()
        found = {
            "gradient_steps": self.updates,
            "policy": relative(self.ours._policy.flat[:-1], self.policy_weights(), self.first_policy),
            "critics": relative(self.ours._critics.flat, critic_weights(self.critic), self.first_critics),
            "log_temperature": float((self.ours._policy.flat[-1] - log_temperature).abs()),
        }
        print(json.dumps(found), flush=True)


def critic_weights(critics: Any) -> Tensor:
    """Return the weights of both of their critics, one after the other."""
    return torch.cat([parameter.detach().ravel() for network in critics.q_networks for parameter in network.parameters()])


def relative(ours: Tensor, theirs: Tensor, first: Tensor) -> float:
    """Return the distance between both, relative to how far theirs is from its first value."""
    return float((ours - theirs).norm() / (theirs - first).norm())


def main() -> None:
    """Train both, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name for name, case in CASES.items() if case.peer == "SAC"]
    parser.add_argument("--case", choices=names, default="sac-halfcheetah")
    parser.add_argument("--updates", type=int, default=100, help="the number of gradient steps")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    case = CASES[options.case]
    envs = make_vec_env(case.env, n_envs=1, seed=options.seed)
    values = {**case.peer_values, "learning_starts": 1000}
    model = Twin("MlpPolicy", envs, seed=options.seed, device="cpu", **values)
    model.begin(options.case)
    model.learn(10**9, callback=lambda names, _: names["self"].updates < options.updates)


if __name__ == "__main__":
    main()
