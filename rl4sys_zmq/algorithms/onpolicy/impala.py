"""IMPALA: an actor-critic that corrects for the age of its data by V-trace (Espeholt et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from rl4sys_zmq.algorithms.networks.inputs import Sequences
from rl4sys_zmq.algorithms.onpolicy.actor_critic import ActorCritic
from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import ActorCriticParameters, entropy_weight
from rl4sys_zmq.algorithms.onpolicy.onpolicy_entries import IMPALAParameters
from rl4sys_zmq.algorithms.onpolicy.ppo import half_square_error
from rl4sys_zmq.algorithms.onpolicy.rollout import RolloutBatch, explained_variance, vtrace


class IMPALA(ActorCritic):
    """IMPALA. Each update is one gradient step on a batch of whole segments, corrected by V-trace.

    The loss of a batch is ``-mean(ρ_t log π(a_t|s_t) (r_t + γ v_{t+1} - V(s_t)))``, plus the value loss ``(v_t - V(s_t))² / 2``
    and minus the entropy bonus, with their weights (Espeholt et al. 2018, section 4.2). `vtrace` defines ρ and v. The
    importance weights come from the log-probabilities that the actors sent, so they are exact for data of every version.

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

    def _work(self, rollout: RolloutBatch) -> tuple[dict[str, Any], Sequences | None, dict[str, float]]:
        """Return the inputs of the gradient step, by one forward pass over all observations.

        ``advantages`` are multiplied by their truncated importance weights. The other columns are those of `TrainingTensors`.
        """
        p, put = self._settings, self._compute.put
        columns, current, estimates, sequences = self._forward(rollout)
        log_ratios = (current.cpu() - rollout.log_probs).numpy().astype(np.float64)
        weights = np.exp(log_ratios) if p.vtrace else np.ones(len(log_ratios))
        values, next_values = rollout.step_values(estimates)
        advantages, targets = vtrace(
            self._scaled_rewards(rollout), values, next_values, rollout.continues, weights,
            gamma=p.gamma, lam=p.gae_lambda, rho_clip=p.rho_clip, c_clip=p.c_clip,
        )  # fmt: skip
        if p.norm_adv:
            advantages = self._normalised(advantages)
        truncated = np.minimum(weights, p.rho_clip)
        metrics = {
            "losses/explained_variance": explained_variance(values, targets),
            "losses/approx_kl": float((np.expm1(log_ratios) - log_ratios).mean()),
            "losses/mean_weight": float(truncated.mean()),
        }
        columns["advantages"] = put(torch.from_numpy((truncated * advantages).astype(np.float32)))
        columns["targets"] = put(torch.from_numpy(targets.astype(np.float32)))
        rate = p.learning_rate * (p.share_left(self._steps, len(rollout.rewards)) if p.anneal_lr else 1.0)
        return {"columns": columns, "rates": (rate, rate)}, sequences, metrics

    def _fit(self, work: Mapping[str, Any], sequences: Sequences | None) -> dict[str, float]:
        p, ranks, columns = self._settings, self._compute.ranks, work["columns"]
        share = ranks.share(len(columns["actions"]))
        if ranks.size > 1:
            columns = {name: column[share.rows] for name, column in columns.items()}
        outputs, estimates = self._network(columns["features"], sequences)
        distribution = self._distribution(outputs, columns.get("forbidden"))
        log_probs = distribution.log_probs(columns["actions"])
        policy_loss = torch.dot(log_probs, columns["advantages"]) * (-1.0 / len(log_probs))
        value_loss = half_square_error(estimates.squeeze(1), columns["targets"], None, 0.0)
        entropy = distribution.mean_entropy()
        loss = policy_loss + value_loss * p.vf_coef - entropy * self._entropy_weight
        self._step(loss * share.weight, work["rates"])
        losses = torch.stack((policy_loss, value_loss, entropy)).detach() * share.weight
        ranks.add_up(losses)
        names = ("losses/policy_loss", "losses/value_loss", "losses/entropy")
        return dict(zip(names, losses.tolist(), strict=True))
