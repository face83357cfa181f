"""The action that a request returns to the host: one step, with the action for the environment and its reward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.segments import EpisodeStep, PolicyStamp
from rl4sys_zmq.errors import RewardError
from rl4sys_zmq.values.trees import Tree

__all__ = ["RL4SysAction", "as_reward", "new_action", "new_actions"]

LARGEST = float(np.finfo(np.float32).max)
"""The largest reward that a float32 column can hold."""
LEAST = -LARGEST
"""The lowest reward that a float32 column can hold."""


class RL4SysAction(EpisodeStep):
    """One decision of the policy, which `RL4SysAgent.request_for_action` returns to the host.

    `rew`, `data`, `set_done`, `is_done` and `is_reward_set` are for programs that were written for RL4Sys, an earlier library
    with the same calls.

    Attributes:
        act: The action for the environment: a numpy integer for Discrete, an array of the space's shape and dtype for Box
            (with a leading axis of 1 if the observation had one).
        obs: A checked copy of the observation for which the action was chosen: an array, or a tree of arrays.
        log_prob: The log-probability of the raw action (before clipping or squashing) under the policy that chose it.
        mask: A copy of the mask with which the action was chosen: ``[n]`` bool, True where an action was allowed. None if the
            host gave no mask.
        done: True if the episode reached a terminal state with this action. Set by the host. The next `request_for_action`
            then ends the trajectory.
    """

    __slots__ = ("act", "done")

    # No constructor: the call would cost as much time as setting all attributes. `new_action` and `new_actions` create actions.
    act: Any
    done: bool

    @property
    def generation(self) -> int:
        """The generation of the policy that chose the action: the number of the learner thread that published it."""
        return self.stamp.generation

    @property
    def version(self) -> int:
        """The version of the policy that chose the action: the number of its publication."""
        return self.stamp.version

    @property
    def reward(self) -> float | None:
        """The reward, or None if the host has not set it so far. Setting it has the effect of `update_reward`."""
        return self.known_reward

    @reward.setter
    def reward(self, reward: object) -> None:
        self.update_reward(reward)

    @property
    def rew(self) -> float | None:
        """Another name of `reward`, for programs that were written for RL4Sys, an earlier library with the same calls."""
        return self.known_reward

    @rew.setter
    def rew(self, reward: object) -> None:
        self.update_reward(reward)

    @property
    def data(self) -> dict[str, Any]:
        """A new dict with the values that the policy recorded for the learner.

        They are the log-probability ``logp_a`` and the policy's extra columns (further values of each step). The dict of
        RL4Sys, an earlier library with the same calls, also has ``v``, the critic's value. Here only the learner has a critic.
        """
        return {"logp_a": self.log_prob}

    def set_done(self, done: bool) -> None:
        """Set `done`: True if the episode reached a terminal state with this action."""
        self.done = done

    def is_done(self) -> bool:
        """Return `done`: True if the episode reached a terminal state with this action."""
        return self.done

    def is_reward_set(self) -> bool:
        """Return True if the host has set the reward."""
        return self.known_reward is not None

    @property
    def stored(self) -> bool:
        """True if the action is recorded as a step of a trajectory. An action that no policy chose is never recorded."""
        return self.writer is not None

    def update_reward(self, reward: object) -> None:
        """Set the reward, before or after the action is added to a trajectory. A later call replaces the reward.

        With ``on_bad_input: drop``, an error is counted and the reward stays as it was.

        Raises:
            RewardError: If the reward is not a single number that is finite in float32, or if the action's segment (the steps
                that are sent together) has already been queued for sending or was dropped.
        """
        try:
            value = reward if type(reward) is float and LEAST <= reward <= LARGEST else as_reward(reward)
            writer = self.writer
            if writer is not None:
                pending = writer.pending
                if pending is None:
                    writer.set_reward(self.row, value, self.known_reward is None)
                else:
                    pending.set_reward(writer, self.row, value)
            self.known_reward = value
        except RewardError as exc:
            self.stamp.owner.refuse(exc)


def new_action(
    observation: Tree, raw: Any, act: Any, log_prob: float, stamp: PolicyStamp, mask: NDArray[np.bool_] | None
) -> RL4SysAction:
    """Create the `RL4SysAction` for one decision, without a reward and not yet part of a trajectory.

    `raw` is the action to train on, None if no policy chose the action.
    """
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
    observations: Iterable[Tree],
    raws: Iterable[Any],
    acts: Iterable[Any],
    log_probs: NDArray[np.float32],
    stamp: PolicyStamp,
    masks: Iterable[NDArray[np.bool_] | None],
) -> list[RL4SysAction]:
    """Create an `RL4SysAction` for each row of a batch, as `new_action` does for one.

    The function repeats the code of `new_action`, because a call for each row would take a tenth of the time of the request.
    """
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
    """Return a reward as a float.

    Args:
        reward: A number, a numpy scalar, or an array or tensor of one element.

    Raises:
        RewardError: If `reward` is something else, or not finite in float32.
    """
    if isinstance(reward, float):
        reward = float(reward)  # numpy's float64 is one
    else:
        try:
            item = getattr(reward, "item", None)
            reward = float(item() if item is not None else reward)  # type: ignore[arg-type]
        except Exception as exc:  # also whatever a method of the host's object raises
            raise RewardError(f"a reward must be one number, not {reward!r:.80}") from exc
    if not LEAST <= reward <= LARGEST:
        raise RewardError(f"a reward must be finite in float32, not {reward}")
    return reward
