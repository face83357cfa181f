"""Proximal policy optimisation (PPO, Schulman et al. 2017) for segments from asynchronous actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rl4sys_zmq.algorithms.onpolicy.a2c_parameters import A2CParameters, A3CParameters
from rl4sys_zmq.algorithms.onpolicy.actor_critic import ActorCritic
from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import ActorCriticParameters
from rl4sys_zmq.algorithms.onpolicy.ppo_parameters import PPOParameters, PPOSetting
from rl4sys_zmq.algorithms.onpolicy.reinforce_parameters import REINFORCEParameters
from rl4sys_zmq.algorithms.onpolicy.returns import explained_variance, vtrace
from rl4sys_zmq.algorithms.onpolicy.rollout import (
    RolloutBatch,
    TrainingTensors,
    clipped_objective,
    equal_sizes,
    half_square_error,
    ratio_bounds,
)
from rl4sys_zmq.algorithms.onpolicy.rpo_parameters import RPOParameters
from rl4sys_zmq.learner.registry.compute import Ranks


@dataclass(slots=True)
class PassMetrics:
    """The losses and other measurements of one pass over a batch, for the metrics.

    The lists have one tensor per minibatch. The tensors are converted to numbers after the pass, because each conversion is slow.

    Attributes:
        policy_losses: The loss of the policy, as scalar tensors.
        value_losses: The loss of the value network, as scalar tensors.
        entropies: The mean entropy of the policy in nats, as scalar tensors.
        log_ratios: Logarithms of the probability ratio between the current policy and the one that chose the actions, before
            the gradient step of the minibatch; ``[B]`` for a minibatch of ``B`` steps.
        stopped: True if the pass ended early, because the policy differs too much from the one that chose the actions.
    """

    policy_losses: list[Tensor] = field(default_factory=list)
    value_losses: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    log_ratios: list[Tensor] = field(default_factory=list)
    stopped: bool = False

    def add_up(self, ranks: Ranks, sizes: Sequence[int]) -> None:
        """Replace the measurements on this rank's rows by those on all rows. All ranks must call this together.

        Args:
            ranks: The interface to the ranks, the processes that train together.
            sizes: The sizes of the minibatches over all ranks.
        """
        if ranks.size == 1:
            return
        shares = [ranks.share(size) for size in sizes]
        means = (self.policy_losses, self.value_losses, self.entropies)
        found = [mean * share.weight for each in means for mean, share in zip(each, shares, strict=False)]
        ratios = []
        for part, share, size in zip(self.log_ratios, shares, sizes, strict=False):  # a pass that ended early has fewer
            ratios.append(part.new_zeros(size))
            if share.weight:
                ratios[-1][share.rows] = part
        everything = torch.cat([torch.stack(found), *ratios])
        ranks.add_up(everything)
        lengths = [*map(len, means), *map(len, ratios)]
        policy, value, entropy, *self.log_ratios = torch.split_with_sizes(everything, lengths)
        self.policy_losses, self.value_losses, self.entropies = list(policy), list(value), list(entropy)

    def kl(self, *, last: bool = False) -> float:
        """Return the approximate KL divergence of the current policy from the policy that chose the actions.

        With `last`, it is that of the last minibatch only.
        """
        return float(approximate_kl(torch.cat(self.log_ratios[-1:] if last else self.log_ratios)))

    def scalars(self, clip: float) -> dict[str, float]:
        """Return the metrics with CleanRL's names ``losses/...``, averaged over the pass.

        Args:
            clip: The current limit ε on the distance of the probability ratio from 1.
        """
        log_ratios = torch.cat(self.log_ratios)
        value_loss = {"losses/value_loss": float(torch.stack(self.value_losses).mean())} if self.value_losses else {}
        return {
            "losses/policy_loss": float(torch.stack(self.policy_losses).mean()),
            **value_loss,
            "losses/entropy": float(torch.stack(self.entropies).mean()),
            "losses/approx_kl": self.kl(),
            "losses/old_approx_kl": float(-log_ratios.mean()),
            "losses/clipfrac": float((torch.expm1(log_ratios).abs() > clip).float().mean()),
        }


def approximate_kl(log_ratios: Tensor) -> Tensor:
    """Return the mean of ``(r - 1) - log r`` over steps, where ``r`` is the probability ratio, as a scalar tensor.

    It approximates the KL divergence (Schulman 2020, "Approximating KL divergence").
    """
    return (torch.expm1(log_ratios) - log_ratios).mean()


RL4SYS_KL_FACTOR = 1.5
"""The policy's gradient steps end when the approximate KL divergence exceeds this factor times `target_kl`.

