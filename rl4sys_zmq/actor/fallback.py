"""Actions for the moments when no policy can choose: bad input, a stale policy, or one that gives no finite action."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.action import RL4SysAction, new_action
from rl4sys_zmq.actor.context import AgentContext
from rl4sys_zmq.actor.segments import Stamp
from rl4sys_zmq.actor.trajectory import RL4SysTrajectory
from rl4sys_zmq.errors import BadInput, PolicyStale
from rl4sys_zmq.policies import Policy
from rl4sys_zmq.values import BoxSpace, PolicySpec

__all__ = ["Baseline", "FallbackActions", "as_given"]

log = logging.getLogger(__name__)

Baseline = Callable[[NDArray[Any], NDArray[np.bool_] | None], Any]
"""The host's own rule: an action from the observation and the mask."""


class FallbackActions:
    """Answers where no policy can. An action that no policy chose is never stored.

    Attributes:
        max_age_s: a policy is stale when the learner was last heard so many seconds ago; None for never.
    """

    def __init__(self, context: AgentContext, spec: PolicySpec, baseline: Baseline | None) -> None:
        config = context.config
        self._context = context
        self._spec = spec
        self._baseline = baseline
        self._explore = config.explore
        self._on_stale = config.on_stale
        self.max_age_s = config.policy_max_age_s if config.on_stale != "keep" else None

    def is_stale(self) -> bool:
        """Return True if the learner was last heard too long ago."""
        return self.max_age_s is not None and self._context.policy_age_s > self.max_age_s

    def for_bad_input(self, traj: RL4SysTrajectory, error: BadInput) -> RL4SysAction:
        """Return the thread's last action again, or one that does little."""
        self._context.counters.add(f"bad_input.{type(error).__name__}")
        last = self._context.threads.state.last_act
        space = self._spec.observation_space
        observation = np.zeros(space.shape, dtype=space.dtype)
        if traj.writer.steps:  # the best that is known of where the episode is
            observation = traj.writer.last_observation
        return self._unchosen(observation, last if last is not None else _idle(self._spec))

    def for_stale(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None, leading: bool = False) -> RL4SysAction:
        """Return the baseline's action instead of a stale policy's.

        Raises:
            PolicyStale: With ``on_stale: raise``.
        """
        if self._on_stale == "raise":
            raise PolicyStale(self._context.policy_age_s, self.max_age_s or 0.0)
        return self.baseline(observation, mask, leading)

    def for_unusable(
        self,
        bad: Policy,
        traj: RL4SysTrajectory,
        observation: NDArray[Any],
        mask: NDArray[np.bool_] | None,
        leading: bool = False,
    ) -> RL4SysAction:
        """Go back from a policy without a finite answer to the version before, and act by that or by the baseline."""
        context = self._context
        context.counters.add("policies_not_finite")
        previous = context.io.roll_back(bad)
        traj.policy = traj.seen = None
        if previous is not None and previous is not bad:
            context.counters.add("rollbacks")
            log.error("version %d gives no finite action; going back to version %d", bad.version, previous.version)
            raw, act, log_prob = previous.act(observation, mask, context.threads.state.sampler, self._explore)
            if math.isfinite(log_prob):
                stamp = Stamp(previous.generation, previous.version, context.owner)
                return new_action(observation, raw, as_given(act, leading), log_prob, stamp, mask)
        return self._idle_action(observation, mask, leading)

    def baseline(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None, leading: bool = False) -> RL4SysAction:
        """Return the baseline's action, and count it."""
        self._context.counters.add("baseline_actions")
        return self._idle_action(observation, mask, leading)

    def _idle_action(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None, leading: bool) -> RL4SysAction:
        act = self._baseline(observation, mask) if self._baseline is not None else _idle(self._spec, mask)
        return self._unchosen(observation, as_given(act, leading))

    def _unchosen(self, observation: NDArray[Any], act: Any) -> RL4SysAction:
        policy = self._context.policy
        stamp = Stamp(policy.generation, policy.version, self._context.owner)
        return new_action(observation, None, act, 0.0, stamp, None)


def as_given(act: Any, leading: bool) -> Any:
    """Return an action with a leading axis of 1 if the observation came with one."""
    return act[None] if leading and isinstance(act, np.ndarray) else act


def _idle(spec: PolicySpec, mask: NDArray[np.bool_] | None = None) -> Any:
    """Return a valid action that does little: the first (allowed) one of a discrete space, the middle (or zero) of a box."""
    space = spec.action_space
    if not isinstance(space, BoxSpace):
        return np.int64(space.start + (int(np.argmax(mask)) if mask is not None else 0))
    low, high = space.low_array(), space.high_array()
    middle = np.where(np.isfinite(low) & np.isfinite(high), (low + high) / 2, np.clip(0.0, low, high))
    return middle.astype(space.dtype)
