"""Soft actor-critic (SAC), for bounded continuous actions [1, 2] and for discrete actions [3].

The policy maximises the return and its entropy H, weighted by the temperature α. Two critics Q learn the soft action values. The
smaller of two target critics Q̄, which follow Q slowly, gives the targets. The temperature is learned, so that the entropy of the
policy approaches a target. Each gradient step changes the critics, then the policy and the temperature, then the target critics:

- value of a state s:  V(s) = E[min(Q̄₁, Q̄₂)(s, a) - α log π(a|s)], with a ~ π(s)
- target of Q(s, a):  r + γ V(s') if the episode continues, else r
- loss of the policy:  E[α log π(a|s) - min(Q₁, Q₂)(s, a)], with a ~ π(s)
- loss of log α:  -log α E[log π(a|s) + target entropy]

With continuous actions, an expectation over actions is estimated from one sample, through which the gradient of the policy
flows. With discrete actions, it is the exact sum over all actions.

[1] Haarnoja et al. 2018, Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with a Stochastic Actor.
[2] Haarnoja et al. 2018, Soft Actor-Critic Algorithms and Applications.
[3] Christodoulou 2019, Soft Actor-Critic for Discrete Action Settings.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rl4sys_zmq.algorithms.action_distributions import FORBIDDEN_LOGIT, ActionScale
from rl4sys_zmq.algorithms.cloning import cloned_columns, cross_entropy
from rl4sys_zmq.algorithms.networks import ReplayShape
from rl4sys_zmq.algorithms.networks.flat_networks import limit_norm
from rl4sys_zmq.algorithms.offpolicy.critic_parameters import SACParameters
from rl4sys_zmq.algorithms.offpolicy.offpolicy import GradientStepResult, ReplayAlgorithm
from rl4sys_zmq.algorithms.offpolicy.samplers import Columns
from rl4sys_zmq.learner.registry.algorithm_protocols import CloneOptions
from rl4sys_zmq.replay import TransitionBatch
from rl4sys_zmq.values import BoxSpace, ObservationSpace, Segment, Space
from rl4sys_zmq.values.spaces import DictSpace, MultiBinarySpace

_OBSERVATION, _ALLOWED = "observation", "allowed"

SQUASH_EPSILON = 1e-6
"""Added to the derivative of tanh, so that the log-density of an action at a bound has a limit."""


class PolicyLoss(NamedTuple):
    """The policy's loss, an estimate of the policy's entropy in nats ``[B]``, and the entropy's target: a number, or ``[B]``."""

    loss: Tensor
    entropy: Tensor
    target: Tensor | float


def make_sac(
    observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
) -> ContinuousSAC | DiscreteSAC:
    """Build SAC for these actions."""
    kind = ContinuousSAC if isinstance(action_space, BoxSpace) else DiscreteSAC
    return kind(observation_space, action_space, parameters, seed)


