"""Choosing an action: by the policy, by the learner, or by a fallback.

Nearly every request is an ordinary one: a running trajectory, an observation as the space has it, nothing else going on. A few
comparisons recognise it in `Acting.request`. `_request` handles every case, and does the same in an ordinary one.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.action import RL4SysAction, new_action
from rl4sys_zmq.actor.context import AgentContext
from rl4sys_zmq.actor.fallback import Baseline, FallbackActions, as_given
from rl4sys_zmq.actor.inputs import Inputs
from rl4sys_zmq.actor.segments import Stamp
from rl4sys_zmq.actor.trajectory import Episodes, RL4SysTrajectory
from rl4sys_zmq.errors import ActionError, BadInput, CallError
from rl4sys_zmq.policies import Policy
from rl4sys_zmq.values import PolicySpec

if TYPE_CHECKING:
    from rl4sys_zmq.actor.remote import RemoteInference

__all__ = ["Acting", "Answers"]

Answers = tuple[NDArray[Any], NDArray[Any], NDArray[np.float32], Stamp]
"""Raw actions ``[N, *act]``, actions ``[N, *act]``, log-probabilities ``[N]``, and the version that chose them."""


class Acting:
    """Chooses actions for one environment at a time, in any number of trajectories.

    Attributes:
        context: what the agent consists of in this process.
        inputs: checks observations and masks.
        episodes: the trajectories.
        fallback: acts when no policy can.
    """

    __slots__ = (
        "_follower",
        "_no_choice",
        "_pending",
        "_plain_dtype",
        "_plain_shape",
        "_remote",
        "_threads",
        "context",
        "episodes",
        "fallback",
        "inputs",
    )

    def __init__(self, context: AgentContext, spec: PolicySpec, rollout: int, baseline: Baseline | None) -> None:
        self.context = context
        self.inputs = Inputs(spec.observation_space, spec.action_space)
        self.episodes = Episodes(context, spec, self.inputs, rollout)
        self.fallback = FallbackActions(context, spec, baseline)
        self._follower, self._pending, self._threads = context.io.follower, context.pending, context.threads
        self._remote: RemoteInference | None = context.remote
        # Without these two, the policy alone decides, so the next request may be an ordinary one.
        self._no_choice = context.remote is None and not self.fallback.watches_age
        self._plain_shape, self._plain_dtype = self.inputs.plain_shape, self.inputs.plain_dtype

    def request(self, traj: RL4SysTrajectory | None, obs: object, mask: object) -> tuple[RL4SysTrajectory, RL4SysAction]:
        """Choose an action: see `RL4SysAgent.request_for_action`."""
        if traj is not None and mask is None and type(obs) is np.ndarray:
            writer, last = traj.writer, traj.last
            if (
                traj.seen is self._follower.policy  # so it is a running one that was asked about before
                and traj.episodes is self.episodes
                and writer.steps < writer.limit
                and (last is None or not last.done)
                and obs.shape == self._plain_shape
                and obs.dtype is self._plain_dtype
                and not self._pending.late
            ):
                observation = obs.copy()
                thread = self._threads.state
                policy = traj.policy
                if policy is not None and thread.policy is policy and isfinite(sum(observation.tolist())):
                    raw, act, log_prob = thread.act(observation, None)
                    if not isfinite(log_prob):
                        return traj, self.fallback.for_unusable(policy, traj, observation, None)
                    thread.last_act = act
                    return traj, new_action(observation, raw, act, log_prob, thread.stamp, None)
        return self._request(traj, obs, mask)

    def _request(self, traj: RL4SysTrajectory | None, obs: object, mask: object) -> tuple[RL4SysTrajectory, RL4SysAction]:
        episodes = self.episodes
        if traj is not None and traj.episodes is not episodes:
            if traj.episodes.owner is not episodes.owner:
                raise ActionError("this trajectory belongs to another agent")
            traj = None  # it runs on in the parent of this forked process
        try:
            observation, leading = self.inputs.observation(obs)
            allowed = self.inputs.mask(mask)
        except BadInput as exc:
            if self.context.config.on_bad_input == "raise":
                raise
            if traj is None or traj.completed:
                traj = episodes.begin()
            return traj, self.fallback.for_bad_input(traj, exc)
        if self._pending.late:
            self._pending.expire()
        episodes.end_done([traj])
        [traj] = episodes.running([traj], [observation], [allowed], self.context.policy.generation)
        if not traj.admitted:
            self.context.admit(episodes.rollout)
            traj.admitted = True
        return traj, self._choose(traj, observation, allowed, leading)

    def _choose(
        self, traj: RL4SysTrajectory, observation: NDArray[Any], mask: NDArray[np.bool_] | None, leading: bool
    ) -> RL4SysAction:
        policy = self.policy_for(traj)
        if self.fallback.is_stale():
            return self.fallback.for_stale(observation, mask, leading)
        thread = self._threads.state
        if self._remote is not None:
            try:
                answers = self.ask_learner(observation[None], None if mask is None else mask[None])
            except CallError:
                if self.context.config.on_stale != "baseline":
                    raise
                return self.fallback.baseline(observation, mask, leading)
            if answers is not None:
                raws, acts, log_probs, stamp = answers
                thread.last_act = acts if leading and acts.ndim > 1 else acts[0]
                return new_action(observation, raws[0], thread.last_act, float(log_probs[0]), stamp, mask)
        thread.take(policy)
        raw, act, log_prob = thread.act(observation, mask)
        if not isfinite(log_prob):
            return self.fallback.for_unusable(policy, traj, observation, mask, leading)
        thread.last_act = as_given(act, leading)
        return new_action(observation, raw, thread.last_act, log_prob, thread.stamp, mask)

    def ask_learner(self, observations: NDArray[Any], masks: NDArray[np.bool_] | None) -> Answers | None:
        """Ask the learner for actions for ``[N, *obs]``; None if the local policy is to act.

        Raises:
            CallError: If there is no answer, and no local policy.
        """
        if self._remote is None:
            return None
        terms = self.context.io.terms
        answer = self._remote.ask(terms.inference if terms is not None else "", observations, masks)
        if answer is None:
            return None
        raws, acts, log_probs, version = answer
        self._follower.saw(version)
        return raws, acts, log_probs, Stamp(*version, self.context.owner)

    def policy_for(self, traj: RL4SysTrajectory) -> Policy:
        """Return the policy to act by, and note it in the trajectory."""
        policy, chosen = self.context.policy, traj.policy
        if self._no_choice:
            traj.seen = policy
        if chosen is None or self.context.config.swap == "step" or chosen.generation != policy.generation:
            traj.policy = chosen = policy
        return chosen
