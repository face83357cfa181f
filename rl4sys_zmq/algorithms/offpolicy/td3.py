"""Twin delayed deep deterministic policy gradient (TD3 [1]), and with it DDPG [2], for bounded continuous actions.

The policy μ computes one action for each observation, and critics Q learn its values. Target networks μ̄ and Q̄ follow them
slowly. Each gradient step changes the critics. Every `policy_delay` steps, the policy and the target networks change too:

- action for a target:  a' = clip(μ̄(s') + clip(ε, -c, c), -1, 1), with ε ~ N(0, target_noise²) and a limit c
- target of Q(s, a):  r + γ min(Q̄₁, Q̄₂)(s', a') if the episode continues, else r
- loss of the policy:  -E[Q₁(s, μ(s))]

DDPG has one critic, no delay and no ε.

[1] Fujimoto et al. 2018, Addressing Function Approximation Error in Actor-Critic Methods.
[2] Lillicrap et al. 2016, Continuous Control with Deep Reinforcement Learning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rl4sys_zmq.algorithms.action_distributions import ActionScale
from rl4sys_zmq.algorithms.cloning import cloned_columns
from rl4sys_zmq.algorithms.networks import ReplayShape
from rl4sys_zmq.algorithms.offpolicy.critic_parameters import DDPGParameters, TD3Parameters
from rl4sys_zmq.algorithms.offpolicy.offpolicy import GradientStepResult, ReplayAlgorithm
from rl4sys_zmq.algorithms.offpolicy.samplers import Columns
from rl4sys_zmq.learner.registry.algorithm_protocols import CloneOptions
from rl4sys_zmq.replay import TransitionBatch
from rl4sys_zmq.values import BoxSpace, ObservationSpace, Segment, Space


class TD3(ReplayAlgorithm[TD3Parameters]):
    """Twin delayed deep deterministic policy gradient (TD3) [1].

    Before `learning_starts` steps, actors choose uniform random actions; after that, the policy's actions with noise.
    """

    name: ClassVar[str] = "TD3"
    parameters_type: ClassVar[type[TD3Parameters]] = TD3Parameters

    def __init__(
        self, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
    ) -> None:
        super().__init__(observation_space, action_space, parameters, seed)
        assert isinstance(action_space, BoxSpace)
        self._scale, size = ActionScale(action_space), action_space.size
        self._policy, self._target_policy = self._pair(ReplayShape(outputs=(size,)))
        critics = (1,) * (2 if self.parameters.twin_critics else 1)
        self._critics, self._target_critics = self._pair(ReplayShape(outputs=critics, actions=size))
        trained = {"critics": self._critics, "policy": self._policy}
        self._use(
            {**trained, "target_critics": self._target_critics, "target_policy": self._target_policy}, dict.fromkeys(trained)
        )

    def _columns(self, batch: TransitionBatch) -> Columns:
        columns = super()._columns(batch)
        columns["actions"] = actions = self._scale(columns["actions"])
        if self.parameters.target_noise:
            columns["noise"] = torch.randn(actions.shape, generator=self._generator, dtype=torch.float32, device="cpu")
        return columns

    def _gradient_step(self, batch: Columns, weight: float, rate: float) -> GradientStepResult:
        p, observations = self.parameters, batch["observations"]
        targets = self._targets(batch)
        estimates = self._critics(observations, actions=batch["actions"])
        critic_loss = functional.mse_loss(estimates[0].squeeze(1), targets)
        for other in estimates[1:]:
            critic_loss = critic_loss + functional.mse_loss(other.squeeze(1), targets)
        self._descend("critics", critic_loss, weight, p.critic_rate)
        metrics = {"losses/qf_loss": critic_loss.detach(), "losses/qf_values": estimates[0].detach().mean()}
        if self._gradient_steps % p.policy_delay:
            return GradientStepResult(metrics)

        actions = self._policy(observations)[0].tanh()
        policy_loss = -self._critics.one(0, observations, actions=actions).mean()
        self._descend("policy", policy_loss, weight, rate)
        self._target_policy.flat.lerp_(self._policy.flat, p.target_share)
        self._target_critics.flat.lerp_(self._critics.flat, p.target_share)
        return GradientStepResult({**metrics, "losses/actor_loss": policy_loss.detach()})

    @torch.no_grad()
    def _targets(self, batch: Columns) -> Tensor:
        """Return the values that the critics must learn for a batch, ``[B]``."""
        p, successors = self.parameters, batch["successors"]
        actions = self._target_policy(successors)[0].tanh()
        if "noise" in batch:
            noise = (batch["noise"] * p.target_noise).clamp(-p.target_noise_clip, p.target_noise_clip)
            actions = (actions + noise).clamp(-1.0, 1.0)
        values = self._target_critics(successors, actions=actions)
        least = values[0] if len(values) == 1 else torch.minimum(values[0], values[1])
        return batch["returns"] + batch["discounts"] * least.squeeze(1)

    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        """Return the policy's weights, and the actors' noise and epsilon. Epsilon is 1 before `learning_starts`, then 0."""
        p = self.parameters
        exploration = np.array([p.exploration_noise, self._pace.steps < p.learning_starts], np.float32)
        return self._spec.views(np.concatenate([self._policy.flat.cpu().numpy(), exploration]))

    def clone(self, segments: Sequence[Segment], options: CloneOptions) -> float:
        """Train the policy, by the mean squared error of scaled actions. The target policy then gets the same weights."""
        features, actions, *_ = cloned_columns(segments, self._observation_space, self._spec.action_space)
        columns = features, self._scale(actions)

        def loss(inputs: Tensor, wanted: Tensor) -> Tensor:
            return functional.mse_loss(self._policy(inputs)[0].tanh(), wanted)

        mean_loss = self._clone("policy", columns, loss, options)
        self._target_policy.flat.copy_(self._policy.flat)
        return mean_loss

    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        self._compute.ranks.differ()
        flat, _ = self._spec.flatten(tensors)
        for network in (self._policy, self._target_policy):
            network.flat.copy_(torch.from_numpy(flat[: network.flat.numel()]))


class DDPG(TD3):
    """Deep deterministic policy gradient (DDPG) [2]: TD3 with the defaults of `DDPGParameters`."""

    name = "DDPG"
    parameters_type = DDPGParameters
