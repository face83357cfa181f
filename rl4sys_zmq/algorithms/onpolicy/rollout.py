"""The batch of an on-policy update: segments joined into flat arrays, their scaled rewards, advantages and value targets.

Advantages need no padding and no loop over time. In the flat arrays ``[T]``, ``continues[t]`` is True if step ``t + 1`` of the
batch is the next step of the same episode. ``values[t]`` is V(s_t), ``next_values[t]`` is V(s_{t+1}), or 0 at a terminal state.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.algorithms.action_distributions import ActionDistributionBuilder
from rl4sys_zmq.algorithms.networks.inputs import encode_observations, forbidden_actions
from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import BatchCompletionRule
from rl4sys_zmq.values import ObservationSpace, Segment
from rl4sys_zmq.values.observations import leaves_of

Column = NDArray[np.float64]

FIRST_LENGTH_GUESS = 200.0
"""Assumed length of a trajectory until the first one has ended, in steps."""
LENGTH_STEP = 0.05
"""The weight of each ended trajectory in the running mean of trajectory lengths."""
MAX_EPISODES = 4096
"""Largest number of unfinished episodes whose return a `RewardScaler` remembers. The oldest one has probably lost its actor."""


@dataclass(frozen=True, slots=True, eq=False)
class RolloutBatch:
    """The joined segments of one update: ``N`` steps and their ``M >= N`` observations, ordered by episode and then by time.

    A segment that did not end in a terminal state has one observation more than steps: the one after its last step.

    Attributes:
        features: The observations as ``F`` features, float32 ``[M, F]``, not standardised.
        rows: The row of `features` with the observation before each step, ``[N]``. The next row is the one after the step.
        alive: ``[N]``, 0 if the step led to a terminal state, so that no observation follows it, else 1.
        actions: The raw actions in the form of `ActionDistributionBuilder.encode`, ``[N, ...]``.
        forbidden: True for each forbidden action, bool ``[N, n]``; None if no segment has a mask.
        log_probs: The log-probability of each action under the policy that chose it, float32 ``[N]``.
        continues: ``[N]``, True if the next step of the batch is the next step of the same episode.
        correct: ``[N]``, True if the step must be corrected by importance weights.
    """

    features: Tensor
    rows: NDArray[np.int64]
    alive: NDArray[np.float64]
    actions: Tensor
    forbidden: Tensor | None
    rewards: NDArray[np.float64]
    log_probs: Tensor
    continues: NDArray[np.bool_]
    correct: NDArray[np.bool_]
    segments: Sequence[Segment]

    def step_values(self, estimates: Tensor) -> tuple[Column, Column]:
        """Return the values before and after each step, ``[N]``, from those of all observations ``[M, 1]``.

        After a step to a terminal state, the value is 0.
        """
        values = np.append(estimates.squeeze(1).cpu().numpy().astype(np.float64), 0.0)
        return values[self.rows], values[self.rows + 1] * self.alive


def join_segments(
    taken: Sequence[tuple[Segment, bool]], observation_space: ObservationSpace, action_distributions: ActionDistributionBuilder
) -> RolloutBatch:
    """Join segments to one batch. `taken` has pairs of a segment and a bool: True if the segment needs importance weights.

    Segments of an episode are adjacent, in order. So an advantage trace continues from one segment to the next, and short
    segments cause no bias.
    """
    first_seen: dict[int, int] = {}
    for segment, _ in taken:
        first_seen.setdefault(segment.episode_id, len(first_seen))
    ordered = sorted(taken, key=lambda item: (first_seen[item[0].episode_id], item[0].segment_index))
    segments = [segment for segment, _ in ordered]
    lengths = np.array([segment.steps for segment in segments])
    bootstraps = np.array([not segment.terminated for segment in segments])
    ends = np.cumsum(lengths) - 1
    before = np.cumsum(bootstraps) - bootstraps  # bootstrap rows that precede each segment
    continues = np.ones(int(lengths.sum()), dtype=np.bool_)
    continues[ends] = [_follows(a, b) for a, b in zip(segments, [*segments[1:], None], strict=True)]
    alive = np.ones(len(continues))
    alive[ends] = bootstraps
    leaves = zip(*(segment.observation_leaves for segment in segments), strict=True)
    acted = action_distributions.layout
    actions = acted.leaves.unflatten(map(np.concatenate, zip(*(s.action_leaves for s in segments), strict=True)))
    return RolloutBatch(
        features=encode_observations(observation_space, leaves_of(observation_space).unflatten(map(np.concatenate, leaves))),
        rows=np.arange(len(continues)) + np.repeat(before, lengths),
        alive=alive,
        actions=action_distributions.encode(actions),
        forbidden=forbidden_actions(segments, acted.logits),
        rewards=np.concatenate([segment.rewards for segment in segments], dtype=np.float64),
        log_probs=torch.from_numpy(np.concatenate([segment.log_probs for segment in segments], dtype=np.float32)),
        continues=continues,
        correct=np.repeat([correct for _, correct in ordered], lengths),
        segments=segments,
    )


def _follows(segment: Segment, other: Segment | None) -> bool:
    return (
        other is not None
        and not segment.ended
        and other.episode_id == segment.episode_id
        and other.segment_index == segment.segment_index + 1
    )


class OnPolicyTraining(ABC):
    """The base class of on-policy algorithms. It collects batches of whole segments.

    A batch can be larger than configured. The next batch is then smaller by the surplus. A part of an episode with
    ``max_traj_length`` steps counts as an ended trajectory. A state has no segments that wait for an update.
    """

    kind: ClassVar[str] = "onpolicy"
    publish_every_updates: int = 1
    max_policy_lag: int | None = 4
    rollout_length: int
    _observation_space: ObservationSpace
    _surplus = 0
    _complete = False

    def _use_batches(self, rule: BatchCompletionRule, actions: ActionDistributionBuilder) -> None:
        """Set the rule for a complete batch, and the encoder of its actions. A subclass calls this once, in its constructor."""
        self._batch, self._actions = rule, actions
        self._trajectory_length = FIRST_LENGTH_GUESS
        self._clear()

    @abstractmethod
    def _train_batch(self, rollout: RolloutBatch) -> Mapping[str, float]:
        """Do one update on this batch, and return its metrics."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return copies of the whole state, without waiting segments."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state, and discard the segments observed since the last update."""

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        if not segment.steps:
            return
        self._taken.append((segment, correct))
        self._buffered += segment.steps
        ends = segment.ended or segment.capped
        self._trajectories += ends
        self._complete = self._complete or (self._missing() == 0 and (ends or not self._batch.ends_trajectory))

    def demand(self) -> int:
        """Return the number of steps that the batch lacks; an estimate if the batch depends on the ends of trajectories."""
        if self._complete:
            return 0
        return self._missing() or math.ceil(self._trajectory_length)

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Do one update on all segments observed since the last one; without `partial`, only if they are a complete batch."""
        if not self._buffered or (self.demand() > 0 and not partial):
            return None
        rollout = join_segments(self._taken, self._observation_space, self._actions)
        steps, trajectories = self._buffered, self._trajectories
        self._clear()
        metrics = self._train_batch(rollout)
        self._surplus = self._limited(self._surplus + steps - (self._batch.steps or 0))
        if trajectories:
            self._trajectory_length += (1 - (1 - LENGTH_STEP) ** trajectories) * (steps / trajectories - self._trajectory_length)
        return metrics

    def checkpoint(self) -> dict[str, Any]:
        return self.state()

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.load(kept)

    def discard(self) -> list[int]:
        """Return an empty list: there is no replay from which to remove bad data."""
        return []

    def _missing(self) -> int:
        """Return the number of steps that the batch lacks. Steps that only end its last trajectory are not counted."""
        if self._batch.steps is not None:
            return max(0, self._batch.steps - self._surplus - self._buffered)
        return math.ceil(max(0, (self._batch.trajectories or 0) - self._trajectories) * self._trajectory_length)

    def _limited(self, surplus: int) -> int:
        """Return the number of steps by which the next batch is smaller, because this batch has `surplus` steps too many."""
        steps = self._batch.steps
        return min(max(0, surplus), steps // 2) if steps is not None and not self._batch.ends_trajectory else 0

    def _restart(self, surplus: int) -> None:
        """Begin a batch after one that had `surplus` steps too many, perhaps with another configured size."""
        self._surplus = self._limited(surplus)
        self._clear()

    def _clear(self) -> None:
        self._taken: list[tuple[Segment, bool]] = []
        self._buffered = self._trajectories = 0
        self._complete = False


class RunningMoments:
    """The mean and the population variance of each column, over all rows so far. Before the first row, they are 0 and 1.

    Source: Chan, Golub & LeVeque 1979, equation 1.5.
    """

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean = np.zeros(size)
        self.variance = np.ones(size)

    def update(self, rows: NDArray[Any]) -> None:
        if not len(rows):
            return
        mean, variance, count = rows.mean(axis=0, dtype=np.float64), rows.var(axis=0, dtype=np.float64), len(rows)
        total = self.count + count
        delta = mean - self.mean
        square = self.variance * self.count + variance * count + delta * delta * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.variance = square / total
        self.count = total

    def scale(self) -> Column:
        """Return 1 / standard deviation of each column; 1 for a constant column and before the first row."""
        varies = self.variance > 1e-12
        return np.where(varies, 1.0 / np.sqrt(np.where(varies, self.variance, 1.0)), 1.0)

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean.copy(), "variance": self.variance.copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])
        self.mean = np.array(state["mean"], dtype=np.float64)
        self.variance = np.array(state["variance"], dtype=np.float64)


