"""The actor's light client: what somebody else's program holds.

With ``overflow: drop_oldest`` no call waits for anything but the constructor and those that say so (`wait_version`, `flush`,
`close`): acting is in-process work on one immutable policy, and finished segments go into a bounded queue that the I/O thread
empties.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.builder import SegmentBuilder
from rl4sys_zmq.actor.handover import Handover
from rl4sys_zmq.actor.inputs import Inputs
from rl4sys_zmq.actor.io import ActorIO, Terms
from rl4sys_zmq.actor.outbox import Outbox
from rl4sys_zmq.actor.policies import Policy, Sampler
from rl4sys_zmq.actor.trajectory import RL4SysAction, RL4SysTrajectory
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import SessionState
from rl4sys_zmq.errors import (
    ActionError,
    BadInput,
    Closed,
    ConfigError,
    LearnerUnavailable,
    ObservationError,
    PolicyStale,
    ProtocolError,
    RewardError,
    RL4SysError,
)
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports import read_client_keys
from rl4sys_zmq.values import BoxSpace, PolicySpec, space_to_json
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import Hello

__all__ = ["RL4SysAgent"]

log = logging.getLogger(__name__)

_starts = itertools.count()
_agents: weakref.WeakSet[RL4SysAgent] = weakref.WeakSet()
"""Those of this process, so that a forked child can tell them."""


class _HostThread(threading.local):
    """What each host thread has of its own: random numbers from a child of the seed, children given in order of first use."""

    def __init__(self, seeds: np.random.SeedSequence) -> None:
        self.sampler = Sampler(seeds.spawn(1)[0])
        self.last_act: Any = None
        self.block_left = 0
        self.block_width = 0


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

    actor_id: str
    _io: ActorIO

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
            ConfigError: for a wrong configuration, or keys that can't be used.
            SpoolError: when the spool can't be used, or another process uses it.
            LearnerUnavailable: when no learner answers in time; the message says what was waited for.
            HandshakeRefused: when the learner refuses; the message names the field and both values.
            ClientFailed: when this client's learner thread has stopped.
        """
        if (conf_path is None) == (config is None):
            raise ConfigError("give either conf_path or config", key="conf_path")
        self.config = config if config is not None else AgentConfig.load(cast(str, conf_path))
        if debug:
            logging.getLogger("rl4sys_zmq").setLevel(logging.DEBUG)
        self._baseline = baseline
        self._keys = read_client_keys(self.config.keys)[1] if self.config.keys is not None else None
        self._counters = Counters()
        self._drops = self.config.overflow == "drop_oldest"
        self._closed = False
        self._forked = False
        self._begin_life(self.config, None)
        try:
            self._wait(self._joined, self.config.connect_timeout_s)
            self.actor_id = self._io.spool.actor_id if self._io.spool is not None else self.actor_id
            self._spec = cast(PolicySpec, self._io.spec)
            self._inputs = Inputs(self._spec.observation_space, self._spec.action_space)
            terms = cast(Terms, self._io.terms)
            learners = terms.rollout_length or 128
            self._rollout = min(self.config.rollout_length or learners, self.config.max_traj_length, terms.max_segment_steps)
        except BaseException:
            self.close(0.0)
            raise
        _agents.add(self)

    def _begin_life(self, config: AgentConfig, parent: ActorIO | None) -> None:
        """Makes everything that belongs to one process: the queue, the I/O thread and its sockets, the random streams."""
        self.actor_id = config.actor_id or uuid.uuid4().hex
        self._outbox = Outbox(config.queue_items, config.queue_bytes, drops=self._drops)
        hello = self._hello()
        try:
            encode(hello)
        except ProtocolError as exc:
            raise ConfigError(f"the configuration cannot travel: {exc.detail}", key="algorithm_parameters") from exc
        self._io = ActorIO(config, hello, self._outbox, self._keys)
        if parent is not None:
            self._io.inherit(parent)
        entropy = [config.seed, os.getpid()] if parent is not None and config.seed is not None else config.seed
        self._host = _HostThread(np.random.SeedSequence(entropy))
        self._episode_ids = np.random.default_rng()
        self._handover = Handover(self._outbox, config.reward_timeout_s, self._io.wake)
        self._io.start()
        self._io.opened.wait()

    def _after_fork(self) -> None:
        """In a forked child: becomes another actor. The parent keeps the spool, the sockets and the running trajectories."""
        self._forked = False
        if self._closed:
            return
        if self.config.spool is not None:
            log.warning("a forked child has no spool: that of its parent is in use")
        self._counters.add("forks")
        self._begin_life(replace(self.config, actor_id=None, spool=None, policy_cache=None), self._io)

    # ---- acting

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
        """
        if self._closed:
            raise Closed("this agent is closed")
        if traj is not None and traj._agent is not self:
            raise ActionError("this trajectory belongs to another agent")
        if self._forked:
            self._after_fork()
        if traj is not None and traj._handover is not self._handover:
            traj = None  # it runs on in the parent of this forked process
        try:
            observation, leading = self._inputs.observation(obs)
            allowed = self._inputs.mask(mask)
        except BadInput as exc:
            return self._answer_bad_input(traj, exc)
        if len(self._handover):
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
        policy = self._policy_for(traj)
        if self._max_age_s is not None and self._is_stale():
            return self._answer_stale(traj, observation, allowed, leading)
        host = self._host
        raw, act, log_prob = policy.act(observation, allowed, host.sampler, self.config.explore)
        if not math.isfinite(log_prob):
            return self._answer_without(policy, traj, observation, allowed, leading)
        if leading and isinstance(act, np.ndarray):
            act = act[None]
        host.last_act = act
        return traj, RL4SysAction(self, observation, raw, act, log_prob, (policy.generation, policy.version), allowed)

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
        trajs = None if trajs is None else [t if t is not None and t._handover is self._handover else None for t in trajs]
        count = len(trajs) if trajs is not None else len(cast(Sequence[object], obs))
        observations = self._inputs.observations(obs, count)
        allowed = self._inputs.mask(masks, count)
        if len(self._handover):
            self._handover.expire()
        for traj in trajs or ():
            if traj is not None and traj._agent is not self:
                raise ActionError("a trajectory belongs to another agent")
            if traj is not None and traj._last is not None and traj._last.done and not traj.completed:
                self.mark_end_of_trajectory(traj, traj._last)
        host = self._host
        if host.block_left <= 0 or count != host.block_width:
            for i, traj in enumerate(trajs or ()):
                if traj is not None and not traj.completed and traj._builder.steps:
                    self._cut(traj, observations[i], None if allowed is None else allowed[i])
            self._enter(self._rollout * count)
            host.block_left, host.block_width = self._rollout, count
        host.block_left -= 1
        running: list[RL4SysTrajectory] = []
        for i in range(count):
            traj = trajs[i] if trajs is not None else None
            if traj is None or traj.completed:
                traj = self._begin()
            elif self._must_cut(traj._builder):
                self._cut(traj, observations[i], None if allowed is None else allowed[i])
            running.append(traj)
        policy = self._policy_for(running[0])
        if self._max_age_s is not None and self._is_stale():
            answers = [
                self._answer_stale(t, o, None if allowed is None else allowed[i], leading=False)
                for i, (t, o) in enumerate(zip(running, observations, strict=True))
            ]
            return running, [action for _, action in answers]
        raw, acts, log_probs = policy.act_batch(observations, allowed, host.sampler, self.config.explore)
        if not np.isfinite(log_probs).all():
            answers = [
                self._answer_without(policy, t, o, None if allowed is None else allowed[i], leading=False)
                for i, (t, o) in enumerate(zip(running, observations, strict=True))
            ]
            return running, [action for _, action in answers]
        stamp = policy.generation, policy.version
        actions = [
            RL4SysAction(self, o, r, a, p, stamp, None if allowed is None else allowed[i])
            for i, (o, r, a, p) in enumerate(zip(observations, raw, acts, log_probs.tolist(), strict=True))
        ]
        return running, actions

    def add_to_trajectory(self, traj: RL4SysTrajectory, action: RL4SysAction) -> None:
        """Stores an action, before or after its reward is known, as the next step of `traj`.

        Raises:
            ActionError: when the action or the trajectory belongs to another agent, the action is stored already, or the
                trajectory has ended.
        """
        if action._agent is not self or traj._agent is not self:
            raise ActionError("the action and the trajectory must come from this agent")
        if action._builder is not None:
            raise ActionError("this action is stored already")
        if traj._handover is not self._handover:
            self._counters.add("forked_trajectories")
            return  # the parent of this forked process has it
        if traj.completed:
            raise ActionError("this trajectory has ended; request_for_action starts another")
        traj._last = action
        if not self.config.explore:
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
        action._row = builder.add(action.obs, action._raw, action.log_prob, action.version, action._mask, action._reward)
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
        if traj._agent is not self:
            raise ActionError("this trajectory belongs to another agent")
        if traj.completed or traj._handover is not self._handover:
            return
        final = None
        if truncated and self.config.explore:
            if final_obs is None:
                raise ObservationError("truncated=True needs final_obs, the observation after the last action")
            final = self._inputs.observation(final_obs)[0]
        if action is not None and action._builder is None:
            self.add_to_trajectory(traj, action)
        if not self.config.explore or not traj.steps:
            traj.completed = True
            return
        builder = traj._builder
        for part in (*traj._closed, builder):
            if part.missing:
                row = part.first_missing()
                raise RewardError(
                    f"step {row} of segment {part.segment_index} has no reward; call update_reward before mark_end_of_trajectory"
                )
        if not builder.steps:  # an automatic cut came after the last step: that segment was the last
            traj.completed = True
            return
        if action is not None:
            action.done = True
        builder.terminated, builder.truncated = not truncated, truncated
        builder.close(final, None)
        traj.completed = True
        self._handover.close(traj, builder)

    # ---- the learner

    @property
    def version(self) -> int:
        """The version of the policy that acts."""
        return self._policy.version

    @property
    def generation(self) -> int:
        """The generation of the policy that acts."""
        return self._policy.generation

    @property
    def digest(self) -> int:
        """The xxh3-64 digest of that policy's weights."""
        return self._policy.snapshot.digest

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
        self._wait(lambda: self.version >= version, timeout_s, f"version {version}")
        return self.version

    def rollback(self) -> int:
        """Goes back to the version before the current one, which the host found to be bad; returns the version that acts now.

        The bad one is not taken up again; the next that the learner publishes is.

        Raises:
            LearnerUnavailable: when no earlier version is held.
        """
        bad = self._policy
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
            self._wait(
                lambda: self._io.idle and self._io.gate.error is None, timeout_s, lambda: f"the ack of {self._in_actor} segments"
            )
        finally:
            self._io.flushing -= 1

    def stats(self) -> dict[str, Any]:
        """What this actor has done and where its segments are, as a copy.

        ``submitted = dropped_at_source + in_actor + refused + accepted`` holds whenever nothing is on its way.
        """
        session, io, supply = self._io.session, self._io, self._io.supply
        dropped, spool = supply.dropped, self._io.spool
        refused = session.verdicts["refused"]
        gate_error = io.gate.error
        policy = io.policy
        return {
            "client_id": self.config.client_id,
            "actor_id": self.actor_id,
            "state": session.state.value,
            "error": str(gate_error) if gate_error is not None else "",
            "generation": policy.generation if policy is not None else 0,
            "version": policy.version if policy is not None else -1,
            "policy_age_s": round(self.policy_age_s, 3) if policy is not None else None,
            "submitted": supply.submitted,
            "steps": self._outbox.put_steps,
            "dropped_at_source": int(sum(dropped.values())),
            "dropped": dropped,
            "in_actor": self._in_actor,
            "in_flight": session.in_flight,
            "durable": session.durable,
            "refused": refused,
            "accepted": session.accepted,
            "in_doubt": session.in_doubt,
            "verdicts": dict(session.verdicts),
            "credit_steps": max(0, session.credit_steps - session.sent_steps),
            "waiting_for_rewards": len(self._handover),
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
        if self._forked:  # a child that never used it has nothing to close
            self._closed = True
            return
        if self._closed and not self._io.alive:
            return
        self._closed = True
        deadline = time.monotonic() + timeout_s
        if timeout_s > 0 and not self._io.idle and self._io.gate.error is None:
            try:
                self.flush(timeout_s)
            except RL4SysError as exc:
                if self._io.spool is not None:
                    log.info("closed with %d segments in the spool, for the next start: %s", self._in_actor, exc)
                else:
                    log.warning("closed with %d segments undelivered: %s", self._in_actor, exc)
        self._io.stop()
        if self._io.join(max(0.5, deadline - time.monotonic())):
            self._io.release()
        _agents.discard(self)

    # ---- the rest

    @property
    def _policy(self) -> Policy:
        policy = self._io.policy
        assert policy is not None  # the constructor has waited for the first
        return policy

    @property
    def _in_actor(self) -> int:
        return self._io.supply.items + self._io.session.unreceived

    def _hello(self) -> Hello:
        config = self.config
        spaces = (config.observation_space, config.action_space)
        observation, action = (space_to_json(s) if s is not None else {} for s in spaces)
        # Later starts in one process get later incarnations even within one tick of the clock.
        incarnation = time.time_ns() + next(_starts)
        return Hello(
            config.client_id,
            self.actor_id,
            incarnation,
            0,
            0,
            0,
            config.algorithm_name or "",
            dict(config.algorithm_parameters),
            config.type or "",
            observation,
            action,
            config.explore,
            "rl4sys_zmq",
            weights=config.weights.to_json(),
        )

    def _joined(self) -> bool:
        return self._io.policy is not None

    def _begin(self) -> RL4SysTrajectory:
        builder = SegmentBuilder(self._spec.observation_space, self._spec.action_space, self._rollout, 0)
        episode_id = int(self._episode_ids.integers(0, 1 << 64, dtype=np.uint64))
        return RL4SysTrajectory(self, self._handover, episode_id, builder, self.config.max_traj_length)

    def _policy_for(self, traj: RL4SysTrajectory) -> Policy:
        policy = self._policy
        if self.config.swap == "step":
            return policy
        pinned = cast(Policy | None, traj._policy)
        if pinned is None or pinned.generation != policy.generation:
            traj._policy = pinned = policy
        return pinned

    def _must_cut(self, builder: SegmentBuilder) -> bool:
        steps = builder.steps
        return steps >= builder.limit or (steps > 0 and builder.generation != self._policy.generation)

    def _cut(
        self, traj: RL4SysTrajectory, observation: NDArray[Any], mask: NDArray[np.bool_] | None, *, follows: bool = True
    ) -> SegmentBuilder:
        """Ends the running segment, of which `observation` is the one to bootstrap from, and begins the next.

        With `follows` False steps are missing between the two: their indices are no neighbours, so nobody joins them.
        """
        builder = traj._builder
        builder.close(observation, mask)
        traj._cap_left -= builder.steps
        if traj._cap_left <= 0:
            builder.capped = True
            traj._cap_left = self.config.max_traj_length
        self._handover.close(traj, builder)
        traj._entered = False
        rows = min(self._rollout, traj._cap_left)
        traj._builder = SegmentBuilder(
            self._spec.observation_space, self._spec.action_space, rows, builder.segment_index + (1 if follows else 2)
        )
        return traj._builder

    def _answer_bad_input(self, traj: RL4SysTrajectory | None, error: BadInput) -> tuple[RL4SysTrajectory, RL4SysAction]:
        """With ``on_bad_input: drop``: the last action again, or the mode's stand-in, which is never stored."""
        if self.config.on_bad_input == "raise":
            raise error
        self._counters.add(f"bad_input.{type(error).__name__}")
        if traj is None or traj.completed:
            traj = self._begin()
        act = self._host.last_act if self._host.last_act is not None else _baseline(self._spec)
        observation = np.zeros(self._spec.observation_space.shape, dtype=self._spec.observation_space.dtype)
        if traj._builder.steps:  # the best that is known of where the episode is
            observation = traj._builder.last_observation
        policy = self._policy
        return traj, RL4SysAction(self, observation, None, act, 0.0, (policy.generation, policy.version), None)

    @property
    def policy_age_s(self) -> float:
        """For how many seconds the policy has not been known to be the newest."""
        return max(0.0, time.monotonic() - self._io.current_at)

    @property
    def _max_age_s(self) -> float | None:
        return self.config.policy_max_age_s

    def _is_stale(self) -> bool:
        return self.config.on_stale != "keep" and self.policy_age_s > cast(float, self._max_age_s)

    def _answer_stale(
        self, traj: RL4SysTrajectory, observation: NDArray[Any], mask: NDArray[np.bool_] | None, leading: bool
    ) -> tuple[RL4SysTrajectory, RL4SysAction]:
        if self.config.on_stale == "raise":
            raise PolicyStale(self.policy_age_s, cast(float, self._max_age_s))
        self._counters.add("baseline_actions")
        return traj, self._stand_in(observation, mask, leading)

    def _answer_without(
        self, bad: Policy, traj: RL4SysTrajectory, observation: NDArray[Any], mask: NDArray[np.bool_] | None, leading: bool
    ) -> tuple[RL4SysTrajectory, RL4SysAction]:
        """The policy gives no finite answer: acts by the version before it, or by the baseline."""
        self._counters.add("policies_not_finite")
        previous = self._io.roll_back(bad)
        traj._policy = None
        if previous is not None and previous is not bad:
            self._counters.add("rollbacks")
            log.error("version %d gives no finite action; going back to version %d", bad.version, previous.version)
            raw, act, log_prob = previous.act(observation, mask, self._host.sampler, self.config.explore)
            if math.isfinite(log_prob):
                act = act[None] if leading and isinstance(act, np.ndarray) else act
                stamp = previous.generation, previous.version
                return traj, RL4SysAction(self, observation, raw, act, log_prob, stamp, mask)
        return traj, self._stand_in(observation, mask, leading)

    def _stand_in(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None, leading: bool) -> RL4SysAction:
        """An action that no policy chose, and that is never stored."""
        act = self._baseline(observation, mask) if self._baseline is not None else _baseline(self._spec, mask)
        if leading and isinstance(act, np.ndarray):
            act = act[None]
        policy = self._policy
        return RL4SysAction(self, observation, None, act, 0.0, (policy.generation, policy.version), None)

    # ---- waiting: with ``overflow: wait``, and in calls that say that they wait

    def _enter(self, steps: int) -> None:
        """At the start of a segment: with ``overflow: wait``, waits for credit and for the version that goes with it."""
        if self._drops or not self.config.explore:
            return
        io = self._io
        if self._wish(steps) and self._granted():
            return
        io.waiting += 1
        io.wake()
        try:
            self._wait(lambda: self._wish(steps) and self._granted(), self.config.wait_timeout_s)
        finally:
            io.waiting -= 1

    def _wish(self, steps: int) -> bool:
        """Asks for credit beyond what all host threads have finished by now."""
        io = self._io
        wanted = self._outbox.put_steps + 2 * steps
        if wanted > io.want_steps:
            io.want_steps = wanted
            io.wake()
        return True

    def _granted(self) -> bool:
        gate, policy = self._io.gate, self._policy
        if self._outbox.put_steps >= gate.limit_steps:
            return False
        return policy.generation == gate.generation and policy.version >= gate.min_version

    def _wait(self, ready: Any, timeout_s: float, stage: Any = None) -> None:
        """Waits for a condition that the I/O thread brings about; its errors and `close` end the wait."""
        io = self._io
        deadline = time.monotonic() + timeout_s
        io.wake()
        with io.changed:
            while not ready():
                error = io.open_error or io.gate.error
                if error is not None:
                    raise error.with_traceback(None)
                if self._closed and not io.flushing:
                    raise Closed("this agent was closed")
                left = deadline - time.monotonic()
                if left <= 0:
                    words = stage() if callable(stage) else stage
                    hint = f"it was waiting for {io.gate.stage}" if words and io.session.state is not SessionState.JOINED else ""
                    raise LearnerUnavailable(self.config.address, words or io.gate.stage, timeout_s, hint)
                io.changed.wait(min(left, 0.25))


def _fork() -> None:
    for agent in list(_agents):
        agent._forked = True


os.register_at_fork(after_in_child=_fork)


def _baseline(spec: PolicySpec, mask: NDArray[np.bool_] | None = None) -> Any:
    """An action that is valid and does little: the first (allowed one) of a discrete space, the middle (or zero) of a box."""
    space = spec.action_space
    if not isinstance(space, BoxSpace):
        return np.int64(space.start + (int(np.argmax(mask)) if mask is not None else 0))
    low, high = space.low_array(), space.high_array()
    middle = np.where(np.isfinite(low) & np.isfinite(high), (low + high) / 2, np.clip(0.0, low, high))
    return middle.astype(space.dtype)
