"""`RL4SysAgent`, the public interface of an actor."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.acting import ActionSelector, StartupActionSelector
from rl4sys_zmq.actor.action import RL4SysAction
from rl4sys_zmq.actor.components import AgentComponents
from rl4sys_zmq.actor.io.shared_state import SessionParameters
from rl4sys_zmq.actor.io.thread import ActorIOThread
from rl4sys_zmq.actor.io.weight_subscriber import PlaceholderPolicy
from rl4sys_zmq.actor.rl4sys import RL4SysCompatibility
from rl4sys_zmq.actor.trajectory import RL4SysTrajectory
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.config.options import TIMEOUT_S, check_value, closest, unknown_key
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ClientFailed, Closed, ConfigError, LearnerUnavailable, RL4SysError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.values import ObservationSpace, PolicySpec, Space, TensorSpec

if TYPE_CHECKING:
    from rl4sys_zmq import _native
    from rl4sys_zmq.security.keys import UserKeys

log = get_logger(__name__)

EXIT_FLUSH_S = 1.0
"""Longest delay of the interpreter's exit, in seconds, while all agents that were not closed send their segments."""

EXIT_STOP_S = 0.5
"""Longest delay of the interpreter's exit, in seconds, until the I/O threads of these agents have closed their sockets."""

_ARGUMENTS = ("conf_path", "debug", "config", "baseline")

_open_agents: weakref.WeakSet[RL4SysAgent] = weakref.WeakSet()