class RewardScaler:
    """A function that divides rewards by the running standard deviation of the discounted return, and then clips them.

    Gymnasium's wrapper NormalizeReward does the same. The discounted return is a sum over the past rewards of an episode, across
    its segments.
    """

    def __init__(self, gamma: float, *, clip: float = 10.0) -> None:
        self.gamma = gamma
        self._clip = clip
        self.moments = RunningMoments(1)
        self._open: OrderedDict[int, float] = OrderedDict()

    def __call__(self, rewards: Column, lengths: Sequence[int], episodes: Sequence[int], ended: Sequence[bool]) -> Column:
        """Update the variance with rewards ``[T]``, and return them scaled. The other arguments have an item per segment."""
        starts = np.concatenate(([0], np.cumsum(lengths)))
        follows = np.ones(len(rewards))
        follows[starts[:-1]] = 0.0
        returns = np.ascontiguousarray(discounted_sums(rewards, self.gamma * follows, reverse=True))
        for k, (episode, end) in enumerate(zip(episodes, ended, strict=True)):
            carried = self._open.pop(episode, 0.0)
            if carried:
                returns[starts[k] : starts[k + 1]] += carried * self.gamma ** np.arange(1, lengths[k] + 1)
            if not end:
                self._open[episode] = float(returns[starts[k + 1] - 1])
        while len(self._open) > MAX_EPISODES:
            self._open.popitem(last=False)
        self.moments.update(returns[:, None])
        # The deviation of a single return is 0; dividing by it would make any reward huge.
        variance = self.moments.variance[0] if self.moments.count > 1 else 1.0
        scaled: Column = np.clip(rewards / np.sqrt(variance + 1e-8), -self._clip, self._clip)
        return scaled

    def state(self) -> dict[str, Any]:
        return {
            "moments": self.moments.state(),
            "episodes": np.array(list(self._open), dtype=np.uint64),
            "returns": np.array(list(self._open.values()), dtype=np.float64),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.moments.load(state["moments"])
        pairs = zip(np.asarray(state["episodes"]), np.asarray(state["returns"]), strict=True)
        self._open = OrderedDict((int(episode), float(value)) for episode, value in pairs)


def discounted_sums(x: Column, decay: Column, *, reverse: bool = False) -> Column:
    """Return the solution ``y`` of ``y[t] = x[t] + decay[t] * y[t + 1]`` for all ``t``, with ``y[T] = 0``.

    With `reverse`, it is ``y[t] = x[t] + decay[t] * y[t - 1]``. The algorithm doubles the range of the sums in each round
    (parallel prefix sum, Hillis & Steele 1986), up to the longest run of steps with a non-zero `decay`.
    """
    if reverse:
        return discounted_sums(x[::-1], decay[::-1])[::-1]
    y, a = x.copy(), decay.copy()
    a[-1:] = 0.0  # the last step has no successor
    span = 1
    while span < len(y) and a.any():
        y[:-span] += a[:-span] * y[span:]
        a[:-span] *= a[span:]
        a[-span:] = 0.0
        span *= 2
    return y


def vtrace(  # noqa: PLR0913 - the symbols of one formula
    rewards: Column,
    values: Column,
    next_values: Column,
    continues: NDArray[np.bool_],
    rhos: Column,
    *,
    gamma: float,
    lam: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> tuple[Column, Column]:
    """Return the advantages and the value targets of all steps, float64 ``[T]`` each, by V-trace.

    The targets are V-trace's (Espeholt et al. 2018, equation 1, with ``ρ = min(ρ̄, w)`` and ``c = λ min(c̄, w)`` for an
    importance weight ``w``, remark 2)::

        v_t = V(s_t) + ρ_t δ_t + γ c_t (v_{t+1} - V(s_{t+1})),    δ_t = r_t + γ V(s_{t+1}) - V(s_t)

    The advantages are ``r_t + γ [(1 - λ) V(s_{t+1}) + λ v_{t+1}] - V(s_t)``. With ``w = 1`` both are GAE's (Schulman et al.
    2016, equation 16): ``A_t = δ_t + γ λ A_{t+1}`` and ``V(s_t) + A_t``. The advantage is not weighted by its own ``ρ_t``:
    PPO's objective already multiplies it by the ratio, and IMPALA multiplies it by ``ρ_t``.

    The weights w_t = π(a_t|s_t) / μ(a_t|s_t) of the current policy π and the acting policy μ are `rhos`, 1 for a step without
    correction. γ is `gamma`, λ `lam`. ρ̄ (`rho_clip`) determines the policy whose value is estimated; c̄ (`c_clip`) limits the
    variance.
    """
    deltas = rewards + gamma * next_values - values
    traces = np.where(continues, gamma * lam * np.minimum(rhos, c_clip), 0.0)
    corrections = discounted_sums(np.minimum(rhos, rho_clip) * deltas, traces)
    following = np.append(corrections[1:], 0.0)
    advantages = deltas + np.where(continues, gamma * lam * following, 0.0)
    return advantages, values + corrections


def explained_variance(predicted: Column, targets: Column) -> float:
    """Return ``1 - Var[targets - predicted] / Var[targets]``; 0 for constant targets."""
    spread = float(np.var(targets))
    return 1.0 - float(np.var(targets - predicted)) / spread if spread > 1e-12 else 0.0
