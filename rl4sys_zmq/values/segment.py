"""A segment: consecutive steps of one episode, as columns. The unit that is sent, counted, acknowledged and trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Segment"]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """``T`` consecutive steps of one episode; row ``t`` is one decision of the policy.

    Attributes:
        observations: ``[T, *obs]`` when `terminated`, else ``[T + 1, *obs]``: the last row is the observation to
            bootstrap from. The dtype is the observation space's.
        actions: ``[T, *act]``, as sampled (before clipping or squashing), int64 for discrete actions.
        rewards: ``[T]`` float32; ``rewards[t]`` follows ``actions[t]``.
        log_probs: ``[T]`` float32, of ``actions[t]`` under the policy that chose it.
        versions: ``[T]`` uint64, the policy version that chose each action, within `generation`.
        masks: ``[len(observations), n]`` bool, True where an action was allowed; None when no mask was ever given.
        generation: the generation of `versions`.
        episode_id: a random 64-bit number shared by the segments of one episode.
        segment_index: 0 for the first segment of the episode.
        terminated: the episode ended in a terminal state with the last step.
        truncated: the episode was ended from outside after the last step. Neither is set when the segment was merely
            cut; never both.
        capped: the episode goes on, but has filled the actor's ``max_traj_length`` (once more) with this segment: whoever
            counts trajectories counts one. Never set when `ended`.
        episode_return: the undiscounted sum of the whole episode's rewards, on its last segment; None on others, and when a
            part of the episode was dropped before it could leave.
        episode_length: the whole episode's number of steps, on its last segment, else None.
    """

    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    log_probs: NDArray[np.float32]
    versions: NDArray[np.uint64]
    masks: NDArray[np.bool_] | None
    generation: int
    episode_id: int
    segment_index: int
    terminated: bool
    truncated: bool
    capped: bool = False
    episode_return: float | None = None
    episode_length: int | None = None

    @property
    def steps(self) -> int:
        """``T``, the number of decisions."""
        return len(self.actions)

    @property
    def ended(self) -> bool:
        """True on the last segment of an episode."""
        return self.terminated or self.truncated

    @property
    def nbytes(self) -> int:
        """The bytes of all columns."""
        columns = (self.observations, self.actions, self.rewards, self.log_probs, self.versions)
        return sum(c.nbytes for c in columns) + (self.masks.nbytes if self.masks is not None else 0)