class RL4SysAgent(RL4SysCompatibility, Resource):
    """An actor, which acts with the learner's newest policy and sends the steps to the learner.

    ::

        with RL4SysAgent(conf_path="luna_conf.json") as agent:
            traj = None
            while running:
                traj, action = agent.request_for_action(traj, observation)
                agent.add_to_trajectory(traj, action)
                action.update_reward(do(action.act))
            agent.mark_end_of_trajectory(traj, action)

    Several threads can use one agent, each with its own trajectories. With ``overflow: drop_oldest`` and ``inference: local``,
    only the constructor, `wait_version`, `flush` and `close` wait.

    The constructor waits up to ``connect_timeout_s`` for the learner. It does not wait if a policy from an earlier start is in
    the file `AgentConfig.policy_cache`. If no learner answers, an agent with ``overflow: drop_oldest`` and both spaces in its
    configuration starts without a policy: it acts by the argument `baseline`, or at random with ``fallback: random``, and
    records no steps. From the first policy on, it acts by the policy. Any other agent raises an error. But while the learner
    answers that the training of this policy is starting, the constructor waits longer, up to 10 minutes.

    Close the agent, or use it in a `with` statement. At the exit of the interpreter, an agent that is still open sends its
    finished segments for at most `EXIT_FLUSH_S` seconds, and logs how many it could not deliver.

    A forked child process can use the agent too. At the first request for an action in the child, the agent becomes another
    actor there: with a new name, new sockets, the parent's policy, and no spool. Running trajectories stay with the parent.
    """

    def __init__(
        self,
        conf_path: str | os.PathLike[str] | None = None,
        debug: bool = False,
        *extra: object,
        config: AgentConfig | None = None,
        baseline: Callable[[NDArray[Any], NDArray[np.bool_] | None], Any] | None = None,
        **more: object,
    ) -> None:
        """Connect to the learner, and wait until a policy is available.

        Args:
            conf_path: Path of a JSON or YAML configuration file. Give either this or `config`.
            debug: True sets this package's logger to level DEBUG.
            *extra: Ignored with a warning. RL4Sys has further arguments.
            config: The configuration as an object, in place of a file.
            baseline: Your fallback function, from the observation and the mask to an action. The agent calls the function when
                it has started without its learner, when the policy is stale because the learner has been silent for too long
                (``on_stale: baseline``), and when the policy gives no finite action. None: in the last two cases, the agent
                uses the middle of the action range, or the first allowed discrete action.
            **more: Ignored with the same warning, except for a name that is close to one of the arguments above.

        Raises:
            ConfigError: If an argument is misspelt, the configuration is invalid, a plugin cannot be imported, the policy kind
                is not registered in this process, the keys cannot be used, ``image_codec`` is set for observations that are not
                images, or ``inference`` is not ``local`` and the policy has extra columns or trees of observations.
            SpoolError: If the spool cannot be used, or another process uses it.
            TransportError: If the process has no file descriptors left.
            LearnerUnavailable: If no learner answers in time, and the agent cannot act without a policy. The message names the
                step of the handshake that is missing.
            HandshakeRefused: If the learner refuses this actor. The message has the reason.
            ClientFailed: If the learner has stopped the thread that trains this policy, because of an error, and the agent
                cannot act without a policy.
        """
        if extra or more:
            _ignore(extra, more)
        if (conf_path is None) == (config is None):
            raise ConfigError("give either conf_path or config", key="conf_path")
        config = config if config is not None else AgentConfig.load(cast(str, conf_path))
        self.debug = debug or config.debug
        level = "DEBUG" if self.debug else config.log_level
        if level is not None:
            logging.getLogger("rl4sys_zmq").setLevel(level)
        import_plugins(config.plugins, conf_path)
        self.config = config
        self._keys = _keys(config)
        self._baseline = baseline
        self._counters = Counters()
        self._forked = False
        self._reopening = threading.Lock()
        self._open: ActionSelector | None = None
        self._startup: StartupActionSelector | None = None
        self._steps: _native.Steps | None = None
        self._parts = AgentComponents(config, self._keys, self._counters)
        try:
            self._connect()
        except BaseException:
            self.close(0.0)
            raise
        _open_agents.add(self)

    def request_for_action(
        self, traj: RL4SysTrajectory | None, obs: object, mask: object = None
    ) -> tuple[RL4SysTrajectory, RL4SysAction]:
        """Choose an action for one observation.

        Args:
            traj: The running trajectory. None or a completed trajectory starts a new one.
            obs: Observation ``[*obs]`` or ``[1, *obs]``: an array, tensor or list of finite numbers. For a Dict or Tuple space,
                a dict or tuple of such observations.
            mask: ``[n]`` or ``[1, n]`` for ``n`` discrete actions, 1 where an action is allowed. None allows all actions.

        Returns:
            The trajectory and the action. Add the action with `add_to_trajectory` if it is to be trained on.

        Raises:
            ObservationError, MaskError: If the input is invalid and ``on_bad_input`` is ``raise``. Nothing has changed.
            ActionError: If the trajectory belongs to another agent.
            PolicyStale: If the policy is stale. Only with ``on_stale: raise``.
            Closed: If the agent is closed.
            LearnerUnavailable, ClientFailed: If the learner does not permit more steps (credit) in time. Only with
                ``overflow: wait``.
            CallError: If the learner gives no action in time. Only with ``inference: remote``, and not with
                ``on_stale: baseline``.
        """
        acting = self._open
        if acting is None:
            acting = self._selector()
        return acting.request(traj, obs, mask)

    def request_for_actions(
        self, trajs: Sequence[RL4SysTrajectory | None] | None, obs: object, masks: object = None
    ) -> tuple[list[RL4SysTrajectory], list[RL4SysAction]]:
        """Choose actions for ``N`` environments with one batched forward pass.

        All ``N`` trajectories are cut into segments at the same time, after every `rollout_length` calls by this thread. So one
        request for credit covers all of them.

        Args:
            trajs: ``N`` running trajectories. None or a completed trajectory in the list starts a new one. None in place of the
                list starts ``N`` new ones. ``N`` can be 0.
            obs: Observations ``[N, *obs]``. For a Dict or Tuple space, a dict or tuple of arrays ``[N, *leaf]``.
            masks: ``[N, n]`` for ``n`` discrete actions, 1 where an action is allowed. None allows all actions.

        Returns:
            ``N`` trajectories and ``N`` actions.

        Raises:
            ObservationError, MaskError: If the input is invalid, also with ``on_bad_input: drop``. Nothing has changed.
            Closed: If the agent is closed.
            LearnerUnavailable, ClientFailed: If the learner grants no credit in time. Only with ``overflow: wait``.
            PolicyStale, CallError: With ``on_stale: raise``, if the policy is stale. With ``inference: remote``, if the learner
                gives no actions in time.
        """
        return (self._open or self._selector()).request_batch(trajs, obs, masks)

    def add_to_trajectory(self, traj: RL4SysTrajectory, action: RL4SysAction) -> None:
        """Store an action as the next step of `traj`. Its reward can be set before or after this call.

        Add actions in the order of their requests. Actions that were requested before `action` and not added count as skipped:
        the learner bootstraps at the first skipped action, and the return of the episode is unknown.

        With ``overflow: drop_oldest``, a host that learns rewards late can also add actions after the end of their trajectory.
        An action that was requested before the one that ended the trajectory belongs to this trajectory, as long as the last
        step waits for its reward. An action that was requested later belongs to the next episode. Any other action is dropped,
        counted (``late_actions_dropped`` in `stats`) and logged once.

        Raises:
            ActionError: If the action or the trajectory belongs to another agent, the action is already stored, or, with
                ``overflow: wait``, the trajectory has ended or a later action was added.
        """
        if self._steps is not None:
            self._steps.add(traj, action)
            return
        writer = traj.writer
        if (
            action.stamp is writer.stamp  # an ordinary next step, chosen by the same policy version as the one before
            and traj.episodes is self._episodes
            and action.writer is None
            and not traj.completed
            and writer.steps < writer.limit
            and (requested := traj.requested)
            and requested[0] is action  # no action before it was requested and not added
        ):
            writer.write(action)
            traj.last = action
            requested.popleft()
        else:
            self._episodes.add(traj, action)

    def update_action_reward(self, action: RL4SysAction, reward: object) -> None:
        """Set an action's reward, as `RL4SysAction.update_reward` does."""
        action.update_reward(reward)

    def mark_end_of_trajectory(
        self,
        traj: RL4SysTrajectory,
        action: RL4SysAction | None = None,
        truncated: bool = False,
        final_obs: object = None,
        final_mask: object = None,
    ) -> None:
        """End an episode.

        With ``overflow: drop_oldest``, rewards can be missing. The last segment is then sent when its last reward is set. After
        ``reward_timeout_s`` it is dropped and counted.

        Args:
            traj: The trajectory.
            action: Its last action, which is stored now if it was not added before. If the trajectory has ended already and the
                action belongs to the next episode (see `add_to_trajectory`), the next episode ends.
            truncated: True if a time limit or the host ended the episode, not a terminal state.
            final_obs: The observation after the last action. Required if `truncated`, for bootstrapping. If it is missing or
                invalid with ``on_bad_input: drop``, the last observation and its mask take its place. Not used otherwise.
            final_mask: The mask of `final_obs`, 1 where an action is allowed: the learner bootstraps from allowed actions only.
                None allows all actions. If it is invalid with ``on_bad_input: drop``, `final_obs` counts as invalid too. Not
                used without `final_obs`.

        Raises:
            RewardError: If a step has no reward. The message names the step. Only with ``overflow: wait``.
            ObservationError: If `final_obs` is missing or invalid, and ``on_bad_input`` is ``raise``.
            MaskError: If `final_mask` is invalid, and ``on_bad_input`` is ``raise``.
            ActionError: If `traj` is None, or `action` cannot be added to it (see `add_to_trajectory`).
        """
        self._episodes.end(traj, action, truncated, final_obs, final_mask)

    @property
    def actor_id(self) -> str:
        """The name by which the learner identifies this actor."""
        return self._parts.actor_id

    @property
    def policy_age_s(self) -> float:
        """The time since the learner's last message, in seconds. The learner can have published a newer policy since then."""
        return self._parts.policy_age_s

    @property
    def version(self) -> int:
        """The version of the current policy: the number of its publication. -1 before the first policy has arrived.

        `generation` and `version` together identify a policy.
        """
        return self._parts.policy.version

    @property
    def generation(self) -> int:
        """The generation of the current policy."""
        return self._parts.policy.generation

    @property
    def digest(self) -> int:
        """The digest (xxh3-64 checksum) of the current policy's weights."""
        return self._parts.policy.snapshot.digest

    @property
    def spec(self) -> PolicySpec:
        """The description of the policy: its spaces, kind, parameters and tensors.

        Before the first policy has arrived, only the spaces are valid; the kind is ``none``.
        """
        return self._io.weight_subscriber.spec or self._spec

    def wait_version(self, version: int, timeout_s: float) -> int:
        """Wait until the current policy has the given version or a later one. Return the version of the current policy.

        Raises:
            LearnerUnavailable: If the version does not arrive within `timeout_s` seconds.
            HandshakeRefused, ClientFailed: If the learner refuses this actor, or has stopped the thread that trains this
                policy.
        """
        check_value("timeout_s", timeout_s, TIMEOUT_S)
        self._parts.wait(lambda: self.version >= version, timeout_s, f"version {version}")
        return self.version

    def rollback(self) -> int:
        """Go back to the policy version before the current one. Return the version that is now in use.

        Call this method when the host finds that the current version is bad. This actor never uses the bad version again, even
        in running episodes with ``swap: episode``. It changes to the next version that the learner publishes.

        Raises:
            LearnerUnavailable: If this actor has no earlier version in memory.
        """
        bad = self._parts.policy
        previous = self._io.weight_subscriber.roll_back(bad)
        if previous is None:
            raise LearnerUnavailable(self.config.address, f"a version earlier than {bad.version} to go back to", 0.0)
        self._counters.add("rollbacks")
        return previous.version

    def flush(self, timeout_s: float) -> None:
        """Wait until the learner has recorded every finished segment in its journal.

        Raises:
            LearnerUnavailable: If the wait takes longer than `timeout_s` seconds. The message has the number of missing
                segments.
            HandshakeRefused, ClientFailed: If the learner refuses this actor, or has stopped the thread that trains this
                policy.
        """
        check_value("timeout_s", timeout_s, TIMEOUT_S)
        host = self._io.host
        host.count_flushing(1)
        try:
            self._parts.wait(
                lambda: self._io.idle and self._io.host.credit_gate.error is None,
                timeout_s,
                lambda: f"the ack of {self._in_actor} segments",
            )
        finally:
            host.count_flushing(-1)

    def stats(self) -> dict[str, Any]:
        """Return a copy of this actor's counters and state.

        ``episodes`` counts the episodes whose data were complete and were queued for sending, and ``mean_return`` is the mean
        return of the last 100 of these episodes. With ``explore: false`` and ``report_returns: false`` no episode is counted.

        The counts of segments add up: ``submitted = dropped_at_source + in_actor + refused + accepted``. The equation holds for
        each copy that is made while no segment is being queued or sent.
        """
        session, io, outbox = self._io.session, self._io, self._io.outbox
        dropped, spool = outbox.dropped, outbox.spool
        refused = session.verdicts["refused"]
        error = io.host.credit_gate.error or io.host.absence
        policy = io.weight_subscriber.policy
        returns = self._parts.pending.returns.copy()  # other threads can end an episode at any time
        return {
            "client_id": self.config.client_id,
            "actor_id": self.actor_id,
            "form": self._parts.form,
            "state": session.state.value,
            "error": str(error) if error is not None else "",
            "generation": policy.generation if policy is not None else 0,
            "version": policy.version if policy is not None else -1,
            "policy_age_s": round(self.policy_age_s, 3) if policy is not None else None,
            "submitted": outbox.submitted,
            "steps": outbox.put_steps,
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
            "relay": io.weight_subscriber.relay,
            "credit_steps": max(0, session.credit_steps - session.sent_steps),
            "credit_wait_s": round(self._parts.credit_wait.seconds, 3),
            "waiting_for_rewards": len(self._parts.pending.late),
            "episodes": self._parts.pending.episodes,
            "mean_return": sum(returns) / len(returns) if returns else None,
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
        """Send the finished segments, end the session and stop the I/O thread.

        The call takes at most `timeout_s` seconds plus half a second. Segments that the learner has not received by then are
        dropped, and `stats` still counts them as ``in_actor``. With a spool they stay on disk for the next start. A second
        call does nothing.
        """
        check_value("timeout_s", timeout_s, TIMEOUT_S)
        context = self._parts
        before, context.closed, self._open, self._startup = context.closed, True, None, None
        if self._forked or (before and not self._io.alive):  # a child that never used the agent has nothing to close
            return
        deadline = time.monotonic() + timeout_s
        if timeout_s > 0 and not self._io.idle and self._io.host.credit_gate.error is None:
            self._flush_or_log(timeout_s, "closed")
        if context.remote is not None:
            context.remote.close()
        self._io.stop()
        self._io.join(max(0.5, deadline - time.monotonic()))
        self._io.release()
        _open_agents.discard(self)

    def _flush_or_log(self, timeout_s: float, occasion: str) -> None:
        io = self._io
        io.session.leaving = io.outbox.spool is None  # training can take longer than the wait; a spool keeps the rest
        try:
            self.flush(timeout_s)
        except RL4SysError as exc:
            if io.outbox.spool is not None:
                log.info("%s with %d segments in the spool, for the next start: %s", occasion, self._in_actor, exc)
            else:
                log.warning("%s with %d segments undelivered: %s", occasion, self._in_actor, exc)

    def _leave(self, timeout_s: float) -> None:
        """Send the finished segments at the exit of the interpreter, while host threads can still request actions."""
        if self._forked or self._parts.closed:
            return
        if not self._io.idle:
            self._flush_or_log(timeout_s, f"actor {self.actor_id} was not closed; the process exits")
        self._io.stop()

    @property
    def _io(self) -> ActorIOThread:
        return self._parts.io

    @property
    def _in_actor(self) -> int:
        return self._io.waiting_segments + self._io.session.unreceived

    def _connect(self) -> None:
        """Wait for the first policy. If none comes, act by the baseline or at random if the configuration permits it."""
        config = self.config
        source = "its baseline" if self._baseline is not None else "random actions" if config.fallback == "random" else ""
        if config.overflow == "wait":
            source = ""
        has_spaces = config.observation_space is not None and config.action_space is not None
        try:
            self._parts.join(config.connect_timeout_s, patient=not (source and has_spaces))
        except (LearnerUnavailable, ClientFailed) as exc:
            if source and not has_spaces:
                message = "%s: to act without a policy, the actor needs both spaces: set observation_space and action_space"
                log.error(message, config.client_id)
            if not (source and has_spaces):
                raise
            message = "%s: %s; until the first policy arrives, the actor acts by %s, and records no steps"
            log.warning(message, config.client_id, exc, source)
            if isinstance(exc, LearnerUnavailable):
                self._io.host.set_absence(exc)
            self._begin_without_policy()
        else:
            self._begin()

    def _begin(self) -> ActionSelector:
        """Act by the learner's policy from now on."""
        before, config = self._startup, self.config
        self._spec = cast(PolicySpec, self._io.weight_subscriber.spec)
        session_parameters = cast(SessionParameters, self._io.host.session_parameters)
        learners = session_parameters.rollout_length or 128
        rollout = min(config.rollout_length or learners, config.max_traj_length, session_parameters.max_segment_steps)
        acting = ActionSelector(self._parts, self._spec, rollout, self._baseline, before)
        self._episodes, self._steps = acting.episodes, acting.steps
        self._open, self._startup, self._parts.no_policy = acting, None, None
        if before is not None:
            dropped = self._counters.get("unrecorded_actions")
            message = "%s: the first policy has arrived, version %d; %d steps before it were not recorded"
            log.warning(message, config.client_id, self.version, dropped)
        return acting

    def _begin_without_policy(self) -> ActionSelector:
        """Act by the baseline or at random until the first policy arrives."""
        spaces = cast(ObservationSpace, self.config.observation_space), cast(Space, self.config.action_space)
        spec = self._spec = PolicySpec(*spaces, kind="none", tensors=(TensorSpec("none", (0,)),))
        self._parts.no_policy = PlaceholderPolicy(spec, 0, -1, 0)
        acting = self._startup = StartupActionSelector(self._parts, spec, 0, self._baseline)
        self._episodes, self._steps = acting.episodes, None
        return acting

    def _selector(self) -> ActionSelector:
        """Return the selector to use now: a new one in a forked child, and when the first policy has arrived."""
        startup = self._startup
        if startup is not None and not self._parts.has_policy:
            self._parts.settle_form()
            return startup
        with self._reopening:
            if self._open is not None:  # another thread has begun to act by the policy
                return self._open
            if self._parts.closed:
                raise Closed("this agent is closed")
            if self._forked:
                self._become_child()
            return self._begin() if self._parts.has_policy else self._begin_without_policy()

    def _become_child(self) -> None:
        self._forked = False
        if self.config.spool is not None:
            log.warning("a forked child has no spool: its parent uses it")
        self._counters.add("forks")
        config = replace(self.config, actor_id=None, spool=None, policy_cache=None)
        self._parts = AgentComponents(config, self._keys, self._counters, parent=self._parts)


def _after_fork() -> None:
    for agent in list(_open_agents):
        agent._forked, agent._reopening = True, threading.Lock()
        agent._open = agent._startup = None
        agent._parts.renew_locks()


def _at_exit() -> None:
    agents, deadline = list(_open_agents), time.monotonic() + EXIT_FLUSH_S
    for agent in agents:
        agent._leave(max(0.0, deadline - time.monotonic()))
    deadline = time.monotonic() + EXIT_STOP_S
    for agent in agents:
        if not agent._forked:
            agent._io.join(max(0.0, deadline - time.monotonic()))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def _ignore(extra: tuple[object, ...], more: Mapping[str, object]) -> None:
    """Log arguments of the constructor that have no meaning. Raise `ConfigError` for one that is misspelt."""
    for name in more:
        if closest(name, _ARGUMENTS):
            raise unknown_key(name, _ARGUMENTS, problem="no such argument")
    ignored = [*(f"{value!r:.40}" for value in extra), *more]
    log.warning("RL4SysAgent takes a file or a configuration; these further arguments are ignored: %s", ", ".join(ignored))


def _keys(config: AgentConfig) -> UserKeys | None:
    if config.keys is None:
        return None
    from rl4sys_zmq.security.keys import read_user_keys

    return read_user_keys(config.keys)[1]