This applies only to updates with `train_pi_iters` or `train_v_iters`, which work as in RL4Sys.
"""


class PPO(ActorCritic):
    """Proximal policy optimisation (PPO). Each update trains on a batch of whole segments. The learner estimates the values.

    Differences from the paper and from CleanRL's `ppo.py`, beside those of `ActorCritic`:

    - The probability ratio is computed with the log-probabilities that the actors sent. So the ratio is correct also for data
      from an older policy version. For data of the newest version, it is 1 before the first step.
    - A segment that the learner passes to `observe` with ``correct=True`` is too old. It gets V-trace targets, which correct
      for the newer policy. All other segments get generalized advantage estimation (GAE). Consecutive segments of an episode
      are joined, so that an advantage trace continues from one segment to the next.
    - Advantages are normalised over the whole batch, unless ``norm_adv_over`` is ``minibatch``. The sizes of the
      minibatches of a pass differ by at most one step.
    - With ``train_pi_iters`` or ``train_v_iters``, an update works as in RL4Sys: first all gradient steps of the policy on the
      whole batch, then all those of the value network. There is no entropy bonus, and the option ``vf_coef`` has no effect.
    - Without a critic, all values are 0, and the value network is not trained.
    - With ``rpo_alpha``, each pass moves the means of continuous actions by new random numbers (Rahman & Xue 2022, algorithm 1).
    """

    name: ClassVar[str] = "PPO"
    parameters_type: ClassVar[type[PPOSetting]] = PPOParameters

    def _configure(self, parameters: ActorCriticParameters) -> None:
        super()._configure(parameters)
        assert isinstance(parameters, PPOSetting)
        self._settings = p = parameters.ppo()
        self._entropy_weight = 0.0 if p.in_turn else p.entropy(self._spec.action_space)

    def _train(self, rollout: RolloutBatch) -> dict[str, float]:
        """Do one update: all passes over a batch, with a gradient step per minibatch. Return the metrics of the update."""
        p = self._settings
        left = p.share_left(self._steps, len(rollout.rewards))
        shrink = left if p.anneal_lr else 1.0
        policy_rate = p.learning_rate * shrink
        value_rate = policy_rate if p.value_learning_rate is None else p.value_learning_rate * shrink
        clip = p.clip_coef * (left if p.anneal_clip else 1.0)
        columns, metrics = self._prepare(rollout, clip)
        steps = len(rollout.rewards)
        sizes = equal_sizes(steps, p.minibatches(steps))
        before = self._network.flat.clone()
        rates, clips = (policy_rate, value_rate), (clip, p.value_clip if p.value_clip is not None else clip)
        work = {"columns": columns.columns(), "sizes": sizes, "rates": rates, "clips": clips}
        with self._compute.ranks.leading(work, self.checkpoint):
            last = self._fit(columns, sizes, rates, clips)
        change = float(torch.linalg.vector_norm(self._network.flat - before))
        return {**last.scalars(clip), **metrics, "losses/weight_change": change, "charts/learning_rate": policy_rate}

    def follow(self, work: Mapping[str, Any]) -> None:
        """Do this rank's part of the gradient steps of an update. The ranks are the processes that train together."""
        given: dict[str, Any] = {name: self._compute.put(column) for name, column in work["columns"].items()}
        columns = TrainingTensors(**given)
        self._fit(columns, work["sizes"], work["rates"], work["clips"])

    def _fit(
        self, columns: TrainingTensors, sizes: list[int], learning_rates: Sequence[float], clips: Sequence[float]
    ) -> PassMetrics:
        """Do all passes over a batch, with a gradient step per minibatch. Return the metrics of the last pass.

        Args:
            columns: The batch.
            sizes: The sizes of the minibatches, in steps.
            learning_rates: The learning rates of the policy and of the value network.
            clips: The limit ε on the distance of the probability ratio from 1, and that of a value from the old one, if the value
                loss is clipped.
        """
        p = self._settings
        stopped = False
        last = PassMetrics()
        for policy, value in p.passes():
            if stopped and not value:
                continue
            trains = (policy and not stopped, value)
            rates = [rate if due else None for rate, due in zip(learning_rates, trains, strict=True)]
            seen = self._pass(self._moved(columns), sizes, trains, rates, clips)
            seen.value_losses = seen.value_losses or last.value_losses
            if not trains[0]:
                last.value_losses = seen.value_losses
                continue
            last = seen
            stopped = seen.stopped
            if p.target_kl is not None and not p.in_turn and p.target_kl_over != "minibatch":
                stopped = seen.kl(last=p.target_kl_over == "last_minibatch") > p.target_kl
            if stopped and p.value_epochs is None and not p.in_turn:
                break
        return last

    def _moved(self, columns: TrainingTensors) -> TrainingTensors:
        """Return a batch for one pass of RPO: to move an action by a number has the effect of moving the mean by its negative."""
        alpha, numbers = self._settings.rpo_alpha, self._actions.number_columns
        if not alpha or numbers is None:
            return columns
        actions = columns.actions.clone()
        moved = actions[:, numbers]
        noise = torch.rand(
            moved.shape, generator=self._generator, dtype=torch.float32, device="cpu"
        )  # on the CPU, so that all ranks draw the same
        moved += self._compute.put((2.0 * noise - 1.0) * alpha)
        return replace(columns, actions=actions)

    def _prepare(self, rollout: RolloutBatch, clip: float) -> tuple[TrainingTensors, dict[str, float]]:
        """Compute the inputs of all gradient steps of an update, by one forward pass over all observations.

        Args:
            rollout: The batch.
            clip: The limit ε on the distance of the probability ratio from 1.

        Returns:
            The columns to train on, with advantages and value targets; and metrics.
        """
        p = self._settings
        put = self._compute.put
        features = self._standardised(put(rollout.features))
        actions, log_probs = put(rollout.actions), put(rollout.log_probs)
        forbidden = None if rollout.forbidden is None else put(rollout.forbidden)
        rows = put(torch.from_numpy(rollout.rows))
        acted = features.index_select(0, rows)
        outputs, estimates, sequences = self._evaluate(rollout, features)
        with torch.no_grad():
            current = self._distribution(outputs.index_select(0, rows), forbidden).log_probs(actions)
            ratios = (current - log_probs).exp().cpu()
        values, next_values = self._step_values(rollout, estimates if p.critic else torch.zeros_like(estimates))
        rewards = self._scaled_rewards(rollout)
        rhos = np.where(rollout.correct, ratios.numpy().astype(np.float64), 1.0)
        inputs = (rewards, values, next_values, rollout.continues, rhos)
        advantages, targets = vtrace(*inputs, gamma=p.gamma, lam=p.gae_lambda)
        if p.value_lambda is not None:
            _, targets = vtrace(*inputs, gamma=p.gamma, lam=p.value_lambda)
        metrics = {
            "losses/explained_variance": explained_variance(values, targets),
            "losses/ratio_first": float((ratios - 1.0).abs().mean()),
        }
        if p.norm_adv and p.norm_adv_over == "batch" and len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        weights = torch.from_numpy(advantages.astype(np.float32))
        low, high = ratio_bounds(weights, clip)
        columns = TrainingTensors(
            features=acted,
            actions=actions,
            log_probs=log_probs,
            advantages=put(weights),
            low=put(low),
            high=put(high),
            values=put(torch.from_numpy(values.astype(np.float32))),
            targets=put(torch.from_numpy(targets.astype(np.float32))),
            forbidden=forbidden,
            sequences=sequences,
        )
        return columns, metrics

    def _pass(
        self,
        columns: TrainingTensors,
        sizes: list[int],
        trains: tuple[bool, bool],
        rates: Sequence[float | None],
        clips: Sequence[float],
    ) -> PassMetrics:
        """Do one pass over the batch in random order, with one gradient step per minibatch.

        Args:
            columns: The batch.
            sizes: The sizes of the minibatches, in steps.
            trains: True or False for the policy, then for the value network: whether this pass trains it.
            rates: The learning rates of the two networks; None for a network that is not trained.
            clips: As in `_fit`.
        """
        p = self._settings
        limit = p.target_kl if p.in_turn or p.target_kl_over == "minibatch" else None
        normalised = clips[0] if p.norm_adv and p.norm_adv_over == "minibatch" else None
        value_weight = 2.0 if p.in_turn else p.vf_coef  # RL4Sys's value loss is the whole mean squared error
        only = None if all(trains) else trains.index(True)  # running one network costs half
        record, ranks = PassMetrics(), self._compute.ranks
        for batch, weight in columns.minibatches(sizes, self._generator, ranks, clip=normalised):
            if only is None:
                outputs, estimates = self._network(batch.features, batch.sequences)
            else:
                outputs = estimates = self._network.one(only, batch.features, batch.sequences)
            loss: Tensor | None = None
            if trains[0]:
                distribution = self._distribution(outputs, batch.forbidden)
                log_ratio = distribution.log_probs(batch.actions) - batch.log_probs
                loss = clipped_objective(log_ratio.exp(), batch.advantages, batch.low, batch.high)
                record.policy_losses.append(loss.detach())
                with torch.set_grad_enabled(self._entropy_weight > 0.0):
                    entropy = distribution.mean_entropy()
                record.entropies.append(entropy.detach())
                record.log_ratios.append(log_ratio.detach())
                if limit is not None:
                    moved = log_ratio.detach()
                    distance = moved.mean() * -(weight / RL4SYS_KL_FACTOR) if p.in_turn else approximate_kl(moved) * weight
                    ranks.add_up(distance)
                    if float(distance) > limit:
                        record.stopped = True
                        break
                if self._entropy_weight:
                    loss = loss.sub(entropy, alpha=self._entropy_weight)
            if trains[1]:
                old = batch.values if p.clip_values() else None
                value_loss = half_square_error(
                    estimates.squeeze(1), batch.targets, old, clips[1], larger=p.value_clip_loss == "larger"
                )
                record.value_losses.append(value_loss.detach())
                loss = value_loss * value_weight if loss is None else loss.add(value_loss, alpha=value_weight)
            assert loss is not None, "a pass trains at least one of the two networks"
            gradient = self._network.gradient(loss if weight == 1.0 else loss * weight, only)
            ranks.add_up(gradient if only is None else gradient[self._network.parts[only]])
            self._optimizer.step(gradient, rates, max_norm=p.max_grad_norm)
        record.add_up(ranks, sizes)
        return record


class A2C(PPO):
    """Advantage actor-critic (A2C): PPO with one pass over the whole batch and without clipping (Huang et al. 2022)."""

    name: ClassVar[str] = "A2C"
    parameters_type: ClassVar[type[PPOSetting]] = A2CParameters


class A3C(PPO):
    """Asynchronous advantage actor-critic (A3C): A2C whose actors do not wait for updates. Data of any age are used.

    The gradient of each step is weighted by its probability ratio, which corrects for the age. In the paper it is not weighted.
    """

    name: ClassVar[str] = "A3C"
    parameters_type: ClassVar[type[PPOSetting]] = A3CParameters
    max_policy_lag: int | None = None


class REINFORCE(PPO):
    """REINFORCE (Williams 1992): PPO with one gradient step of the policy on whole episodes, with or without a value network."""

    name: ClassVar[str] = "REINFORCE"
    parameters_type: ClassVar[type[PPOSetting]] = REINFORCEParameters


class RPO(PPO):
    """Robust policy optimisation (RPO, Rahman & Xue 2022): PPO whose means of continuous actions are moved in training."""

    name: ClassVar[str] = "RPO"
    parameters_type: ClassVar[type[PPOSetting]] = RPOParameters
