"""Actions for when no policy can choose: invalid input, a stale policy, or a policy without a finite action."""

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
"""The host's own fallback function: an action from the observation and the mask."""


class FallbackActions:
    """The source of actions when no policy can choose. Actions that no policy chose are never stored.

    Attributes:
        max_age_s: The policy age in seconds above which the policy is stale. None: it is never stale.
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
        """Return True if the policy is older than `max_age_s`."""
        return self.max_age_s is not None and self._context.policy_age_s > self.max_age_s

    def for_bad_input(self, traj: RL4SysTrajectory, error: BadInput) -> RL4SysAction:
        """Return the thread's last action again, or an idle action if there is none."""
        self._context.counters.add(f"bad_input.{type(error).__name__}")
        last = self._context.threads.state.last_act
        space = self._spec.observation_space
        observation = np.zeros(space.shape, dtype=space.dtype)
        if traj.writer.steps:  # the last valid observation is the best estimate
            observation = traj.writer.last_observation
        return self._unchosen(observation, last if last is not None else _idle(self._spec))

    def for_stale(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None, leading: bool = False) -> RL4SysAction:
        """Return the baseline's action instead of the stale policy's.

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
        """Roll back a policy that gives no finite action, and act by the version before it, or by the baseline."""
        context = self._context
        context.counters.add("policies_not_finite")
        previous = context.io.roll_back(bad)
        traj.policy = traj.seen = None
        if previous is not None and previous is not bad:
            context.counters.add("rollbacks")
            log.error("policy version %d gives no finite action; going back to version %d", bad.version, previous.version)
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
    """Return an action with a leading axis of 1 if the observation had one."""
    return act[None] if leading and isinstance(act, np.ndarray) else act


def _idle(spec: PolicySpec, mask: NDArray[np.bool_] | None = None) -> Any:
    """Return the first (allowed) discrete action, or the middle of a box (the value nearest to 0 if unbounded)."""
    space = spec.action_space
    if not isinstance(space, BoxSpace):
        return np.int64(space.start + (int(np.argmax(mask)) if mask is not None else 0))
    low, high = space.low_array(), space.high_array()
    middle = np.where(np.isfinite(low) & np.isfinite(high), (low + high) / 2, np.clip(0.0, low, high))
    return middle.astype(space.dtype)