class _SoftActorCritic(ReplayAlgorithm[SACParameters]):
    """The base class of SAC for both kinds of actions.

    The parameters of the policy end with the logarithm of the entropy's weight, so one optimizer changes both.
    """

    name: ClassVar[str] = "SAC"
    parameters_type: ClassVar[type[SACParameters]] = SACParameters

    def __init__(
        self, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
    ) -> None:
        super().__init__(observation_space, action_space, parameters, seed)
        p = self.parameters
        outputs = p.head(self.name, action_space).outputs(action_space)
        self._policy = p.chosen_network().replay(observation_space, ReplayShape(outputs=(outputs,), extras=1))
        self._policy.initialise_uniform(self._generator)
        self._critics, self._targets = self._pair(self._critic_shape())
        size = self._policy.flat.numel()
        self._weights, self._temperature = slice(0, size - 1), slice(size - 1, size)
        self._policy.flat[self._temperature] = math.log(p.initial_temperature())
        self._use(
            {"critics": self._critics, "policy": self._policy, "targets": self._targets},
            {"critics": None, "policy": (self._weights, self._temperature)},
        )

    @abstractmethod
    def _critic_shape(self) -> ReplayShape:
        """Return the inputs and outputs of the two critics."""

    @abstractmethod
    def _successor_values(self, batch: Columns, temperature: Tensor) -> Tensor:
        """Return the values V of the successor observations, ``[B]``."""

    @abstractmethod
    def _estimates(self, batch: Columns) -> list[Tensor]:
        """Return each critic's values of the actions in the batch, ``[B]``."""

    @abstractmethod
    def _policy_loss(self, batch: Columns, temperature: Tensor) -> PolicyLoss:
        """Return the policy's loss for a batch, with the policy's entropy and the target."""

    def _gradient_step(self, batch: Columns, weight: float, rate: float) -> GradientStepResult:
        p = self.parameters
        log_temperature = self._policy.flat[self._temperature].detach().clone()
        temperature = log_temperature.exp()

        with torch.no_grad():
            targets = batch["returns"] + batch["discounts"] * self._successor_values(batch, temperature)
        estimates = self._estimates(batch)
        critic_loss = 0.5 * (functional.mse_loss(estimates[0], targets) + functional.mse_loss(estimates[1], targets))
        self._descend("critics", critic_loss, weight, p.critic_rate)

        policy_loss, entropy, target = self._policy_loss(batch, temperature)
        surplus = (entropy.detach() - target).mean()
        gradient = self._gradient("policy", policy_loss, weight)
        gradient[self._temperature] = surplus * weight  # the derivative of the loss of log α
        self._compute.ranks.add_up(gradient)
        if p.max_grad_norm is not None:
            limit_norm(gradient[self._weights], p.max_grad_norm)
        self._optimizers["policy"].step(gradient, [rate, p.temperature_rate if p.learn_temperature else None])

        self._targets.flat.lerp_(self._critics.flat, p.target_share)
        return GradientStepResult(
            {
                "losses/qf_loss": critic_loss.detach(),
                "losses/qf_values": estimates[0].detach().mean(),
                "losses/actor_loss": policy_loss.detach(),
                "losses/entropy": entropy.detach().mean(),
                "losses/alpha_loss": (log_temperature * surplus).squeeze(),
                "losses/alpha": temperature.squeeze(),
            }
        )

    def _restore_model(self, kept: Mapping[str, Any]) -> None:
        super()._restore_model(kept)
        if not self.parameters.learn_temperature:
            self._policy.flat[self._temperature] = math.log(self.parameters.initial_temperature())

    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        return self._spec.views(self._policy.flat[self._weights].cpu().numpy().copy())

    def clone(self, segments: Sequence[Segment], options: CloneOptions) -> float:
        """Train the policy to choose the demonstrated actions. The temperature stays as it is."""
        features, actions, *forbidden = cloned_columns(segments, self._observation_space, self._spec.action_space)
        return self._clone("policy", (features, self._scaled(actions), *forbidden), self._clone_loss, options)

    def _scaled(self, actions: Tensor) -> Tensor:
        """Return demonstrated actions in the form that the networks take."""
        return actions

    @abstractmethod
    def _clone_loss(self, features: Tensor, actions: Tensor, forbidden: Tensor | None = None) -> Tensor:
        """Return the loss on demonstrated actions that `_scaled` has returned. `forbidden` has True for forbidden ones."""

    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        self._compute.ranks.differ()
        flat, _ = self._spec.flatten(tensors)
        self._policy.flat[self._weights] = torch.from_numpy(flat).to(self._policy.flat.device)


