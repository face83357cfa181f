"""Proximal policy optimisation (PPO, Schulman et al. 2017): the update from a batch to the gradient steps, with its losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.algorithms.networks.inputs import Sequences
from rl4sys_zmq.algorithms.onpolicy.actor_critic import ActorCritic
from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import ActorCriticParameters, entropy_weight
from rl4sys_zmq.algorithms.onpolicy.onpolicy_entries import A2CParameters, A3CParameters, REINFORCEParameters, RPOParameters
from rl4sys_zmq.algorithms.onpolicy.ppo_parameters import PPOParameters, PPOVariantParameters
from rl4sys_zmq.algorithms.onpolicy.rollout import RolloutBatch, explained_variance, vtrace
from rl4sys_zmq.learner.registry.compute import ONE_RANK, Ranks


@dataclass(frozen=True, slots=True, eq=False)
class TrainingTensors:
    """The inputs of a gradient step for ``N`` environment steps, as tensors.

    Attributes:
        features: The observations as ``F`` features, float32 ``[N, F]``, standardised if the algorithm does so.
        actions: The raw actions in the form of `ActionDistributionBuilder.encode`, ``[N, ...]``.
        log_probs: The log-probability of each action under the policy that chose it, ``[N]``.
        low, high: The bounds of the probability ratio, ``[N]``; see `clipped_objective`.
        values: The values estimated before the update, ``[N]``.
        forbidden: True for each forbidden action, bool ``[N, n]``; None if all are allowed.
        sequences: The sequences of the steps, for a recurrent network.
    """

    features: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    low: Tensor
    high: Tensor
    values: Tensor
    targets: Tensor
    forbidden: Tensor | None = None
    sequences: Sequences | None = None

    def minibatches(
        self, sizes: list[int], generator: torch.Generator, ranks: Ranks = ONE_RANK, *, clip: float | None = None
    ) -> Iterator[tuple[TrainingTensors, float]]:
        """Yield minibatches of this rank's rows in a new random order, each with the rank's weight (`RowShare`).

        Args:
            sizes: The sizes of the minibatches over all ranks, which must add up to ``N``. With `sequences`, a minibatch has
                whole sequences, so the sizes are approximate, and there are at most as many minibatches as sequences.
            generator: The source of the order. It must have the same state on all ranks.
            ranks: The interface to the ranks.
            clip: None, or the limit ε of `ratio_bounds`, to normalise the advantages of each minibatch, over all ranks.
        """
        if len(sizes) == 1:  # the order makes no difference
            share = ranks.share(sizes[0])
            whole = self if clip is None else self._normalised([slice(None)], clip)
            yield (whole if ranks.size == 1 else whole._select(lambda column: column[share.rows])), share.weight
            return
        if self.sequences is not None:
            for part in self._sequence_minibatches(self.sequences, len(sizes), generator):
                yield (part if clip is None else part._normalised([slice(None)], clip)), 1.0
            return
        order, weights = _random_order(len(self.actions), generator), [1.0] * len(sizes)
        scaled = self
        if clip is not None:
            scaled = self._normalised(torch.split_with_sizes(order.to(self.actions.device), sizes), clip)
        if ranks.size > 1:
            shares = [ranks.share(size) for size in sizes]
            parts = [part[share.rows] for part, share in zip(torch.split_with_sizes(order, sizes), shares, strict=True)]
            order, sizes, weights = torch.cat(parts), [len(part) for part in parts], [share.weight for share in shares]
        order = order.to(self.actions.device)
        # One gather per column and pass, then slices: cheaper than one gather per column and minibatch.
        columns = {name: column.index_select(0, order).split_with_sizes(sizes) for name, column in scaled.columns().items()}
        for k, weight in enumerate(weights):
            yield TrainingTensors(**{name: parts[k] for name, parts in columns.items()}), weight

    def _normalised(self, parts: Sequence[slice | Tensor], clip: float) -> TrainingTensors:
        """Return the columns with advantages normalised within each part (minibatch), except a part of one row; ε is `clip`."""
        advantages = self.advantages.clone()
        for rows in parts:
            if len(part := advantages[rows]) > 1:  # the deviation with n - 1, as in Stable-Baselines3 and CleanRL
                advantages[rows] = (part - part.mean()) / (part.std() + 1e-8)
        low, high = ratio_bounds(advantages, clip)
        return replace(self, advantages=advantages, low=low, high=high)

    def columns(self) -> dict[str, Any]:
        """Return the tensors by name, without those that are None."""
        return {name: column for name in self.__slots__ if isinstance(column := getattr(self, name), Tensor)}

    def _sequence_minibatches(self, sequences: Sequences, count: int, generator: torch.Generator) -> Iterator[TrainingTensors]:
        order = _random_order(len(sequences.lengths), generator).numpy()
        for group in equal_groups(np.asarray(sequences.lengths)[order], count):
            chosen, rows = sequences.select(order[group].tolist())
            rows = rows.to(self.actions.device)
            part = self._select(lambda column, rows=rows: column.index_select(0, rows))  # type: ignore[misc]
            yield replace(part, sequences=chosen)

    def _select(self, choose: Callable[[Tensor], Tensor]) -> TrainingTensors:
        chosen: dict[str, Any] = {name: choose(column) for name, column in self.columns().items()}
        return TrainingTensors(**chosen)


def _random_order(count: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(count, generator=generator, dtype=torch.int64, device="cpu")


def equal_sizes(steps: int, count: int) -> list[int]:
    """Return the sizes of at most `count` minibatches. They differ by at most 1: a small minibatch is noisy."""
    count = max(1, min(count, steps))
    return [steps // count + (k < steps % count) for k in range(count)]


def equal_groups(lengths: NDArray[np.int64], count: int) -> list[slice]:
    """Divide sequences, given by their lengths, into at most `count` groups of about equal numbers of steps, none empty."""
    ends = np.cumsum(lengths)
    middles = (ends - lengths / 2.0) * (count / ends[-1])
    number = np.minimum(middles.astype(np.int64), count - 1)
    edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(lengths)]
    return [slice(start, end) for start, end in pairwise(edges)]


def ratio_bounds(advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the bounds of the ratios for `clipped_objective`, ``[N]`` each, for the limit ε `clip`.

    They are ``(-inf, 1 + ε)`` for an advantage of at least 0, else ``(1 - ε, inf)``.
    """
    gains = advantages >= 0
    infinity = torch.tensor(torch.inf, dtype=torch.float32, device=advantages.device)
    return torch.where(gains, -infinity, 1.0 - clip), torch.where(gains, 1.0 + clip, infinity)


