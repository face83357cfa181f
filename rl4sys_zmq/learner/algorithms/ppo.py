"""Proximal policy optimisation (PPO, Schulman et al. 2017) for segments from asynchronous actors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.compute import CPU, Compute, Ranks, check_rows
from rl4sys_zmq.learner.algorithms.entry import read_parameters
from rl4sys_zmq.learner.algorithms.networks import Categorical, DiagonalGaussian, Distribution, FlatAdam, MLPStack, standardise
from rl4sys_zmq.learner.algorithms.normalise import RewardScaler, RunningMoments
from rl4sys_zmq.learner.algorithms.ppo_parameters import PPOParameters, plan_ppo
from rl4sys_zmq.learner.algorithms.returns import explained_variance, vtrace
from rl4sys_zmq.learner.algorithms.rollout import (
    RolloutBatch,
    TrainingTensors,
    clipped_objective,
    equal_sizes,
    half_square_error,
    join_segments,
    ratio_bounds,
)
from rl4sys_zmq.values import BoxSpace, ObservationSpace, PolicySpec, Segment, Space, feature_size
from rl4sys_zmq.values.observations import flat_space

__all__ = ["PPO", "PPOParameters", "PassMetrics"]


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

    def kl(self) -> float:
        """Return the approximate KL divergence of the current policy from the policy that chose the actions.

        It is the mean of ``(r - 1) - log r`` over all steps, where ``r`` is the probability ratio (Schulman 2020, "Approximating
        KL divergence").
        """
        x = torch.cat(self.log_ratios)
        return float((torch.expm1(x) - x).mean())

    def scalars(self, clip: float) -> dict[str, float]:
        """Return the metrics with CleanRL's names ``losses/...``, averaged over the pass.

        Args:
            clip: The current limit ε on the distance of the probability ratio from 1.
        """
        log_ratios = torch.cat(self.log_ratios)
        return {
            "losses/policy_loss": float(torch.stack(self.policy_losses).mean()),
            "losses/value_loss": float(torch.stack(self.value_losses).mean()),
            "losses/entropy": float(torch.stack(self.entropies).mean()),
            "losses/approx_kl": self.kl(),
            "losses/old_approx_kl": float(-log_ratios.mean()),
            "losses/clipfrac": float((torch.expm1(log_ratios).abs() > clip).float().mean()),
        }


POLICY_GAIN, VALUE_GAIN = 0.01, 1.0
FIRST_LENGTH_GUESS = 200.0
"""Assumed length of a trajectory until the first one has ended, in steps."""

RL4SYS_KL_FACTOR = 1.5
"""The policy's gradient steps end when the approximate KL divergence exceeds this factor times `target_kl`.

This applies only to updates with `train_pi_iters` or `train_v_iters`, which work as in RL4Sys.
"""

WARM_START_ROWS = 10_000
"""The number of observations that the statistics of a policy count as, if the training starts with that policy."""

LENGTH_STEP = 0.05
"""The weight of each ended trajectory in the running mean of trajectory lengths."""


class PPO:
    """Proximal policy optimisation (PPO). Each update trains on a batch of whole segments. The learner estimates the values.

    Differences from the paper and from CleanRL's `ppo.py`:

    - The probability ratio is computed with the log-probabilities that the actors sent. So the ratio is correct also for data
      from an older policy version.
    - A segment that the learner passes to `observe` with ``correct=True`` is too old. It gets V-trace targets, which correct
      for the newer policy. All other segments get generalized advantage estimation (GAE). Consecutive segments of an episode
      are joined, so that an advantage trace continues from one segment to the next.
    - A batch consists of whole segments (parts of episodes), so it can be larger than configured. The next batch is then
      smaller by the surplus.
    - Advantages are normalised over the whole batch, not over each minibatch. The sizes of the minibatches of a pass differ by at
      most one step.
    - The statistics that standardise observations change at the end of an update only, and are sent to actors with the weights.
      So the learner and actors with the newest version use the same statistics, and the ratio before the first step is 1. The
      first batch is an exception: its statistics hold already for the first update, because the first policy hardly depends on
      its input.
    - When the statistics change, the first layers are adjusted, so that the networks compute what they computed before. Without
      this, each change disturbs what was learned: one run of three on Pendulum stayed at a return of -600.
    - ``episodes_per_update`` counts ended episodes. In an episode that continues, each part with ``max_traj_length`` steps counts
      too.
    - With ``train_pi_iters`` or ``train_v_iters``, an update works as in RL4Sys: first all gradient steps of the policy on the
      whole batch, then all those of the value network. There is no entropy bonus, and the option ``vf_coef`` has no effect.
    - `state` does not contain the segments that wait for the next update. After a restart, they are delivered again.
    """

    kind: ClassVar[str] = "onpolicy"
    publish_every_updates: int = 1
    max_policy_lag: int | None = 4

    def __init__(
        self, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
    ) -> None:
        observations = self._observation_space = flat_space(observation_space, "PPO")
        self.parameters = p = read_parameters(PPOParameters, parameters, algorithm="PPO")
        self.rollout_length = p.segment_length()
        self._spec = plan_ppo(observation_space, action_space, parameters)
        self._compute = CPU
        self._continuous = isinstance(action_space, BoxSpace)
        self._normalise = p.normalise_observations and isinstance(observations, BoxSpace)
        self._generator = torch.Generator().manual_seed(seed)
        features, outputs = feature_size(observations), self._spec.outputs
        extras = outputs if self._continuous else 0
        self._network = MLPStack(features, p.hidden_sizes, (outputs, 1), p.activation, extras=extras)
        self._network.initialise(self._generator, (POLICY_GAIN, VALUE_GAIN))
        if self._network.extras is not None:
            self._network.extras.data.fill_(p.log_std_init)
        self._optimizer = FlatAdam(self._network.flat, self._network.parts, eps=p.adam_eps)
        self._entropy_weight = 0.0 if p.in_turn else p.entropy(action_space)
        self._moments = RunningMoments(features)
        self._mean, self._scale = torch.zeros(features), torch.ones(features)
        self._reward_scale = RewardScaler(p.gamma) if p.normalise_rewards else None
        self._steps = 0
        self._trajectory_length = FIRST_LENGTH_GUESS
        self._taken: list[tuple[Segment, bool]] = []
        self._buffered = 0
        self._trajectories = 0
        self._batch = p.batch()
        self._complete = False
        self._surplus = 0

    def place(self, compute: Compute) -> None:
        """Move the networks and the optimizer to a device, and use it and its ranks (processes) from now on.

        Raises:
            ConfigError: If there are more ranks than a minibatch has steps.
        """
        check_rows(self.parameters.minibatch_steps(), compute.ranks)
        self._compute = compute
        self._network.place(compute.device)
        self._optimizer = FlatAdam(self._network.flat, self._network.parts, eps=self.parameters.adam_eps)
        self._mean, self._scale = compute.put(self._mean), compute.put(self._scale)

    def spec(self) -> PolicySpec:
        """Return the specification of an MLP policy: categorical for discrete actions, Gaussian for continuous ones.

        It includes the statistics that standardise observations, if the parameters ask for standardisation.
        """
        return self._spec

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Keep the segment for the next update. If `correct` is True, the update uses V-trace targets for this segment."""
        if not segment.steps:
            return
        self._taken.append((segment, correct))
        self._buffered += segment.steps
        ends = segment.ended or segment.capped
        self._trajectories += ends
        self._complete = self._complete or (self._missing() == 0 and (ends or not self._batch.ends_trajectory))

    def demand(self) -> int:
        """Return the number of steps that are missing until the batch is complete.

        If the batch depends on the ends of trajectories, this is an estimate from the mean length of trajectories.
        """
        if self._complete:
            return 0
        return self._missing() or math.ceil(self._trajectory_length)

    def _missing(self) -> int:
        """Return the number of steps that are missing from the batch, without the steps until the current trajectory ends."""
        if self._batch.steps is not None:
            return max(0, self._batch.steps - self._surplus - self._buffered)
        return math.ceil(max(0, (self._batch.trajectories or 0) - self._trajectories) * self._trajectory_length)

    def update(self, *, partial: bool = False) -> dict[str, float] | None:
        """Do one update on all segments observed since the last update, and return its metrics.

        Return None if these segments are not a complete batch. With `partial`, return None only if there are no segments.
        """
        if not self._buffered or (self.demand() > 0 and not partial):
            return None
        rollout = join_segments(self._taken, self._observation_space, self._spec.action_space)
        trajectories = self._trajectories
        self._clear()
        first = self._normalise and not self._moments.count
        if first:  # the first policy hardly depends on its input, so it may get other statistics before its first gradient step
            self._measure(rollout)
        metrics = self._train(rollout)
        self._steps += len(rollout.rewards)
        steps = self._batch.steps
        if steps is not None and not self._batch.ends_trajectory:  # no batch shrinks to less than half
            self._surplus = min(max(0, self._surplus + len(rollout.rewards) - steps), steps // 2)
        if trajectories:
            mean_length = len(rollout.rewards) / trajectories
            self._trajectory_length += (1 - (1 - LENGTH_STEP) ** trajectories) * (mean_length - self._trajectory_length)
        if self._normalise and not first:
            self._measure(rollout)
        return metrics

    def _measure(self, rollout: RolloutBatch) -> None:
        """Add the observations of a batch to the statistics by which observations are standardised.

        The networks keep computing what they computed before, because their first layers and Adam's moments are adjusted.
        """
        trained = self._moments.count > 0
        self._moments.update(rollout.features.numpy()[rollout.rows])
        mean = self._compute.put(torch.from_numpy(self._moments.mean.astype(np.float32)))
        scale = self._compute.put(torch.from_numpy(self._moments.scale().astype(np.float32)))
        if trained:
            self._optimizer.rescale(self._network.change_inputs(self._mean, self._scale, mean, scale))
            self._compute.ranks.differ()
        self._mean, self._scale = mean, scale

    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the policy's weights by name.

        They include ``log_std`` for continuous actions, and the current statistics that standardise observations.
        """
        flat = np.empty(self._spec.size, dtype=np.float32)
        policy = self._network.flat[self._network.parts[0]].cpu().numpy()
        flat[self._spec.size - len(policy) :] = policy
        tensors = self._spec.views(flat)
        if self._normalise:
            tensors["obs_mean"][:] = self._mean.cpu().numpy()
            tensors["obs_scale"][:] = self._scale.cpu().numpy()
        return tensors

    def state(self) -> dict[str, Any]:
        """Return copies of the whole state, except the segments that wait for the next update."""
        return {
            "parameters": self._network.flat.clone(),
            "optimizer": self._optimizer.state(),
            "generator": self._generator.get_state(),
            "steps": self._steps,
            "surplus": self._surplus,
            "trajectory_length": self._trajectory_length,
            "observations": self._moments.state(),
            "obs_mean": self._mean.clone(),
            "obs_scale": self._scale.clone(),
            "rewards": {} if self._reward_scale is None else self._reward_scale.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` has returned. Discard the segments observed since the last update.

        Raises:
            ConfigError: If the state comes from a network of another size, or was saved with another ``normalise_rewards``.
        """
        flat = torch.as_tensor(state["parameters"])
        if flat.shape != self._network.flat.shape:
            raise ConfigError(f"the state has {flat.numel()} parameters; the networks have {self._network.flat.numel()}")
        if (self._reward_scale is None) is bool(state["rewards"]):
            raise ConfigError("the state has another normalise_rewards", key="algorithm_parameters.normalise_rewards")
        self._compute.ranks.differ()
        self._network.flat.copy_(flat)
        self._optimizer.load(state["optimizer"])
        self._generator.set_state(torch.as_tensor(state["generator"]).clone())
        self._steps = int(state["steps"])
        self._surplus = int(state["surplus"])
        self._trajectory_length = float(state["trajectory_length"])
        self._moments.load(state["observations"])
        device = self._compute.device
        self._mean = torch.as_tensor(state["obs_mean"]).to(device, copy=True)
        self._scale = torch.as_tensor(state["obs_scale"]).to(device, copy=True)
        if self._reward_scale is not None:
            self._reward_scale.load(state["rewards"])
        self._clear()

    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Replace the policy's weights and observation statistics, to start training from an existing policy.

        The statistics count as those of `WARM_START_ROWS` observations, so that new data replaces them slowly.
        """
        flat, _ = self._spec.flatten(tensors)
        policy = self._network.flat[self._network.parts[0]]
        policy.copy_(torch.from_numpy(flat[self._spec.size - len(policy) :]))
        self._compute.ranks.differ()
        if self._normalise:
            mean, scale = (np.array(tensors[name], np.float32) for name in ("obs_mean", "obs_scale"))
            self._mean, self._scale = (self._compute.put(torch.from_numpy(array)) for array in (mean, scale))
            variance = 1.0 / np.maximum(scale.astype(np.float64), 1e-12) ** 2
            self._moments.load({"count": WARM_START_ROWS, "mean": mean.astype(np.float64), "variance": variance})

    def change(self, parameters: Mapping[str, object]) -> None:
        """Use these parameters from the next update on. Only those in `PPOParameters.changeable` can have new values."""
        self.parameters = p = read_parameters(PPOParameters, parameters, algorithm="PPO")
        self._entropy_weight = 0.0 if p.in_turn else p.entropy(self._spec.action_space)
        if self._reward_scale is not None:
            self._reward_scale.gamma = p.gamma

    def checkpoint(self) -> dict[str, Any]:
        """Return copies of everything that an update changes, for `restore`. This is the same as `state`."""
        return self.state()

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Return to a state that `checkpoint` has copied, and discard the segments that wait for the next update."""
        self.load(kept)

    def numbers_to_check(self) -> list[NDArray[Any]]:
        """Return the weights, Adam's moments, and the statistics of observations and returns: views, or copies from a GPU.

        The learner thread checks that they are finite.
        """
        found: list[NDArray[Any]] = [self._network.flat.cpu().numpy(), *self._optimizer.moments()]
        for moments in (self._moments, *([] if self._reward_scale is None else [self._reward_scale.moments])):
            found += [moments.mean, moments.variance]
        return found

    def discard(self) -> list[int]:
        """Return an empty list: an on-policy algorithm has no replay buffer from which to remove bad segments."""
        return []

    def _clear(self) -> None:
        """Discard the segments that wait for the next update."""
        self._taken, self._buffered, self._trajectories, self._complete = [], 0, 0, False

    def _train(self, rollout: RolloutBatch) -> dict[str, float]:
        """Do one update: all passes over a batch, with a gradient step per minibatch. Return the metrics of the update."""
        p = self.parameters
        left = max(p.anneal_floor, 1.0 - self._steps / p.total_steps) if p.total_steps is not None else 1.0
        shrink = left if p.anneal_lr else 1.0
        policy_rate = p.learning_rate * shrink
        value_rate = policy_rate if p.value_learning_rate is None else p.value_learning_rate * shrink
        clip = p.clip_coef * (left if p.anneal_clip else 1.0)
        columns, metrics = self._prepare(rollout, clip)
        steps = len(rollout.rewards)
        sizes = equal_sizes(steps, p.minibatches(steps))
        before = self._network.flat.clone()
        rates, value_clip = (policy_rate, value_rate), p.value_clip if p.value_clip is not None else clip
        work = {"columns": columns.columns(), "sizes": sizes, "rates": rates, "value_clip": value_clip}
        with self._compute.ranks.leading(work, self.checkpoint):
            last = self._fit(columns, sizes, rates, value_clip)
        change = float(torch.linalg.vector_norm(self._network.flat - before))
        return {**last.scalars(clip), **metrics, "losses/weight_change": change, "charts/learning_rate": policy_rate}

    def follow(self, work: Mapping[str, Any]) -> None:
        """Do this rank's part of the gradient steps of an update. The ranks are the processes that train together."""
        columns = TrainingTensors(**{name: self._compute.put(column) for name, column in work["columns"].items()})
        self._fit(columns, work["sizes"], work["rates"], work["value_clip"])

    def _fit(self, columns: TrainingTensors, sizes: list[int], learning_rates: Sequence[float], value_clip: float) -> PassMetrics:
        """Do all passes over a batch, with a gradient step per minibatch. Return the metrics of the last pass.

        Args:
            columns: The batch.
            sizes: The sizes of the minibatches, in steps.
            learning_rates: The learning rates of the policy and of the value network.
            value_clip: Largest distance of a value from the old one, if the value loss is clipped.
        """
        p = self.parameters
        stopped = False
        last = PassMetrics()
        for policy, value in p.passes():
            if stopped and not value:
                continue
            trains = (policy and not stopped, value)
            rates = [rate if due else None for rate, due in zip(learning_rates, trains, strict=True)]
            seen = self._pass(columns, sizes, trains, rates, value_clip)
            seen.value_losses = seen.value_losses or last.value_losses
            if not trains[0]:
                last.value_losses = seen.value_losses
                continue
            last = seen
            stopped = seen.stopped or (p.target_kl is not None and not p.in_turn and seen.kl() > p.target_kl)
            if stopped and p.value_epochs is None and not p.in_turn:
                break
        return last

    def _prepare(self, rollout: RolloutBatch, clip: float) -> tuple[TrainingTensors, dict[str, float]]:
        """Compute the inputs of all gradient steps of an update, by one forward pass over all observations.

        Args:
            rollout: The batch.
            clip: The limit ε on the distance of the probability ratio from 1.

        Returns:
            The columns to train on, with advantages and value targets; and metrics.
        """
        p = self.parameters
        put = self._compute.put
        features, actions, log_probs = put(rollout.features), put(rollout.actions), put(rollout.log_probs)
        forbidden = None if rollout.forbidden is None else put(rollout.forbidden)
        if self._normalise:
            features = standardise(features, self._mean, self._scale)
        rows = put(torch.from_numpy(rollout.rows))
        acted = features.index_select(0, rows)
        with torch.no_grad():
            outputs, estimates = self._network(features)
            current = self._distribution(outputs.index_select(0, rows), forbidden).log_probs(actions)
            ratios = (current - log_probs).exp().cpu()
        all_values = np.append(estimates.squeeze(1).cpu().numpy().astype(np.float64), 0.0)
        values, next_values = all_values[rollout.rows], all_values[rollout.rows + 1] * rollout.alive
        rewards = rollout.rewards * p.reward_scale
        if self._reward_scale is not None:
            of = rollout.segments
            rewards = self._reward_scale(rewards, [s.steps for s in of], [s.episode_id for s in of], [s.ended for s in of])
        rhos = np.where(rollout.correct, ratios.numpy().astype(np.float64), 1.0)
        advantages, targets = vtrace(rewards, values, next_values, rollout.continues, rhos, gamma=p.gamma, lam=p.gae_lambda)
        metrics = {
            "losses/explained_variance": explained_variance(values, targets),
            "losses/ratio_first": float((ratios - 1.0).abs().mean()),
        }
        if p.norm_adv and len(advantages) > 1:
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
        )
        return columns, metrics

    def _pass(
        self,
        columns: TrainingTensors,
        sizes: list[int],
        trains: tuple[bool, bool],
        rates: Sequence[float | None],
        value_clip: float,
    ) -> PassMetrics:
        """Do one pass over the batch in random order, with one gradient step per minibatch.

        Args:
            columns: The batch.
            sizes: The sizes of the minibatches, in steps.
            trains: True or False for the policy, then for the value network: whether this pass trains it.
            rates: The learning rates of the two networks; None for a network that is not trained.
            value_clip: Largest distance of a value from the old one, if the value loss is clipped.
        """
        p = self.parameters
        limit = RL4SYS_KL_FACTOR * p.target_kl if p.in_turn and p.target_kl is not None else None
        value_weight = 2.0 if p.in_turn else p.vf_coef  # RL4Sys's value loss is the whole mean squared error
        only = None if all(trains) else trains.index(True)  # running one network costs half
        record, ranks = PassMetrics(), self._compute.ranks
        for batch, weight in columns.minibatches(sizes, self._generator, ranks):
            if only is None:
                outputs, estimates = self._network(batch.features)
            else:
                outputs = estimates = self._network.one(only, batch.features)
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
                    decrease = log_ratio.detach().mean() * -weight
                    ranks.add_up(decrease)
                    if float(decrease) > limit:
                        record.stopped = True
                        break
                if self._entropy_weight:
                    loss = loss.sub(entropy, alpha=self._entropy_weight)
            if trains[1]:
                old = batch.values if p.clip_values() else None
                value_loss = half_square_error(estimates.squeeze(1), batch.targets, old, value_clip)
                record.value_losses.append(value_loss.detach())
                loss = value_loss * value_weight if loss is None else loss.add(value_loss, alpha=value_weight)
            assert loss is not None, "a pass trains at least one of the two networks"
            gradient = self._network.gradient(loss if weight == 1.0 else loss * weight, only)
            ranks.add_up(gradient if only is None else gradient[self._network.parts[only]])
            self._optimizer.step(gradient, rates, max_norm=p.max_grad_norm)
        record.add_up(ranks, sizes)
        return record

    def _distribution(self, outputs: Tensor, forbidden: Tensor | None) -> Distribution:
        if self._network.extras is not None:
            return DiagonalGaussian(outputs, self._network.extras)
        return Categorical(outputs, forbidden)
