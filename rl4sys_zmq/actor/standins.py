"""What is answered when there is no policy to ask: for bad input, a stale policy, or one that gives no finite action."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.core import AgentCore
from rl4sys_zmq.actor.trajectory import RL4SysAction, RL4SysTrajectory, new_action
from rl4sys_zmq.errors import BadInput, PolicyStale
from rl4sys_zmq.policies import Policy
from rl4sys_zmq.values import BoxSpace, PolicySpec

__all__ = ["StandIns"]

log = logging.getLogger(__name__)


class StandIns(AgentCore):
    """An agent that always has an answer. What no policy chose is never stored."""

    def _answer_bad_input(self, traj: RL4SysTrajectory | None, error: BadInput) -> tuple[RL4SysTrajectory, RL4SysAction]:
        """With ``on_bad_input: drop``: the last action again, or the mode's stand-in."""
        if self.config.on_bad_input == "raise":
            raise error
        self._counters.add(f"bad_input.{type(error).__name__}")
        if traj is None or traj.completed:
            traj = self._begin()
        last = self._hosts.host.last_act
        space = self._spec.observation_space
        observation = np.zeros(space.shape, dtype=space.dtype)
        if traj._builder.steps:  # the best that is known of where the episode is
            observation = traj._builder.last_observation
        return traj, self._unchosen(observation, last if last is not None else _baseline(self._spec))

    def _is_stale(self) -> bool:
        return self._max_age_s is not None and self.policy_age_s > self._max_age_s

    def _answer_stale(
        self, traj: RL4SysTrajectory, observation: NDArray[Any], mask: NDArray[np.bool_] | None, leading: bool
    ) -> tuple[RL4SysTrajectory, RL4SysAction]:
        if self.config.on_stale == "raise":
            raise PolicyStale(self.policy_age_s, self._max_age_s or 0.0)
        self._counters.add("baseline_actions")
        return traj, self._stand_in(observation, mask, leading)

    def _answer_without(
        self, bad: Policy, traj: RL4SysTrajectory, observation: NDArray[Any], mask: NDArray[np.bool_] | None, leading: bool
    ) -> tuple[RL4SysTrajectory, RL4SysAction]:
        """The policy gives no finite answer: acts by the version before it, or by the baseline."""
        self._counters.add("policies_not_finite")
        previous = self._io.roll_back(bad)
        traj._acts = None
        if previous is not None and previous is not bad:
            self._counters.add("rollbacks")
            log.error("version %d gives no finite action; going back to version %d", bad.version, previous.version)
            raw, act, log_prob = previous.act(observation, mask, self._hosts.host.sampler, self._stores)
            if math.isfinite(log_prob):
                act = act[None] if leading and isinstance(act, np.ndarray) else act
                stamp = previous.generation, previous.version
                return traj, new_action(self._life, observation, raw, act, log_prob, stamp, mask)
        return traj, self._stand_in(observation, mask, leading)

    def _stand_in(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None, leading: bool) -> RL4SysAction:
        """The baseline's action."""
        act = self._baseline(observation, mask) if self._baseline is not None else _baseline(self._spec, mask)
        if leading and isinstance(act, np.ndarray):
            act = act[None]
        return self._unchosen(observation, act)

    def _unchosen(self, observation: NDArray[Any], act: Any) -> RL4SysAction:
        policy = self._policy
        return new_action(self._life, observation, None, act, 0.0, (policy.generation, policy.version))


def _baseline(spec: PolicySpec, mask: NDArray[np.bool_] | None = None) -> Any:
    """An action that is valid and does little: the first (allowed one) of a discrete space, the middle (or zero) of a box."""
    space = spec.action_space
    if not isinstance(space, BoxSpace):
        return np.int64(space.start + (int(np.argmax(mask)) if mask is not None else 0))
    low, high = space.low_array(), space.high_array()
    middle = np.where(np.isfinite(low) & np.isfinite(high), (low + high) / 2, np.clip(0.0, low, high))
    return middle.astype(space.dtype)
