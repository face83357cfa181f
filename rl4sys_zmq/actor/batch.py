"""One request for many environments: one forward pass, and as little as possible for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.acting import Acting
from rl4sys_zmq.actor.trajectory import RL4SysAction, RL4SysTrajectory
from rl4sys_zmq.errors import ActionError, CallError, Closed

__all__ = ["BatchActing"]


class BatchActing(Acting):
    """An agent that acts in many environments together."""

    def request_for_actions(
        self, trajs: Sequence[RL4SysTrajectory | None] | None, obs: object, masks: object = None
    ) -> tuple[list[RL4SysTrajectory], list[RL4SysAction]]:
        """Chooses actions for ``N`` environments with one batched forward pass.

        All segments are cut together, each `rollout_length` calls of this thread, so that credit is asked for once for all of
        them.

        Args:
            trajs: ``N`` trajectories as in `request_for_action`; None for all new.
            obs: ``[N, *obs]``.
            masks: ``[N, n]``, or None.

        Returns:
            ``N`` trajectories and ``N`` actions.

        Raises:
            ObservationError, MaskError: for bad input, whatever ``on_bad_input`` says; nothing has changed.
            Closed, LearnerUnavailable, ClientFailed: as `request_for_action` does.
        """
        if self._closed:
            raise Closed("this agent is closed")
        if self._forked:
            self._after_fork()
        given = self._ours([None] * len(cast(Sequence[object], obs)) if trajs is None else trajs)
        count = len(given)
        observations = self._inputs.observations(obs, count)
        allowed = self._inputs.mask(masks, count)
        if self._handover.late:
            self._handover.expire()
        for traj in given:
            if traj is not None and traj._last is not None and traj._last.done and not traj.completed:
                self.mark_end_of_trajectory(traj, traj._last)
        host = self._hosts.host
        if host.block_left <= 0 or count != host.block_width:
            for i, traj in enumerate(given):
                if traj is not None and not traj.completed and traj._builder.steps:
                    self._cut(traj, observations[i], None if allowed is None else allowed[i])
            self._enter(self._rollout * count)
            host.block_left, host.block_width = self._rollout, count
        host.block_left -= 1
        running = self._running(given, observations, allowed)
        policy = self._policy_for(running[0])
        rows: Sequence[NDArray[np.bool_] | None] | None = None if allowed is None else list(allowed)
        if self._is_stale():
            answers = [
                self._answer_stale(t, o, m, leading=False)[1]
                for t, o, m in zip(running, observations, rows or repeat(None), strict=False)
            ]
            return running, answers
        if self._remote is not None:
            try:
                answer = self._ask(self._remote, observations, allowed)
            except CallError:
                if self.config.on_stale != "baseline":
                    raise
                self._counters.add("baseline_actions", count)
                pairs = zip(observations, rows or repeat(None), strict=False)
                return running, [self._stand_in(o, m, leading=False) for o, m in pairs]
            if answer is not None:
                return running, self._actions(answer[3], observations, answer[:3], rows)
        raw, acts, log_probs = policy.act_batch(observations, allowed, host.sampler, self._stores)
        if not np.isfinite(log_probs).all():
            answers = [
                self._answer_without(policy, t, o, m, leading=False)[1]
                for t, o, m in zip(running, observations, rows or repeat(None), strict=False)
            ]
            return running, answers
        host.take(policy, self._stores)
        return running, self._actions(host.stamp, observations, (raw, acts, log_probs), rows)

    def _ours(self, trajs: Sequence[RL4SysTrajectory | None]) -> list[RL4SysTrajectory | None]:
        """The trajectories, less those of the parent of this forked process."""
        life, given = self._life, list(trajs)
        for i, traj in enumerate(given):
            if traj is not None and traj._life is not life:
                if traj._life.agent is not self:
                    raise ActionError("a trajectory belongs to another agent")
                given[i] = None
        return given

    def _running(
        self, given: list[RL4SysTrajectory | None], observations: NDArray[Any], allowed: NDArray[np.bool_] | None
    ) -> list[RL4SysTrajectory]:
        """One running trajectory with room for each: begins and cuts where needed."""
        generation = self._policy.generation
        running = []
        for i, traj in enumerate(given):
            if traj is None or traj.completed:
                traj = self._begin()
            else:
                builder = traj._builder
                steps = builder.steps
                if steps and (steps >= builder.limit or builder.generation != generation):
                    self._cut(traj, observations[i], None if allowed is None else allowed[i])
            running.append(traj)
        return running

    def _actions(
        self,
        stamp: tuple[int, int],
        observations: NDArray[Any],
        answer: tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]],
        masks: Sequence[NDArray[np.bool_] | None] | None,
    ) -> list[RL4SysAction]:
        """One action for each row; `new_action` without the calls."""
        life = self._life
        raw, acts, log_probs = answer
        actions = []
        for obs, chosen, act, log_prob in zip(observations, raw, acts, log_probs.tolist(), strict=True):
            action = RL4SysAction()
            action._life = life
            action._stamp = stamp
            action._raw = chosen
            action._mask = action._reward = action._builder = None
            action.act = act
            action.done = False
            action.log_prob = log_prob
            action.obs = obs
            actions.append(action)
        if masks is not None:
            for action, mask in zip(actions, masks, strict=True):
                action._mask = mask
        return actions