def clipped_objective(ratios: Tensor, advantages: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return ``-mean(min(r A, clip(r, 1 - ε, 1 + ε) A))`` for ratios r and advantages A (Schulman et al. 2017, equation 7).

    With the bounds of `ratio_bounds` it equals ``-mean(clamp(r, low, high) A)``, which needs half as many kernel launches.
    """
    return torch.dot(torch.clamp(ratios, low, high), advantages) * (-1.0 / len(ratios))


def half_square_error(estimates: Tensor, targets: Tensor, old: Tensor | None, clip: float, *, larger: bool = True) -> Tensor:
    """Return half the mean squared error of estimated values, ``[B]``.

    With the values before the update, `old`, an error is the larger one of two: the error of the estimate, and the error of the
    estimate limited to ``old ± clip``. If `larger` is False, only the second counts.
    """
    error = estimates - targets
    if old is None:
        return torch.dot(error, error) * (0.5 / len(error))
    clipped = old + (estimates - old).clamp(-clip, clip) - targets
    return (torch.maximum(error.square(), clipped.square()) if larger else clipped.square()).mean() * 0.5


@dataclass(slots=True)
class PassMetrics:
    """The metrics of one pass over a batch. Each list has a tensor per minibatch, because conversion to numbers is slow.

    Attributes:
        log_ratios: The logarithm of each step's probability ratio, ``[B]``.
        stopped: True if the approximate KL divergence exceeded its limit.
    """

    policy_losses: list[Tensor] = field(default_factory=list)
    value_losses: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    log_ratios: list[Tensor] = field(default_factory=list)
    stopped: bool = False

    def add_up(self, ranks: Ranks, sizes: Sequence[int]) -> None:
        """Replace the metrics of this rank's rows by those of all rows. `sizes` are the minibatches' sizes over all ranks."""
        if ranks.size == 1:
            return
        shares = [ranks.share(size) for size in sizes]
        means = (self.policy_losses, self.value_losses, self.entropies)
        parts = [mean * share.weight for each in means for mean, share in zip(each, shares, strict=False)]
        ratios = []
        for part, share, size in zip(self.log_ratios, shares, sizes, strict=False):  # a pass that ended early has fewer
            ratios.append(part.new_zeros(size))
            if share.weight:
                ratios[-1][share.rows] = part
        everything = torch.cat([torch.stack(parts), *ratios])
        ranks.add_up(everything)
        lengths = [*map(len, means), *map(len, ratios)]
        policy, value, entropy, *self.log_ratios = torch.split_with_sizes(everything, lengths)
        self.policy_losses, self.value_losses, self.entropies = list(policy), list(value), list(entropy)

    def kl(self, *, last: bool = False) -> float:
        """Return the approximate KL divergence from the policy that acted; with `last`, for the last minibatch only."""
        return float(approximate_kl(torch.cat(self.log_ratios[-1:] if last else self.log_ratios)))

    def scalars(self, clip: float) -> dict[str, float]:
        """Return the means over the pass, by CleanRL's names; `clip` is the limit ε of the probability ratio."""
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
    """Return the mean of ``(r - 1) - log r`` over the ratios r (Schulman 2020, "Approximating KL divergence")."""
    return (torch.expm1(log_ratios) - log_ratios).mean()


RL4SYS_KL_FACTOR = 1.5
"""RL4Sys ends the policy's gradient steps when the approximate KL divergence exceeds this factor times `target_kl`."""


class PPO(ActorCritic):
    """Proximal policy optimisation (PPO). Each update trains on a batch of whole segments. The learner estimates the values.

    Differences from the paper and from CleanRL's `ppo.py`, beside those of `ActorCritic`:

    - The probability ratio is computed with the log-probabilities that the actors sent, so it is correct also for data from an
      older policy version. For data of the newest version, it is 1 before the first step.
    - A segment that `observe` gets with ``correct=True`` is too old, and gets V-trace targets. All others get generalized
      advantage estimation (GAE), with traces that continue across the segments of an episode.
    - Advantages are normalised over the whole batch, unless `norm_adv_over` is ``minibatch``.
    - With ``train_pi_iters`` or ``train_v_iters``, an update works as in RL4Sys: first all gradient steps of the policy on the
      whole batch, then all those of the value network, without an entropy bonus and without ``vf_coef``.
    - Without a critic, all values are 0.
    - With ``rpo_alpha``, each pass moves the means of continuous actions by new random numbers (Rahman & Xue 2022, algorithm 1).
    """

    name: ClassVar[str] = "PPO"
    parameters_type: ClassVar[type[PPOVariantParameters]] = PPOParameters

    def _configure(self, parameters: ActorCriticParameters) -> None:
        super()._configure(parameters)
        assert isinstance(parameters, PPOVariantParameters)
        self._settings = p = parameters.ppo()
        self._entropy_weight = 0.0 if p.in_turn else entropy_weight(p.ent_coef, self._spec.action_space)

    def _work(self, rollout: RolloutBatch) -> tuple[dict[str, Any], Sequences | None, dict[str, float]]:
        p, steps = self._settings, len(rollout.rewards)
        left = p.share_left(self._steps, steps)
        shrink = left if p.anneal_lr else 1.0
        policy_rate = p.learning_rate * shrink
        value_rate = policy_rate if p.value_learning_rate is None else p.value_learning_rate * shrink
        clip = p.clip_coef * (left if p.anneal_clip else 1.0)
        tensors, metrics = self._prepare(rollout, clip)
        work = {
            "columns": tensors.columns(),
            "sizes": equal_sizes(steps, p.minibatches(steps)),
            "rates": (policy_rate, value_rate),
            "clips": (clip, p.value_clip if p.value_clip is not None else clip),
        }
        return work, tensors.sequences, metrics

    def _fit(self, work: Mapping[str, Any], sequences: Sequences | None) -> dict[str, float]:
        """Do all passes over a batch, with a gradient step per minibatch. Return the metrics of the last pass.

        ``rates`` and ``clips`` are pairs of a value for the policy and one for the value network. The policy's clip is the limit
        ε of the ratio, the other the largest change of a value.
        """
        columns, clips = TrainingTensors(**work["columns"], sequences=sequences), work["clips"]
        p = self._settings
        stopped = False
        last = PassMetrics()
        for policy, value in self._passes():
            if stopped and not value:
                continue
            trains = (policy and not stopped, value)
            rates = [rate if due else None for rate, due in zip(work["rates"], trains, strict=True)]
            seen = self._pass(self._moved(columns), work["sizes"], trains, rates, clips)
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
        return last.scalars(clips[0])

    def _passes(self) -> list[tuple[bool, bool]]:
        """Return two bools for each pass over the batch: True if it trains the policy, True if it trains the value network."""
        p = self._settings
        if p.in_turn:
            policy, value = p.iterations()
            return [(True, False)] * policy + [(False, True)] * value * p.critic
        values = (p.update_epochs if p.value_epochs is None else p.value_epochs) * p.critic
        return [(number < p.update_epochs, number < values) for number in range(max(p.update_epochs, values))]

    def _moved(self, columns: TrainingTensors) -> TrainingTensors:
        """Return a batch for one pass of RPO, with moved actions. This equals moving the means in the opposite direction."""
        alpha, numbers = self._settings.rpo_alpha, self._actions.number_columns
        if not alpha or numbers is None:
            return columns
        actions = columns.actions.clone()
        moved = actions[:, numbers]
        # On the CPU, so that all ranks draw the same.
        noise = torch.rand(moved.shape, generator=self._generator, dtype=torch.float32, device="cpu")
        moved += self._compute.put((2.0 * noise - 1.0) * alpha)
        return replace(columns, actions=actions)

    def _prepare(self, rollout: RolloutBatch, clip: float) -> tuple[TrainingTensors, dict[str, float]]:
        """Return the inputs of all gradient steps, by one forward pass over all observations, and metrics; ε is `clip`."""
        p = self._settings
        put = self._compute.put
        columns, current, estimates, sequences = self._forward(rollout)
        log_probs = put(rollout.log_probs)
        ratios = (current - log_probs).exp().cpu()
        values, next_values = rollout.step_values(estimates if p.critic else torch.zeros_like(estimates))
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
        if p.norm_adv and p.norm_adv_over == "batch":
            advantages = self._normalised(advantages)
        weights = torch.from_numpy(advantages.astype(np.float32))
        low, high = ratio_bounds(weights, clip)
        tensors = TrainingTensors(
            **columns,
            log_probs=log_probs,
            advantages=put(weights),
            low=put(low),
            high=put(high),
            values=put(torch.from_numpy(values.astype(np.float32))),
            targets=put(torch.from_numpy(targets.astype(np.float32))),
            sequences=sequences,
        )
        return tensors, metrics

    def _pass(
        self,
        columns: TrainingTensors,
        sizes: list[int],
        trains: tuple[bool, bool],
        rates: Sequence[float | None],
        clips: Sequence[float],
    ) -> PassMetrics:
        """Do one pass over the batch, with one gradient step per minibatch. `trains` is the pair from `_passes`."""
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
            self._step(loss if weight == 1.0 else loss * weight, rates, only)
        record.add_up(ranks, sizes)
        return record


class A2C(PPO):
    """Advantage actor-critic (A2C): PPO with one pass over the whole batch and without clipping (Huang et al. 2022)."""

    name = "A2C"
    parameters_type = A2CParameters


class A3C(PPO):
    """Asynchronous advantage actor-critic (A3C): A2C whose actors do not wait for updates. Data of any age are used.

    The gradient of each step is weighted by its probability ratio, which corrects for the age. In the paper it is not weighted.
    """

    name = "A3C"
    parameters_type = A3CParameters
    max_policy_lag = None


class REINFORCE(PPO):
    """REINFORCE (Williams 1992): PPO with one gradient step of the policy on whole episodes, with or without a value network."""

    name = "REINFORCE"
    parameters_type = REINFORCEParameters


class RPO(PPO):
    """Robust policy optimisation (RPO, Rahman & Xue 2022): PPO whose means of continuous actions are moved in training."""

    name = "RPO"
    parameters_type = RPOParameters
