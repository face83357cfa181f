"""What the host holds: an action that was chosen, and the trajectory that it may be stored in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.builder import SegmentBuilder
from rl4sys_zmq.errors import RewardError

if TYPE_CHECKING:
    from rl4sys_zmq.actor.core import AgentCore
    from rl4sys_zmq.actor.handover import Handover
    from rl4sys_zmq.policies import Policy

__all__ = ["Life", "RL4SysAction", "RL4SysTrajectory", "as_reward", "new_action"]

LARGEST = float(np.finfo(np.float32).max)
"""The largest reward that a column can hold."""


class Life:
    """An agent in one process: a forked child lives another one. Actions and trajectories know theirs.

    Attributes:
        agent: whose life it is.
        handover: where its closed segments go.
    """

    __slots__ = ("agent", "handover")

    def __init__(self, agent: AgentCore, handover: Handover) -> None:
        self.agent = agent
        self.handover = handover


class RL4SysAction:
    """One decision of the policy. The agent makes them.

    Attributes:
        act: what to give to the environment: a numpy integer for Discrete; for Box an array of the space's shape and dtype
            (with a leading axis of 1 when the observation came with one).
        obs: the observation that it answers, as stored.
        log_prob: of the stored action under the policy that chose it.
        done: may be set by hand: True ends the trajectory (as terminated) at the next `request_for_action`.
    """

    __slots__ = ("_builder", "_life", "_mask", "_raw", "_reward", "_row", "_stamp", "act", "done", "log_prob", "obs")

    # There is no constructor: it would take as long as setting all of this. See `new_action`.
    _life: Life
    _stamp: tuple[int, int]
    _raw: Any
    _mask: NDArray[np.bool_] | None
    _reward: float | None
    _builder: SegmentBuilder | None
    _row: int
    act: Any
    done: bool
    log_prob: float
    obs: NDArray[Any]

    @property
    def generation(self) -> int:
        """The generation of the policy that chose it."""
        return self._stamp[0]

    @property
    def version(self) -> int:
        """The version of the policy that chose it."""
        return self._stamp[1]

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
            RewardError: for a reward that is not one finite number (in float32), or when the segment has left.
        """
        value = reward if type(reward) is float and -LARGEST <= reward <= LARGEST else as_reward(reward)
        builder = self._builder
        if builder is not None:
            handover = self._life.handover
            if handover.late or builder.left:
                handover.reward(builder, self._row, value)
            else:
                if self._reward is None:
                    builder.missing -= 1
                builder.rewards[self._row] = value
        self._reward = value


def new_action(
    life: Life,
    obs: NDArray[Any],
    raw: Any,
    act: Any,
    log_prob: float,
    stamp: tuple[int, int],
    mask: NDArray[np.bool_] | None = None,
) -> RL4SysAction:
    """An action without a reward that is not stored. `raw` is what is trained on; None for what no policy chose."""
    action = RL4SysAction()
    action._life = life
    action._stamp = stamp
    action._raw = raw
    action._mask = mask
    action._reward = action._builder = None
    action.act = act
    action.done = False
    action.log_prob = log_prob
    action.obs = obs
    return action


class RL4SysTrajectory:
    """One episode, or the part of it that has not left yet.

    Attributes:
        episode_id: a random 64-bit number.
        completed: `mark_end_of_trajectory` was called; the next request starts another trajectory.
        steps: how many actions were added in all.
    """

    __slots__ = (
        "_acts",
        "_builder",
        "_cap_left",
        "_closed",
        "_entered",
        "_last",
        "_life",
        "_lost",
        "_seen",
        "_sum",
        "completed",
        "episode_id",
        "steps",
    )

    def __init__(self, life: Life, episode_id: int, builder: SegmentBuilder, cap: int) -> None:
        self._life = life
        self.episode_id = episode_id
        self.completed = False
        self.steps = 0
        self._builder = builder
        self._closed: list[SegmentBuilder] = []
        self._sum = 0.0
        self._lost = False
        self._last: RL4SysAction | None = None
        self._acts: Policy | None = None
        """The policy that chose last; with ``swap: episode`` that of the whole episode."""
        self._seen: Policy | None = None
        """The agent's policy when a request decided by which to act; while it is the same, there is nothing to decide."""
        self._cap_left = cap
        self._entered = False

    def __len__(self) -> int:
        return self.steps


def as_reward(reward: object) -> float:
    """A float that is finite in float32, from a number, a numpy scalar, or an array or tensor of one element.

    Raises:
        RewardError: for anything else.
    """
    if isinstance(reward, float):
        reward = float(reward)  # numpy's float64 is one
    else:
        try:
            item = getattr(reward, "item", None)
            reward = float(item() if item is not None else reward)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError, RuntimeError) as exc:
            raise RewardError(f"a reward must be one number, not {reward!r:.80}") from exc
    if not -LARGEST <= reward <= LARGEST:
        raise RewardError(f"a reward must be finite in float32, not {reward}")
    return reward
