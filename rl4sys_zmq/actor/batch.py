"""One request for many environments: one forward pass, and as little as possible for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.acting import Acting
from rl4sys_zmq.actor.action import RL4SysAction, new_actions
from rl4sys_zmq.actor.trajectory import RL4SysTrajectory
from rl4sys_zmq.errors import ActionError, CallError

__all__ = ["request_batch"]

Batch = tuple[list[RL4SysTrajectory], list[RL4SysAction]]


def request_batch(acting: Acting, trajs: Sequence[RL4SysTrajectory | None] | None, obs: object, masks: object) -> Batch:
    """Choose actions for ``N`` environments: see `RL4SysAgent.request_for_actions`."""
    context, episodes, fallback = acting.context, acting.episodes, acting.fallback
    given = _ours(acting, [None] * len(cast(Sequence[object], obs)) if trajs is None else trajs)
    count = len(given)
    observations = acting.inputs.observations(obs, count)
    allowed = acting.inputs.mask(masks, count)
    rows: Sequence[NDArray[np.bool_] | None] = [None] * count if allowed is None else list(allowed)
    if context.pending.late:
        context.pending.expire()
    episodes.end_done(given)
    thread = context.threads.state
    if thread.block_left <= 0 or count != thread.block_width:
        for traj, observation, mask in zip(given, observations, rows, strict=True):
            if traj is not None and not traj.completed and traj.writer.steps:
                episodes.cut(traj, observation, mask)
        context.admit(episodes.rollout * count)
        thread.block_left, thread.block_width = episodes.rollout, count
    thread.block_left -= 1
    running = episodes.running(given, observations, rows, context.policy.generation)
    policy = acting.policy_for(running[0])
    if fallback.is_stale():
        return running, [fallback.for_stale(o, m) for o, m in zip(observations, rows, strict=True)]
    try:
        answers = acting.ask_learner(observations, allowed)
    except CallError:
        if context.config.on_stale != "baseline":
            raise
        return running, [fallback.baseline(o, m) for o, m in zip(observations, rows, strict=True)]
    if answers is None:
        raws, acts, log_probs = policy.act_batch(observations, allowed, thread.sampler, context.config.explore)
        if not np.isfinite(log_probs).all():
            parts = zip(running, observations, rows, strict=True)
            return running, [fallback.for_unusable(policy, t, o, m) for t, o, m in parts]
        thread.take(policy)
        answers = raws, acts, log_probs, thread.stamp
    return running, new_actions(observations, *answers, rows)


def _ours(acting: Acting, trajs: Sequence[RL4SysTrajectory | None]) -> list[RL4SysTrajectory | None]:
    """Return the trajectories, without those of the parent of this forked process."""
    episodes, given = acting.episodes, list(trajs)
    for i, traj in enumerate(given):
        if traj is not None and traj.episodes is not episodes:
            if traj.episodes.owner is not episodes.owner:
                raise ActionError("a trajectory belongs to another agent")
            given[i] = None
    return given
