"""The three calls of a host's loop: request, add, reward; and the end of an episode.

Nearly every call is an ordinary one: a running trajectory, an observation as the space has it, nothing else going on. Those are
recognised by a few comparisons and done in place; `_request` and `_add` are the whole story, and do the same.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.standins import StandIns
from rl4sys_zmq.actor.trajectory import RL4SysAction, RL4SysTrajectory, new_action
from rl4sys_zmq.errors import ActionError, BadInput, CallError, Closed, ObservationError, RewardError
from rl4sys_zmq.policies import Policy

if TYPE_CHECKING:
    from rl4sys_zmq.actor.remote import Answer, RemoteInference

__all__ = ["Acting"]


class Acting(StandIns):
    """An agent that acts in one environment at a time (in any number of trajectories)."""

    def request_for_action(
        self, traj: RL4SysTrajectory | None, obs: object, mask: object = None
    ) -> tuple[RL4SysTrajectory, RL4SysAction]:
        """Chooses an action.

        Args:
            traj: the running trajectory; None or a completed one starts another.
            obs: ``[*obs]`` or ``[1, *obs]``: an array, a tensor or a list, finite.
            mask: ``[n]`` or ``[1, n]``, 1 where an action is allowed; None allows all.

        Returns:
            The trajectory and the action. An action that is never added costs nothing.

        Raises:
            ObservationError, MaskError: for bad input, with ``on_bad_input: raise``; nothing has changed.
            ActionError: for a trajectory of another agent.
            Closed: after `close`.
            LearnerUnavailable, ClientFailed: with ``overflow: wait`` only, when the learner does not grant in time.
            CallError: with ``inference: remote``, when the learner gives no action in time (unless ``on_stale: baseline``).
        """
        if traj is not None and mask is None and type(obs) is np.ndarray:
            builder, last, life, inputs = traj._builder, traj._last, traj._life, self._inputs
            if (
                life is self._fast
                and traj._seen is self._follower.policy
                and builder.steps < builder.limit
                and (last is None or not last.done)
                and not traj.completed
                and obs.shape == inputs.plain_shape
                and obs.dtype is inputs.plain_dtype
                and not life.handover.late
            ):
                observation = obs.copy()
                host = self._hosts.host
                policy = traj._acts
                if isfinite(sum(observation.tolist())) and policy is not None and host.policy is policy:
                    raw, act, log_prob = host.act(observation, None)
                    if not isfinite(log_prob):
                        return self._answer_without(policy, traj, observation, None, leading=False)
                    host.last_act = act
                    # `new_action` without the call.
                    action = RL4SysAction()
                    action._life = life
                    action._stamp = host.stamp
                    action._raw = raw
                    action._mask = action._reward = action._builder = None
                    action.act = act
                    action.done = False
                    action.log_prob = log_prob
                    action.obs = observation
                    return traj, action
        return self._request(traj, obs, mask)

    def _request(self, traj: RL4SysTrajectory | None, obs: object, mask: object) -> tuple[RL4SysTrajectory, RL4SysAction]:
        if self._closed:
            raise Closed("this agent is closed")
        if traj is not None and traj._life.agent is not self:
            raise ActionError("this trajectory belongs to another agent")
        if self._forked:
            self._after_fork()
        if traj is not None and traj._life is not self._life:
            traj = None  # it runs on in the parent of this forked process
        try:
            observation, leading = self._inputs.observation(obs)
            allowed = self._inputs.mask(mask)
        except BadInput as exc:
            return self._answer_bad_input(traj, exc)
        if self._handover.late:
            self._handover.expire()
        if traj is not None and traj._last is not None and traj._last.done and not traj.completed:
            self.mark_end_of_trajectory(traj, traj._last)
        if traj is None or traj.completed:
            traj = self._begin()
        elif self._must_cut(traj._builder):
            self._cut(traj, observation, allowed)
        if not traj._entered:
            self._enter(self._rollout)
            traj._entered = True
        return self._choose(traj, observation, allowed, leading)

    def _choose(
        self, traj: RL4SysTrajectory, observation: NDArray[Any], allowed: NDArray[np.bool_] | None, leading: bool
    ) -> tuple[RL4SysTrajectory, RL4SysAction]:
        """Who acts: the learner if it is asked, the policy, or a stand-in."""
        policy = self._policy_for(traj)
        if self._is_stale():
            return self._answer_stale(traj, observation, allowed, leading)
        if self._remote is not None:
            answer = self._act_remotely(self._remote, observation, allowed, leading)
            if answer is not None:
                return traj, answer
        host = self._hosts.host
        host.take(policy, self._stores)
        raw, act, log_prob = host.act(observation, allowed)
        if not isfinite(log_prob):
            return self._answer_without(policy, traj, observation, allowed, leading)
        if leading and isinstance(act, np.ndarray):
            act = act[None]
        host.last_act = act
        return traj, new_action(self._life, observation, raw, act, log_prob, host.stamp, allowed)

    def _act_remotely(
        self,
        remote: RemoteInference,
        observation: NDArray[Any],
        allowed: NDArray[np.bool_] | None,
        leading: bool,
    ) -> RL4SysAction | None:
        """The learner's action; the baseline's where nobody can act and ``on_stale`` is that; None to act locally."""
        try:
            answer = self._ask(remote, observation[None], None if allowed is None else allowed[None])
        except CallError:
            if self.config.on_stale != "baseline":
                raise
            self._counters.add("baseline_actions")
            return self._stand_in(observation, allowed, leading)
        if answer is None:
            return None
        raw, acts, log_probs, stamp = answer
        act = acts if leading and acts.ndim > 1 else acts[0]
        self._hosts.host.last_act = act
        return new_action(self._life, observation, raw[0], act, float(log_probs[0]), stamp, allowed)

    def _ask(self, remote: RemoteInference, observations: NDArray[Any], masks: NDArray[np.bool_] | None) -> Answer | None:
        """The learner's answer for ``[N, *obs]``, None to act locally; notes which version it has."""
        terms = self._io.terms
        answer = remote.ask(terms.inference if terms is not None else "", observations, masks)
        if answer is not None:
            self._follower.saw(answer[3])
        return answer

    def add_to_trajectory(self, traj: RL4SysTrajectory, action: RL4SysAction) -> None:
        """Stores an action, before or after its reward is known, as the next step of `traj`.

        Raises:
            ActionError: when the action or the trajectory belongs to another agent, the action is stored already, or the
                trajectory has ended.
        """
        builder, life = traj._builder, self._life
        row = builder.steps
        if (
            action._stamp is builder.stamp
            and action._life is life
            and traj._life is life
            and action._builder is None
            and action._raw is not None
            and action._mask is None
            and builder.masks is None
            and row < builder.rows
            and not traj.completed
        ):
            # `SegmentBuilder.add` without the call.
            builder.observations[row] = action.obs
            builder.actions[row] = action._raw
            builder.log_probs[row] = action.log_prob
            reward = action._reward
            if reward is None:
                builder.missing += 1
            else:
                builder.rewards[row] = reward
            builder.steps = row + 1
            action._row = row
            action._builder = builder
            traj._last = action
            traj.steps += 1
        else:
            self._add(traj, action)

    def _add(self, traj: RL4SysTrajectory, action: RL4SysAction) -> None:
        if action._life.agent is not self or traj._life.agent is not self:
            raise ActionError("the action and the trajectory must come from this agent")
        if action._builder is not None:
            raise ActionError("this action is stored already")
        if traj._life is not self._life:
            self._counters.add("forked_trajectories")
            return  # the parent of this forked process has it
        if traj.completed:
            raise ActionError("this trajectory has ended; request_for_action starts another")
        traj._last = action
        if not self._stores:
            return
        if action._raw is None:  # nothing that a policy chose: what comes after it does not follow what came before
            if traj._builder.steps:
                self._cut(traj, action.obs, action._mask, follows=False)
            return
        builder = traj._builder
        if not builder.steps:
            builder.generation = action.generation
        elif builder.generation != action.generation:
            builder = self._cut(traj, action.obs, action._mask)
            builder.generation = action.generation
        action._row = builder.add(action.obs, action._raw, action.log_prob, action._stamp, action._mask, action._reward)
        action._builder = builder
        traj.steps += 1

    def update_action_reward(self, action: RL4SysAction, reward: object) -> None:
        """Sets an action's reward; see `RL4SysAction.update_reward`."""
        action.update_reward(reward)

    def mark_end_of_trajectory(
        self, traj: RL4SysTrajectory, action: RL4SysAction | None = None, truncated: bool = False, final_obs: object = None
    ) -> None:
        """Ends an episode.

        Args:
            traj: the trajectory.
            action: its last action; stored now if it was not added.
            truncated: the episode was ended from outside (a time limit), not by a terminal state.
            final_obs: the observation after the last action; required when truncated, to bootstrap from.

        Raises:
            RewardError: when a step has no reward; the message names the step.
            ObservationError: for a missing or bad `final_obs`.
            ActionError: as `add_to_trajectory` does.
        """
        if traj._life.agent is not self:
            raise ActionError("this trajectory belongs to another agent")
        if traj.completed or traj._life is not self._life:
            return
        final = None
        if truncated and self._stores:
            if final_obs is None:
                raise ObservationError("truncated=True needs final_obs, the observation after the last action")
            final = self._inputs.observation(final_obs)[0]
        if action is not None and action._builder is None:
            self.add_to_trajectory(traj, action)
        if not self._stores or not traj.steps:
            self._complete(traj)
            return
        builder = traj._builder
        for part in (*traj._closed, builder):
            if part.missing:
                row = part.first_missing()
                raise RewardError(
                    f"step {row} of segment {part.segment_index} has no reward; call update_reward before mark_end_of_trajectory"
                )
        if not builder.steps:  # an automatic cut came after the last step: that segment was the last
            self._complete(traj)
            return
        if action is not None:
            action.done = True
        builder.terminated, builder.truncated = not truncated, truncated
        builder.close(final, None)
        self._complete(traj)
        self._handover.close(traj, builder)

    def _complete(self, traj: RL4SysTrajectory) -> None:
        traj.completed = True
        traj._seen = traj._acts = None

    def _policy_for(self, traj: RL4SysTrajectory) -> Policy:
        """The policy to act by; with the next request of `traj` there is nothing to decide while the agent's stays the same."""
        policy, acts = self._policy, traj._acts
        if self._max_age_s is None:
            traj._seen = policy
        if acts is None or self.config.swap == "step" or acts.generation != policy.generation:
            traj._acts = acts = policy
        return acts
