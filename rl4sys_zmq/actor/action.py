"""The action that the host holds: a step, what to do in the environment, and the reward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.segments import Stamp, Step
from rl4sys_zmq.errors import RewardError

__all__ = ["RL4SysAction", "as_reward", "new_action", "new_actions"]

LARGEST = float(np.finfo(np.float32).max)
"""The largest reward that a column can hold."""
LEAST = -LARGEST


class RL4SysAction(Step):
    """One decision of the policy. The agent makes them.

    Attributes:
        act: what to give to the environment: a numpy integer for Discrete; for Box an array of the space's shape and dtype
            (with a leading axis of 1 when the observation came with one).
        obs: the observation that it answers, as stored.
        log_prob: of the stored action under the policy that chose it.
        done: may be set by hand: True ends the trajectory (as terminated) at the next `request_for_action`.
    """

    __slots__ = ("act", "done")

    # There is no constructor: it would take as long as setting all of this. `new_action` and `new_actions` make them.
    act: Any
    done: bool

    @property
    def generation(self) -> int:
        """The generation of the policy that chose it."""
        return self.stamp.generation

    @property
    def version(self) -> int:
        """The version of the policy that chose it."""
        return self.stamp.version

    @property
    def reward(self) -> float | None:
        """The reward, or None while it is missing."""
        return self.known_reward

    @property
    def stored(self) -> bool:
        """True when the action is part of a trajectory."""
        return self.writer is not None

    def update_reward(self, reward: object) -> None:
        """Set the reward, before or after the action is added; a later call replaces it until the segment leaves.

        Raises:
            RewardError: For a reward that is not one finite number (in float32), or when the segment has left.
        """
        value = reward if type(reward) is float and LEAST <= reward <= LARGEST else as_reward(reward)
        writer = self.writer
        if writer is not None:
            pending = writer.pending
            if pending is None:
                writer.set_reward(self.row, value, self.known_reward is None)
            else:
                pending.set_reward(writer, self.row, value)
        self.known_reward = value


def new_action(
    observation: NDArray[Any], raw: Any, act: Any, log_prob: float, stamp: Stamp, mask: NDArray[np.bool_] | None
) -> RL4SysAction:
    """Return an action without a reward that is not stored. `raw` is the action to train on, None if no policy chose it."""
    action = RL4SysAction()
    action.obs = observation
    action.raw = raw
    action.act = act
    action.log_prob = log_prob
    action.stamp = stamp
    action.mask = mask
    action.known_reward = action.writer = None
    action.done = False
    return action


def new_actions(
    observations: NDArray[Any],
    raws: NDArray[Any],
    acts: NDArray[Any],
    log_probs: NDArray[np.float32],
    stamp: Stamp,
    masks: Iterable[NDArray[np.bool_] | None],
) -> list[RL4SysAction]:
    """Return an action for each row of a batch: `new_action` without the calls, which would take a tenth of the request."""
    actions = []
    for observation, raw, act, log_prob, mask in zip(observations, raws, acts, log_probs.tolist(), masks, strict=True):
        action = RL4SysAction()
        action.obs = observation
        action.raw = raw
        action.act = act
        action.log_prob = log_prob
        action.stamp = stamp
        action.mask = mask
        action.known_reward = action.writer = None
        action.done = False
        actions.append(action)
    return actions


def as_reward(reward: object) -> float:
    """Return a float that is finite in float32, from a number, a numpy scalar, or an array or tensor of one element.

    Raises:
        RewardError: For anything else.
    """
    if isinstance(reward, float):
        reward = float(reward)  # numpy's float64 is one
    else:
        try:
            item = getattr(reward, "item", None)
            reward = float(item() if item is not None else reward)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError, RuntimeError) as exc:
            raise RewardError(f"a reward must be one number, not {reward!r:.80}") from exc
    if not LEAST <= reward <= LARGEST:
        raise RewardError(f"a reward must be finite in float32, not {reward}")
    return reward
