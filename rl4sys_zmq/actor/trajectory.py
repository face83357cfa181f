"""What the host holds: an action that was chosen, and the trajectory that it may be stored in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.builder import SegmentBuilder
from rl4sys_zmq.errors import RewardError

if TYPE_CHECKING:
    from rl4sys_zmq.actor.agent import RL4SysAgent
    from rl4sys_zmq.actor.handover import Handover

__all__ = ["RL4SysAction", "RL4SysTrajectory", "as_reward"]


class RL4SysAction:
    """One decision of the policy.

    Attributes:
        act: what to give to the environment: a numpy integer for Discrete; for Box an array of the space's shape and dtype
            (with a leading axis of 1 when the observation came with one).
        obs: the observation that it answers, as stored.
        log_prob: of the stored action under the policy that chose it.
        generation: of that policy.
        version: of that policy.
        done: may be set by hand: True ends the trajectory (as terminated) at the next `request_for_action`.
    """

    __slots__ = (
        "_agent",
        "_builder",
        "_mask",
        "_raw",
        "_reward",
        "_row",
        "act",
        "done",
        "generation",
        "log_prob",
        "obs",
        "version",
    )

    def __init__(
        self,
        agent: RL4SysAgent,
        obs: NDArray[Any],
        raw: Any,
        act: Any,
        log_prob: float,
        version: tuple[int, int],
        mask: NDArray[np.bool_] | None,
    ) -> None:
        self._agent = agent
        self.obs = obs
        self._raw = raw
        self.act = act
        self.log_prob = log_prob
        self.generation, self.version = version
        self._mask = mask
        self._reward: float | None = None
        self._builder: SegmentBuilder | None = None
        self._row = -1
        self.done = False

    @property
    def reward(self) -> float | None:
        """The reward, or None while it is missing."""
        return self._reward

    @property
    def stored(self) -> bool:
        """True when the action is part of a trajectory."""
        return self._builder is not None

    def update_reward(self, reward: object) -> None:
        """Sets the reward, before or after the action is added; a later call replaces it until the segment leaves.

        Raises:
            RewardError: for a reward that is not one finite number, or when the segment has left.
        """
        value = as_reward(reward)
        builder = self._builder
        if builder is not None:
            handover = self._agent._handover
            if len(handover):
                handover.reward(builder, self._row, value)
            else:
                builder.set_reward(self._row, value)
        self._reward = value


class RL4SysTrajectory:
    """One episode, or the part of it that has not left yet.

    Attributes:
        episode_id: a random 64-bit number.
        completed: `mark_end_of_trajectory` was called; the next request starts another trajectory.
        steps: how many actions were added in all.
    """

    __slots__ = (
        "_agent",
        "_builder",
        "_cap_left",
        "_closed",
        "_entered",
        "_handover",
        "_last",
        "_lost",
        "_policy",
        "_sum",
        "completed",
        "episode_id",
        "steps",
    )

    def __init__(self, agent: RL4SysAgent, handover: Handover, episode_id: int, builder: SegmentBuilder, cap: int) -> None:
        self._agent = agent
        self._handover = handover
        self.episode_id = episode_id
        self.completed = False
        self.steps = 0
        self._builder = builder
        self._closed: list[SegmentBuilder] = []
        self._sum = 0.0
        self._lost = False
        self._last: RL4SysAction | None = None
        self._policy: object = None
        self._cap_left = cap
        self._entered = False

    def __len__(self) -> int:
        return self.steps


def as_reward(reward: object) -> float:
    """A finite float from a number, a numpy scalar, or an array or tensor of one element.

    Raises:
        RewardError: for anything else.
    """
    if type(reward) is not float:
        try:
            item = getattr(reward, "item", None)
            reward = float(item() if item is not None else reward)  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError) as exc:
            raise RewardError(f"a reward must be one number, not {reward!r:.80}") from exc
    if not math.isfinite(reward):
        raise RewardError(f"a reward must be finite, not {reward}")
    return reward
