"""The batch of an on-policy update: its segments, joined into flat arrays and divided into minibatches; and PPO's losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.algorithms.action_distributions import ActionDistributions
from rl4sys_zmq.algorithms.networks.sequences import Sequences
from rl4sys_zmq.algorithms.networks.torch_layers import encode_observations
from rl4sys_zmq.learner.registry.compute import ONE_RANK, Ranks
from rl4sys_zmq.values import ObservationSpace, Segment
from rl4sys_zmq.values.observations import leaves_of
from rl4sys_zmq.values.trees import Tree


@dataclass(frozen=True, slots=True, eq=False)
class TrainingTensors:
    """The inputs of a gradient step for ``N`` environment steps, as tensors.

    Attributes:
        features: The observations as ``F`` features, float32 ``[N, F]``, standardised if the algorithm does so.
        actions: The raw actions, before clipping or squashing, in the form of `ActionDistributions.encode`, ``[N, ...]``.
        log_probs: The log-probability of each action under the policy that chose it, ``[N]``.
        advantages: The advantage of each action, ``[N]``.
        low: The lower bound of the probability ratio, ``[N]``; see `clipped_objective`.
        high: The upper bound of the probability ratio, ``[N]``.
        values: The values estimated before the update, ``[N]``.
        targets: The targets of the value network, ``[N]``.
        forbidden: True for each forbidden action, bool ``[N, n]``; None if all are allowed.
        sequences: The sequences of the steps, for a recurrent network; None for other networks.
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
        """Yield the rows of this rank (one of the processes that train together) in minibatches, each with the rank's weight.

        Each call uses a new random order of the steps. A single minibatch is the batch as it is. With `sequences`, a minibatch
        consists of whole sequences, so the sizes are approximate, and there are at most as many minibatches as sequences.

        Args:
            sizes: The sizes of the minibatches over all ranks, which must add up to ``N``.
            generator: The source of the order. It must have the same state on all ranks.
            ranks: The interface to the ranks. `RowShare` defines the rows and the weight of a rank.
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
        order, weights = (
            torch.randperm(len(self.actions), generator=generator, dtype=torch.int64, device="cpu"),
            [1.0] * len(sizes),
        )
        scaled = self
        if clip is not None:
            scaled = self._normalised(torch.split_with_sizes(order.to(self.actions.device), sizes), clip)
        if ranks.size > 1:
            shares = [ranks.share(size) for size in sizes]
            parts = [part[share.rows] for part, share in zip(torch.split_with_sizes(order, sizes), shares, strict=True)]
            order, sizes, weights = torch.cat(parts), [len(part) for part in parts], [share.weight for share in shares]
        order = order.to(self.actions.device)
        # One gather per column and pass, then slices: cheaper than one gather per column and minibatch.
        features, actions, log_probs, advantages, low, high, values, targets = (
            torch.split_with_sizes(column.index_select(0, order), sizes)
            for column in (
                self.features, self.actions, self.log_probs, scaled.advantages, scaled.low, scaled.high,
                self.values, self.targets,
            )
        )  # fmt: skip
        forbidden = None if self.forbidden is None else torch.split_with_sizes(self.forbidden.index_select(0, order), sizes)
        for k, weight in enumerate(weights):
            part = TrainingTensors(
                features[k], actions[k], log_probs[k], advantages[k], low[k], high[k], values[k], targets[k],
                None if forbidden is None else forbidden[k],
            )  # fmt: skip
            yield part, weight

    def _normalised(self, parts: Sequence[slice | Tensor], clip: float) -> TrainingTensors:
        """Return the columns with the advantages of each part normalised, a part of one row excepted; ε is `clip`.

        A part is given by its rows. The deviation is the estimate with n - 1, as in Stable-Baselines3 and CleanRL.
        """
        advantages = self.advantages.clone()
        for rows in parts:
            if len(found := advantages[rows]) > 1:
                advantages[rows] = (found - found.mean()) / (found.std() + 1e-8)
        low, high = ratio_bounds(advantages, clip)
        return replace(self, advantages=advantages, low=low, high=high)

    def columns(self) -> dict[str, Any]:
        """Return the columns by name as tensors, without those that are None."""
        return {name: column for name in self.__slots__ if isinstance(column := getattr(self, name), Tensor)}

    def _sequence_minibatches(self, sequences: Sequences, count: int, generator: torch.Generator) -> Iterator[TrainingTensors]:
        """Yield `count` minibatches of whole sequences in a random order, with about equal numbers of steps."""
        order = torch.randperm(len(sequences.lengths), generator=generator, dtype=torch.int64, device="cpu").numpy()
        for group in equal_groups(np.asarray(sequences.lengths)[order], count):
            chosen, rows = sequences.select(order[group].tolist())
            rows = rows.to(self.actions.device)
            part = self._select(lambda column, rows=rows: column.index_select(0, rows))  # type: ignore[misc]
            yield replace(part, sequences=chosen)

    def _select(self, choose: Callable[[Tensor], Tensor]) -> TrainingTensors:
        """Return the result of a function for each column."""
        chosen: dict[str, Any] = {name: choose(column) for name, column in self.columns().items()}
        return TrainingTensors(**chosen)


def equal_sizes(steps: int, count: int) -> list[int]:
    """Return the sizes of `count` minibatches for a number of steps. The sizes differ by at most 1.

    Equal sizes avoid a small last minibatch, whose gradient would be noisy. If there are fewer steps than `count`, there is one
    minibatch per step.
    """
    count = max(1, min(count, steps))
    return [steps // count + (k < steps % count) for k in range(count)]


def equal_groups(lengths: NDArray[np.int64], count: int) -> list[slice]:
    """Divide sequences, given by their numbers of steps, into groups of consecutive sequences with about equal numbers of steps.

    Return at most `count` slices, none of them empty.
    """
    ends = np.cumsum(lengths)
    middles = (ends - lengths / 2.0) * (count / ends[-1])
    number = np.minimum(middles.astype(np.int64), count - 1)
    edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(lengths)]
    return [slice(start, end) for start, end in pairwise(edges)]


def ratio_bounds(advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper bounds of the probability ratios for `clipped_objective`, ``[N]`` each.

    A step with an advantage of at least 0 has the bounds ``(-inf, 1 + ε)``, any other step ``(1 - ε, inf)``.

    Args:
        advantages: The advantages, ``[N]``.
        clip: ε, the largest distance of the ratio from 1.
    """
    gains = advantages >= 0
    infinity = torch.tensor(torch.inf, dtype=torch.float32, device=advantages.device)
    return torch.where(gains, -infinity, 1.0 - clip), torch.where(gains, 1.0 + clip, infinity)


