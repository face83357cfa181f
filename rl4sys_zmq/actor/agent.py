"""The actor's light client: what somebody else's program holds.

With ``overflow: drop_oldest`` no call waits for anything but the constructor and those that say so (`wait_version`, `flush`,
`close`): acting is in-process work on one immutable policy, and finished segments go into a bounded queue that the I/O thread
empties.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.acting import Acting
from rl4sys_zmq.actor.action import RL4SysAction
from rl4sys_zmq.actor.context import AgentContext
from rl4sys_zmq.actor.io import ActorIO
from rl4sys_zmq.actor.session_parameters import SessionParameters
from rl4sys_zmq.actor.trajectory import RL4SysTrajectory
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import Closed, ConfigError, LearnerUnavailable, RL4SysError
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.values import PolicySpec

if TYPE_CHECKING:
    from rl4sys_zmq.security import UserKeys

__all__ = ["RL4SysAgent"]

log = logging.getLogger(__name__)

AGENTS: weakref.WeakSet[RL4SysAgent] = weakref.WeakSet()
"""The agents of this process, so that a forked child can tell them."""


class RL4SysAgent(Resource):
    """Acts with the learner's newest policy and sends what happened back to it.

    ::

        with RL4SysAgent(conf_path="luna_conf.json") as agent:
            traj = None
            while running:
                traj, action = agent.request_for_action(traj, observation)
                agent.add_to_trajectory(traj, action)
                action.update_reward(do(action.act))
            agent.mark_end_of_trajectory(traj, action)

    Several threads may use one agent, each with trajectories of its own. The constructor waits for the learner, at most
    ``connect_timeout_s``; not if a policy is there from an earlier start (`AgentConfig.policy_cache`).

    A forked child may go on with the agent: at its first call there it becomes another actor, with sockets of its own, the
    policy that was held, and no spool. Trajectories that were running belong to the parent.
    """

    def __init__(
        self,
        conf_path: str | os.PathLike[str] | None = None,
        *,
        config: AgentConfig | None = None,
        debug: bool = False,
        baseline: Callable[[NDArray[Any], NDArray[np.bool_] | None], Any] | None = None,
    ) -> None:
        """Joins the learner.

        Args:
            conf_path: a configuration file, JSON or YAML; or
            config: the configuration itself.
            debug: logs this package at level DEBUG (where the host's logging shows it).
            baseline: what to do instead of a policy that is stale (``on_stale: baseline``) or unusable, from the observation
                and the mask; None: an action that does little.

        Raises:
            ConfigError: for a wrong configuration, a plugin that cannot be imported, a policy of a kind that is not registered
                here, keys that can't be used, or an ``image_codec`` for what are no images.
            SpoolError: when the spool can't be used, or another process uses it.
            LearnerUnavailable: when no learner answers in time; the message says what was waited for.
            HandshakeRefused: when the learner refuses; the message names the field and both values.
            ClientFailed: when this client's learner thread has stopped.
        """
        if (conf_path is None) == (config is None):
            raise ConfigError("give either conf_path or config", key="conf_path")
        config = config if config is not None else AgentConfig.load(cast(str, conf_path))
        if debug:
            logging.getLogger("rl4sys_zmq").setLevel(logging.DEBUG)
        import_plugins(config.plugins)
        self.config = config
        self._keys = _keys(config)
        self._baseline = baseline
        self._counters = Counters()
        self._forked = False
        self._reopening = threading.Lock()
        self._open: Acting | None = None
        self._context = AgentContext(config, self._keys, self._counters)
        try:
            self._context.join(config.connect_timeout_s)
            self._spec = cast(PolicySpec, self._io.spec)
            config.check_images(self._spec.observation_space)
            session_parameters = cast(SessionParameters, self._io.session_parameters)
            learners = session_parameters.rollout_length or 128
            self._rollout = min(config.rollout_length or learners, config.max_traj_length, session_parameters.max_segment_steps)
            self._begin()
        except BaseException:
            self.close(0.0)
            raise
        AGENTS.add(self)

    # ---- the host's loop

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
        acting = self._open
        if acting is None:
            acting = self._reopened()
        return acting.request(traj, obs, mask)

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
        return (self._open or self._reopened()).request_batch(trajs, obs, masks)

    def add_to_trajectory(self, traj: RL4SysTrajectory, action: RL4SysAction) -> None:
        """Stores an action, before or after its reward is known, as the next step of `traj`.

        Raises:
            ActionError: when the action or the trajectory belongs to another agent, the action is stored already, or the
                trajectory has ended.
        """
        writer = traj.writer
        if (
            action.stamp is writer.stamp  # an ordinary next step: the policy version of the step before has chosen it
            and traj.episodes is self._episodes
            and action.writer is None
            and action.raw is not None
            and not traj.completed
        ):
            writer.write(action)
            traj.last = action
        else:
            self._episodes.add(traj, action)

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
        self._episodes.end(traj, action, truncated, final_obs)

    # ---- the learner

    @property
    def actor_id(self) -> str:
        """The actor's name on the wire."""
        return self._context.actor_id

    @property
    def policy_age_s(self) -> float:
        """For how many seconds the policy has not been known to be the newest."""
        return self._context.policy_age_s

    @property
    def version(self) -> int:
        """The version of the policy that acts."""
        return self._context.policy.version

    @property
    def generation(self) -> int:
        """The generation of the policy that acts."""
        return self._context.policy.generation

    @property
    def digest(self) -> int:
        """The xxh3-64 digest of that policy's weights."""
        return self._context.policy.snapshot.digest

    @property
    def spec(self) -> PolicySpec:
        """The policy's description: its spaces and layers."""
        return self._spec

    def wait_version(self, version: int, timeout_s: float) -> int:
        """Waits until the policy has `version` or a later one; returns the one it has.

        Raises:
            LearnerUnavailable: when that takes longer than `timeout_s` seconds.
            HandshakeRefused, ClientFailed: when it will not come.
        """
        self._context.wait(lambda: self.version >= version, timeout_s, f"version {version}")
        return self.version

    def rollback(self) -> int:
        """Goes back to the version before the current one, which the host found to be bad; returns the version that acts now.

        The bad one is not taken up again; the next that the learner publishes is.

        Raises:
            LearnerUnavailable: when no earlier version is held.
        """
        bad = self._context.policy
        previous = self._io.roll_back(bad)
        if previous is None:
            raise LearnerUnavailable(self.config.address, f"a version to go back to from {bad.version}", 0.0)
        self._counters.add("rollbacks")
        return previous.version

    def flush(self, timeout_s: float) -> None:
        """Waits until every finished segment is durable on the learner.

        Raises:
            LearnerUnavailable: when that takes longer than `timeout_s` seconds; it says how many are left.
            HandshakeRefused, ClientFailed: when it will not happen.
        """
        self._io.flushing += 1
        try:
            self._context.wait(
                lambda: self._io.idle and self._io.credit_gate.error is None,
                timeout_s,
                lambda: f"the ack of {self._in_actor} segments",
            )
        finally:
            self._io.flushing -= 1

    def stats(self) -> dict[str, Any]:
        """What this actor has done and where its segments are, as a copy.

        ``submitted = dropped_at_source + in_actor + refused + accepted`` holds whenever nothing is on its way.
        """
        session, io, segment_queue = self._io.session, self._io, self._io.segment_queue
        dropped, spool = segment_queue.dropped, self._io.spool
        refused = session.verdicts["refused"]
        gate_error = io.credit_gate.error
        policy = io.policy
        return {
            "client_id": self.config.client_id,
            "actor_id": self.actor_id,
            "state": session.state.value,
            "error": str(gate_error) if gate_error is not None else "",
            "generation": policy.generation if policy is not None else 0,
            "version": policy.version if policy is not None else -1,
            "policy_age_s": round(self.policy_age_s, 3) if policy is not None else None,
            "submitted": segment_queue.submitted,
            "steps": self._context.outbox.put_steps,
            "dropped_at_source": int(sum(dropped.values())),
            "dropped": dropped,
            "in_actor": self._in_actor,
            "in_flight": session.in_flight,
            "durable": session.durable,
            "refused": refused,
            "accepted": session.accepted,
            "in_doubt": session.in_doubt,
            "verdicts": dict(session.verdicts),
            "alarms": dict(io.weight_subscriber.alarms),
            "credit_steps": max(0, session.credit_steps - session.sent_steps),
            "waiting_for_rewards": len(self._context.pending.late),
            "spool": None
            if spool is None
            else {
                "items": len(spool),
                "bytes": spool.nbytes,
                "memory_items": spool.memory_items,
                "error": spool.error or "",
                **spool.counters.snapshot(),
            },
            "counters": {**self._counters.snapshot(), **io.counters.snapshot()},
        }

    def close(self, timeout_s: float = 2.0) -> None:
        """Sends what is finished, says goodbye and ends the I/O thread, within `timeout_s` seconds and at most half a second.

        What the learner has not taken by then is counted (``in_actor`` in `stats`) and dropped, or with a spool stays in it for
        the next start. A second call does nothing.
        """
        context = self._context
        before, context.closed, self._open = context.closed, True, None
        if self._forked or (before and not self._io.alive):  # a child that never used it has nothing to close
            return
        deadline = time.monotonic() + timeout_s
        if timeout_s > 0 and not self._io.idle and self._io.credit_gate.error is None:
            try:
                self.flush(timeout_s)
            except RL4SysError as exc:
                if self._io.spool is not None:
                    log.info("closed with %d segments in the spool, for the next start: %s", self._in_actor, exc)
                else:
                    log.warning("closed with %d segments undelivered: %s", self._in_actor, exc)
        if context.remote is not None:
            context.remote.close()
        self._io.stop()
        if self._io.join(max(0.5, deadline - time.monotonic())):
            self._io.release()
        AGENTS.discard(self)

    # ---- the rest

    @property
    def _io(self) -> ActorIO:
        return self._context.io

    @property
    def _in_actor(self) -> int:
        return self._io.waiting_segments + self._io.session.unreceived

    def _begin(self) -> Acting:
        """Act in the present context."""
        acting = self._open = Acting(self._context, self._spec, self._rollout, self._baseline)
        self._episodes = acting.episodes
        return acting

    def _reopened(self) -> Acting:
        """Become another actor in a forked child. The parent keeps the spool, the sockets and the running trajectories.

        Raises:
            Closed: If the agent was closed.
        """
        with self._reopening:
            if self._open is not None:  # another thread has
                return self._open
            if self._context.closed:
                raise Closed("this agent is closed")
            self._forked = False
            if self.config.spool is not None:
                log.warning("a forked child has no spool: that of its parent is in use")
            self._counters.add("forks")
            config = replace(self.config, actor_id=None, spool=None, policy_cache=None)
            self._context = AgentContext(config, self._keys, self._counters, parent=self._context)
            return self._begin()


def _after_fork() -> None:
    for agent in list(AGENTS):
        agent._forked, agent._open, agent._reopening = True, None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _keys(config: AgentConfig) -> UserKeys | None:
    if config.keys is None:
        return None
    from rl4sys_zmq.security import read_user_keys

    return read_user_keys(config.keys)[1]
