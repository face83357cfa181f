"""IMPALA: an actor-critic that corrects for the age of its data by V-trace (Espeholt et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rl4sys_zmq.algorithms.networks.sequences import Sequences
from rl4sys_zmq.algorithms.onpolicy.actor_critic import ActorCritic
from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import ActorCriticParameters, entropy_weight
from rl4sys_zmq.algorithms.onpolicy.impala_parameters import IMPALAParameters
from rl4sys_zmq.algorithms.onpolicy.returns import explained_variance, vtrace
from rl4sys_zmq.algorithms.onpolicy.rollout import RolloutBatch, half_square_error


@dataclass(frozen=True, slots=True, eq=False)
class _StepTensors:
    """The inputs of a gradient step for ``N`` environment steps, as tensors.

    Attributes:
        features: The observations as ``F`` features, float32 ``[N, F]``, standardised if the algorithm does so.
        actions: The raw actions, before clipping or squashing, in the form of `ActionDistributions.encode`, ``[N, ...]``.
        advantages: The advantage of each action, multiplied by its truncated importance weight, ``[N]``.
        targets: The targets of the value network, ``[N]``.
        forbidden: True for each forbidden action, bool ``[N, n]``; None if all are allowed.
        sequences: The sequences of the steps, for a recurrent network; None for other networks.
    """

    features: Tensor
    actions: Tensor
    advantages: Tensor
    targets: Tensor
    forbidden: Tensor | None = None
    sequences: Sequences | None = None

    def columns(self, choose: Callable[[Tensor], Tensor] = lambda column: column) -> dict[str, Any]:
        """Return the columns by name as tensors, each as the result of a function, without those that are None."""
        return {name: choose(column) for name in self.__slots__ if isinstance(column := getattr(self, name), Tensor)}


class IMPALA(ActorCritic):
    """IMPALA. Each update is one gradient step on a batch of whole segments, corrected by V-trace.

    The loss of a batch is ``-mean(ρ_t log π(a_t|s_t) (r_t + γ v_{t+1} - V(s_t)))``, plus the value loss ``half (v_t - V(s_t))²``
    and minus the entropy bonus, with their weights (Espeholt et al. 2018, section 4.2). The importance weights come from the
    log-probabilities that the actors sent, so they are exact for data of every version.

    Differences from the paper, beside those of `ActorCritic`:

    - The losses are means over the steps of a batch, not sums.
    - The optimizer is Adam, unless ``rms_prop`` is True.
    - With ``vtrace: false``, all weights are 1. This is for comparisons.
    """

    name: ClassVar[str] = "IMPALA"
    parameters_type: ClassVar[type[ActorCriticParameters]] = IMPALAParameters
    max_policy_lag: int | None = None

    def _configure(self, parameters: ActorCriticParameters) -> None:
        super()._configure(parameters)
        assert isinstance(parameters, IMPALAParameters)
        self._settings = parameters
        self._entropy_weight = entropy_weight(parameters.ent_coef, self._spec.action_space)

    def _train(self, rollout: RolloutBatch) -> dict[str, float]:
        """Do the gradient step of one update. Return its metrics."""
        p = self._settings
        rate = p.learning_rate * (p.share_left(self._steps, len(rollout.rewards)) if p.anneal_lr else 1.0)
        batch, metrics = self._prepare(rollout)
        before = self._network.flat.clone()
        with self._compute.ranks.leading({"columns": batch.columns(), "rate": rate}, self.checkpoint):
            losses = self._step(batch, rate)
        change = float(torch.linalg.vector_norm(self._network.flat - before))
        return {**losses, **metrics, "losses/weight_change": change, "charts/learning_rate": rate}

    def follow(self, work: Mapping[str, Any]) -> None:
        """Do this rank's part of the gradient step of an update. The ranks are the processes that train together."""
        columns: dict[str, Any] = {name: self._compute.put(column) for name, column in work["columns"].items()}
        self._step(_StepTensors(**columns), work["rate"])

    def _prepare(self, rollout: RolloutBatch) -> tuple[_StepTensors, dict[str, float]]:
        """Compute the value targets and the weighted advantages of a batch, by one forward pass. Return them and metrics."""
        p, put = self._settings, self._compute.put
        features, actions = self._standardised(put(rollout.features)), put(rollout.actions)
        forbidden = None if rollout.forbidden is None else put(rollout.forbidden)
        rows = put(torch.from_numpy(rollout.rows))
        outputs, estimates, sequences = self._evaluate(rollout, features)
        with torch.no_grad():
            current = self._distribution(outputs.index_select(0, rows), forbidden).log_probs(actions).cpu()
        log_ratios = (current - rollout.log_probs).numpy().astype(np.float64)
        weights = np.exp(log_ratios) if p.vtrace else np.ones(len(log_ratios))
        values, next_values = self._step_values(rollout, estimates)
        advantages, targets = vtrace(
            self._scaled_rewards(rollout), values, next_values, rollout.continues, weights,
            gamma=p.gamma, lam=p.gae_lambda, rho_clip=p.rho_clip, c_clip=p.c_clip,
        )  # fmt: skip
        if p.norm_adv and len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        truncated = np.minimum(weights, p.rho_clip)
        metrics = {
            "losses/explained_variance": explained_variance(values, targets),
            "losses/approx_kl": float((np.expm1(log_ratios) - log_ratios).mean()),
            "losses/mean_weight": float(truncated.mean()),
        }
        batch = _StepTensors(
            features=features.index_select(0, rows),
            actions=actions,
            advantages=put(torch.from_numpy((truncated * advantages).astype(np.float32))),
            targets=put(torch.from_numpy(targets.astype(np.float32))),
            forbidden=forbidden,
            sequences=sequences,
        )
        return batch, metrics

    def _step(self, batch: _StepTensors, rate: float) -> dict[str, float]:
        """Take the gradient step. Each rank computes with its share of the rows. Return the losses over all rows."""
        p, ranks = self._settings, self._compute.ranks
        share = ranks.share(len(batch.actions))
        if ranks.size > 1:
            batch = _StepTensors(**batch.columns(lambda column: column[share.rows]))
        outputs, estimates = self._network(batch.features, batch.sequences)
        distribution = self._distribution(outputs, batch.forbidden)
        policy_loss = torch.dot(distribution.log_probs(batch.actions), batch.advantages) * (-1.0 / len(batch.actions))
        value_loss = half_square_error(estimates.squeeze(1), batch.targets, None, 0.0)
        entropy = distribution.mean_entropy()
        loss = policy_loss + value_loss * p.vf_coef - entropy * self._entropy_weight
        gradient = self._network.gradient(loss * share.weight)
        ranks.add_up(gradient)
        self._optimizer.step(gradient, (rate, rate), max_norm=p.max_grad_norm)
        losses = torch.stack((policy_loss, value_loss, entropy)).detach() * share.weight
        ranks.add_up(losses)
        names = ("losses/policy_loss", "losses/value_loss", "losses/entropy")
        return dict(zip(names, losses.tolist(), strict=True))