class ContinuousSAC(_SoftActorCritic):
    """SAC for bounded continuous actions [1, 2]: a Gaussian squashed by tanh. Critics and entropy use actions in -1 .. 1."""

    def _critic_shape(self) -> ReplayShape:
        return ReplayShape(outputs=(1, 1), actions=self._spec.outputs)

    @cached_property
    def _scale(self) -> ActionScale:
        assert isinstance(self._spec.action_space, BoxSpace)
        return ActionScale(self._spec.action_space)

    def _columns(self, batch: TransitionBatch) -> Columns:
        columns = super()._columns(batch)
        columns["actions"] = actions = self._scaled(columns["actions"])
        for name in ("noise", "successor_noise"):
            columns[name] = torch.randn(actions.shape, generator=self._generator, dtype=torch.float32, device="cpu")
        return columns

    def _successor_values(self, batch: Columns, temperature: Tensor) -> Tensor:
        successors = batch["successors"]
        actions, log_probs = self._sample(successors, batch["successor_noise"])
        return torch.minimum(*self._targets(successors, actions=actions)).squeeze(1) - temperature * log_probs

    def _estimates(self, batch: Columns) -> list[Tensor]:
        return [values.squeeze(1) for values in self._critics(batch["observations"], actions=batch["actions"])]

    def _policy_loss(self, batch: Columns, temperature: Tensor) -> PolicyLoss:
        observations = batch["observations"]
        actions, log_probs = self._sample(observations, batch["noise"])
        values = torch.minimum(*self._critics(observations, actions=actions)).squeeze(1)
        loss = (temperature * log_probs - values).mean()
        target = self.parameters.target_entropy
        return PolicyLoss(loss, -log_probs, -float(actions.shape[1]) if target is None else target)

    def _scaled(self, actions: Tensor) -> Tensor:
        return self._scale(actions)

    def _clone_loss(self, features: Tensor, actions: Tensor, forbidden: Tensor | None = None) -> Tensor:
        """Return the mean squared error of the most probable actions, scaled to -1 .. 1."""
        means, _ = self._policy(features)[0].chunk(2, 1)
        return functional.mse_loss(means.tanh(), actions)

    def _sample(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return an action between -1 and 1 ``[B, n]`` for each row of features, and its log-density ``[B]``."""
        means, log_stds = self._policy(features)[0].chunk(2, 1)
        return squash(means, log_stds.clamp(self.parameters.log_std_min, self.parameters.log_std_max), noise)


def squash(means: Tensor, log_stds: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return a sample of the squashed Gaussian and its log-density. μ is `means`, log σ is `log_stds`, and ε is `noise`.

    With u = μ + σ ε, the action is tanh(u), and log π = log N(u; μ, σ) - Σ log(1 - tanh²(u) + 1e-6). Without the 1e-6, this is
    the exact density ([1], appendix C), which has no limit where tanh(u) goes to ±1. With it, as in the first implementation of
    the authors of [1], an action at a bound costs at most 13.8 nats in each dimension.
    """
    actions = torch.addcmul(means, log_stds.exp(), noise).tanh()
    terms = log_stds + 0.5 * noise.square() + torch.log(1.0 - actions.square() + SQUASH_EPSILON)
    return actions, -terms.sum(1) - 0.5 * means.shape[1] * math.log(2.0 * math.pi)


class DiscreteSAC(_SoftActorCritic):
    """SAC for discrete actions [3]. Forbidden actions have the probability 0.

    The target of the entropy is a fraction of the entropy of a uniform choice among the allowed actions. So the replay stores
    masks.
    """

    def _critic_shape(self) -> ReplayShape:
        return ReplayShape(outputs=(self._spec.outputs,) * 2)

    def _stored_space(self) -> ObservationSpace:
        return DictSpace({_ALLOWED: MultiBinarySpace(self._spec.outputs), _OBSERVATION: self._observation_space})

    def _stored(self, segment: Segment) -> Segment:
        """Return the segment with masks as a part of its observations."""
        masks = segment.masks
        if masks is None:
            allowed = np.ones((len(segment.observation_leaves[0]), self._spec.outputs), np.int8)
        else:
            # Nothing is allowed in an observation for which no action was requested.
            allowed = (masks | ~masks.any(axis=1, keepdims=True)).astype(np.int8)
        return replace(segment, observations={_ALLOWED: allowed, _OBSERVATION: segment.observations}, masks=None)

    def _columns(self, batch: TransitionBatch) -> Columns:
        now, then = batch.observations, batch.successors
        plain = replace(batch, observations=now[_OBSERVATION], successors=then[_OBSERVATION])
        masks = {
            name: torch.from_numpy(tree[_ALLOWED]) == 0 for name, tree in (("forbidden", now), ("successor_forbidden", then))
        }
        return super()._columns(plain) | masks

    def _successor_values(self, batch: Columns, temperature: Tensor) -> Tensor:
        successors = batch["successors"]
        log_probs = self._log_probs(successors, batch["successor_forbidden"])
        return (log_probs.exp() * (torch.minimum(*self._targets(successors)) - temperature * log_probs)).sum(1)

    def _estimates(self, batch: Columns) -> list[Tensor]:
        chosen = batch["actions"].unsqueeze(1)
        return [values.gather(1, chosen).squeeze(1) for values in self._critics(batch["observations"])]

    def _policy_loss(self, batch: Columns, temperature: Tensor) -> PolicyLoss:
        log_probs = self._log_probs(batch["observations"], batch["forbidden"])
        probabilities = log_probs.exp()
        with torch.no_grad():
            values = torch.minimum(*self._critics(batch["observations"]))
        loss = (probabilities * (temperature * log_probs - values)).sum(1).mean()
        entropy = -(probabilities * log_probs).sum(1)
        if self.parameters.target_entropy is not None:
            return PolicyLoss(loss, entropy, self.parameters.target_entropy)
        allowed = (~batch["forbidden"]).sum(1).float()
        return PolicyLoss(loss, entropy, self.parameters.target_entropy_ratio * allowed.log())

    def _clone_loss(self, features: Tensor, actions: Tensor, forbidden: Tensor | None = None) -> Tensor:
        return cross_entropy(self._policy(features)[0], actions, forbidden)

    def _log_probs(self, features: Tensor, forbidden: Tensor) -> Tensor:
        """Return the log-probabilities of all actions, ``[B, n]``; that of a forbidden action is very low."""
        return torch.log_softmax(self._policy(features)[0].masked_fill(forbidden, FORBIDDEN_LOGIT), 1)
