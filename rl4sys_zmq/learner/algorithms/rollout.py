"""An on-policy batch: the segments of one update, joined into flat columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.learner.algorithms.networks import encode_observations
from rl4sys_zmq.values import DiscreteSpace, Segment, Space

__all__ = ["Rollout", "join_segments"]


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """``N`` steps and their ``M >= N`` observations, episode by episode, in the order in which they happened.

    Attributes:
        features: Float32 ``[M, F]``, not standardised; the bootstrap row of a segment follows its steps.
        rows: Int64 ``[N]``, the row of `features` that each step acted on; the row after it is the next observation.
        alive: Float64 ``[N]``, 0 if the step led to a terminal state (there is no next observation), else 1.
        actions: Int64 ``[N]`` from 0, or raw float32 ``[N, n]``.
        forbidden: Bool ``[N, n]``, True where an action was not allowed; None if no segment has a mask.
        rewards: Float64 ``[N]``.
        log_probs: Float32 ``[N]``, of the acting policy.
        continues: Bool ``[N]``, True if the next step of the batch is the next step of the same episode.
        correct: Bool ``[N]``, True if the step must be corrected by importance weights.
        segments: The segments in this order.
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


def join_segments(taken: Sequence[tuple[Segment, bool]], observation_space: Space, action_space: Space) -> Rollout:
    """Join segments, each with its `correct`, into one batch. Consecutive segments of an episode become adjacent.

    So an advantage trace continues across a cut, and short segments cause no bias.
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
    actions = np.concatenate([segment.actions for segment in segments])
    if isinstance(action_space, DiscreteSpace):
        moves = torch.from_numpy(actions.astype(np.int64) - action_space.start)
    else:
        moves = torch.from_numpy(actions.astype(np.float32).reshape(len(actions), action_space.size))
    return Rollout(
        features=encode_observations(observation_space, np.concatenate([segment.observations for segment in segments])),
        rows=np.arange(len(continues)) + np.repeat(before, lengths),
        alive=alive,
        actions=moves,
        forbidden=_forbidden(segments, action_space),
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


def _forbidden(segments: Sequence[Segment], action_space: Space) -> Tensor | None:
    if not isinstance(action_space, DiscreteSpace) or all(segment.masks is None for segment in segments):
        return None
    everything = np.ones((max(segment.steps for segment in segments), action_space.n), dtype=np.bool_)
    masks = [everything[: s.steps] if s.masks is None else s.masks[: s.steps] for s in segments]
    return torch.from_numpy(~np.concatenate(masks))