def clipped_objective(ratios: Tensor, advantages: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return PPO's policy loss as a scalar tensor (Schulman et al. 2017, equation 7).

    The loss is ``-mean(min(r A, clip(r, 1 - ε, 1 + ε) A))``. With the bounds of `ratio_bounds` it equals
    ``-mean(clamp(r, low, high) A)``, which needs half as many kernel launches.

    Args:
        ratios: r, the probability ratios, ``[B]``.
        advantages: A, the advantages, ``[B]``.
        low: The lower bounds of the ratios, ``[B]``.
        high: The upper bounds of the ratios, ``[B]``.
    """
    return torch.dot(torch.clamp(ratios, low, high), advantages) * (-1.0 / len(ratios))


def half_square_error(estimates: Tensor, targets: Tensor, old: Tensor | None, clip: float, *, larger: bool = True) -> Tensor:
    """Return half the mean squared error of estimated values, as a scalar tensor.

    Args:
        estimates: The estimated values, ``[B]``.
        targets: The target values, ``[B]``.
        old: The values estimated before the update, ``[B]``, or None. If given, each squared error is the larger one of two:
            that of the estimate, and that of the estimate limited to ``old ± clip``.
        clip: Largest distance from the old values. It has no effect if `old` is None.
        larger: False for the error of the limited estimate alone. It has no effect if `old` is None.
    """
    error = estimates - targets
    if old is None:
        return torch.dot(error, error) * (0.5 / len(error))
    clipped = old + (estimates - old).clamp(-clip, clip) - targets
    return (torch.maximum(error.square(), clipped.square()) if larger else clipped.square()).mean() * 0.5


@dataclass(frozen=True, slots=True, eq=False)
class RolloutBatch:
    """The joined segments of one update: ``N`` steps and their ``M >= N`` observations, ordered by episode and then by time.

    A segment that did not end in a terminal state has one observation more than steps: the one after its last step.

    Attributes:
        features: The observations as ``F`` features, float32 ``[M, F]``, not standardised.
        rows: The row of `features` with the observation before each step, int64 ``[N]``. The next row is the observation after
            the step.
        alive: Float64 ``[N]``, 0 if the step led to a terminal state (so there is no observation after it), else 1.
        actions: The raw actions, before clipping or squashing, in the form of `ActionDistributions.encode`, ``[N, ...]``.
        forbidden: True for each forbidden action, bool ``[N, n]``; None if no segment has a mask.
        rewards: Float64 ``[N]``.
        log_probs: The log-probability of each action under the policy that chose it, float32 ``[N]``.
        continues: Bool ``[N]``, True if the next step of the batch is the next step of the same episode.
        correct: Bool ``[N]``, True if the step must be corrected by importance weights.
        segments: The segments in the order of their steps.
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


def join_segments(
    taken: Sequence[tuple[Segment, bool]], observation_space: ObservationSpace, action_distributions: ActionDistributions
) -> RolloutBatch:
    """Join segments (parts of episodes) into one batch, in which the consecutive segments of an episode are adjacent.

    So an advantage trace continues from one segment to the next, and short segments cause no bias.

    Args:
        taken: Pairs of a segment and a bool: True if the segment is too old and needs importance weights.
        observation_space: The space of the policy's observations.
        action_distributions: The form of the policy's actions.
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
    acted = action_distributions.layout
    actions = acted.leaves.unflatten(map(np.concatenate, zip(*(s.action_leaves for s in segments), strict=True)))
    return RolloutBatch(
        features=encode_observations(observation_space, _joined(observation_space, segments)),
        rows=np.arange(len(continues)) + np.repeat(before, lengths),
        alive=alive,
        actions=action_distributions.encode(actions),
        forbidden=_forbidden(segments, acted.logits),
        rewards=np.concatenate([segment.rewards for segment in segments], dtype=np.float64),
        log_probs=torch.from_numpy(np.concatenate([segment.log_probs for segment in segments], dtype=np.float32)),
        continues=continues,
        correct=np.repeat([correct for _, correct in ordered], lengths),
        segments=segments,
    )


def _joined(space: ObservationSpace, segments: Sequence[Segment]) -> Tree:
    """Return the observations of all segments, as a tree of arrays ``[M, *leaf]``."""
    columns = zip(*(segment.observation_leaves for segment in segments), strict=True)
    return leaves_of(space).unflatten(map(np.concatenate, columns))


def _follows(segment: Segment, other: Segment | None) -> bool:
    return (
        other is not None
        and not segment.ended
        and other.episode_id == segment.episode_id
        and other.segment_index == segment.segment_index + 1
    )


def _forbidden(segments: Sequence[Segment], options: int) -> Tensor | None:
    if all(segment.masks is None for segment in segments):
        return None
    everything = np.ones((max(segment.steps for segment in segments), options), dtype=np.bool_)
    masks = [everything[: s.steps] if s.masks is None else s.masks[: s.steps] for s in segments]
    return torch.from_numpy(~np.concatenate(masks))
