"""The choice of actions: by the local policy, by the learner's inference service, or by a fallback."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import hypot, isfinite
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq import native
from rl4sys_zmq.actor.action import PolicyStamp, RL4SysAction, add_leading_axis, new_action, new_actions
from rl4sys_zmq.actor.components import AgentComponents, ThreadState
from rl4sys_zmq.actor.extra_columns import ExtraColumnActionSelector
from rl4sys_zmq.actor.inputs import ActionOverrider, BatchInputs, InputValidator
from rl4sys_zmq.actor.slots import COMPILED
from rl4sys_zmq.actor.trajectory import MAX_REQUESTED, RL4SysTrajectory, TrajectoryManager
from rl4sys_zmq.errors import ActionError, BadInput, CallError, PolicyStale
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies import Policy, RandomSource
from rl4sys_zmq.policies.action_bounds import action_bounds
from rl4sys_zmq.policies.base import Mask
from rl4sys_zmq.values import BoxSpace, PolicySpec
from rl4sys_zmq.values.action_layout import assemble_action
from rl4sys_zmq.values.arrays import FLOAT_ERRORS, LARGEST_FLOAT32, without_float_errors
from rl4sys_zmq.values.observations import leaves_of
from rl4sys_zmq.values.trees import Tree, copy_tree

if TYPE_CHECKING:
    from rl4sys_zmq import _native
    from rl4sys_zmq.actor.io.compiled_thread import CompiledIOThread

log = get_logger(__name__)

Baseline = Callable[[Any, Mask], Any]
"""The host's fallback function: from an observation (an array or a tree of arrays) and a mask to an action."""


class LocalActionSelector:
    """A selector of actions by policies in this process. One object serves all versions of a policy."""

    def __init__(self, spec: PolicySpec, explore: bool) -> None:
        self._explore = explore
        self._leaves = leaves_of(spec.action_space, "actions")
        self._recorder = ExtraColumnActionSelector(spec, explore) if spec.columns else None

    def choose(self, policy: Policy, thread: ThreadState, state: Any, observation: Tree, mask: Mask) -> RL4SysAction:
        """Return the action of `policy`. `state` is the state before this step, for a policy with extra columns."""
        thread.use(policy)
        if self._recorder is None:
            return new_action(RL4SysAction, observation, *thread.act(observation, mask), thread.stamp, mask)
        return self._recorder.choose(thread, state, observation, mask)

    def choose_batch(
        self, policy: Policy, thread: ThreadState, trajs: Sequence[Any], batch: BatchInputs
    ) -> tuple[list[RL4SysAction], NDArray[np.float32]]:
        """Return the actions of `policy` for ``N`` trajectories, and their log-probabilities ``[N]``."""
        thread.use(policy)
        if self._recorder is not None:
            return self._recorder.choose_batch(policy, thread, [traj.state for traj in trajs], batch)
        raw, act, log_probs = policy.act_batch(batch.observations, batch.masks, thread.sampler, self._explore)
        raws, acts = self._leaves.rows(raw), self._leaves.rows(act)
        return new_actions(batch.each, raws, acts, log_probs, thread.stamp, batch.rows), log_probs


class FallbackActionSelector:
    """A selector of actions where no policy chooses: for invalid input, for a stale or failing policy, and before the first.

    The *idle action* is the last resort: the first allowed discrete action, or the middle of a Box. The learner gets no
    fallback action.
    """

    def __init__(self, parts: AgentComponents, spec: PolicySpec, baseline: Baseline | None, local: LocalActionSelector) -> None:
        self._parts, self._spec, self._baseline, self._local = parts, spec, baseline, local
        self._on_stale = parts.config.on_stale
        self.max_age_s = parts.config.policy_max_age_s if self._on_stale != "keep" else None

    def is_stale(self) -> bool:
        return self.max_age_s is not None and self._parts.policy_age_s > self.max_age_s

    def for_bad_input(self, traj: RL4SysTrajectory) -> RL4SysAction:
        """Return the previous action of the calling thread. If it has none, return the idle action."""
        last = copy_tree(self._parts.threads.state.last_act)
        # The last valid observation is the best estimate.
        observation = traj.writer.last_observation if traj.writer.steps else traj.episodes.inputs.zero()
        return self._unstored_action(observation, last if last is not None else idle_action(self._spec))

    def for_stale(self, observation: Tree, mask: Mask) -> RL4SysAction:
        """Return the baseline's action, because the policy is stale. With ``on_stale: raise``, raise PolicyStale instead."""
        if self._on_stale == "raise":
            raise PolicyStale(self._parts.policy_age_s, self.max_age_s or 0.0)
        return self.baseline(observation, mask)

    def roll_back_and_act(self, bad: Policy, traj: RL4SysTrajectory, observation: Tree, mask: Mask) -> RL4SysAction:
        """Roll back `bad`, whose action is not finite. Return the action of the version before, or the idle action."""
        parts = self._parts
        parts.counters.add("policies_not_finite")
        previous = parts.io.weight_subscriber.roll_back(bad)
        traj.policy = traj.selected_under = traj.state = None  # the state can be what is not finite
        if previous is not None and previous is not bad:
            parts.counters.add("rollbacks")
            log.error("policy version %d gives no finite action; going back to version %d", bad.version, previous.version)
            action = self._local.choose(previous, parts.threads.state, None, observation, mask)
            if math.isfinite(action.log_prob):
                return action
        return self._idle_action(observation, mask)

    def before_policy(self, observation: Tree, mask: Mask) -> RL4SysAction:
        """Return the baseline's action, or a random one, because no policy has arrived so far."""
        if self._baseline is not None:
            return self.baseline(observation, mask)
        self._parts.counters.add("random_actions")
        act = _random(self._spec, mask, self._parts.threads.state.sampler)
        return self._unstored_action(observation, act)

    def baseline(self, observation: Tree, mask: Mask) -> RL4SysAction:
        """Return the action of the baseline. Without a baseline, return the idle action."""
        self._parts.counters.add("baseline_actions")
        return self._idle_action(observation, mask)

    def _idle_action(self, observation: Tree, mask: Mask) -> RL4SysAction:
        act = self._baseline(observation, mask) if self._baseline is not None else idle_action(self._spec, mask)
        return self._unstored_action(observation, act)

    def _unstored_action(self, observation: Tree, act: Any) -> RL4SysAction:
        policy = self._parts.policy
        stamp = PolicyStamp(policy.generation, policy.version, self._parts.owner)
        return new_action(RL4SysAction, observation, None, act, 0.0, stamp, None)


def idle_action(spec: PolicySpec, mask: Mask = None) -> Any:
    """Return the first allowed discrete action, or the middle of a Box (the value nearest 0 in an unbounded dimension)."""
    return assemble_action(spec.action_space, mask, lambda allowed: allowed[0], _middle)


def _bounds(space: BoxSpace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the bounds of each element of a Box; for a Box of integers, the nearest integers within the bounds."""
    low, high = space.low_array(), space.high_array()
    return (np.ceil(low), np.floor(high)) if np.dtype(space.dtype).kind in "iub" else (low, high)


def _limited(space: BoxSpace, values: NDArray[np.float64]) -> NDArray[np.float64]:
    limits = action_bounds(space)  # a float64 of 2^63 or more is no 64-bit integer
    return np.clip(values, limits.low.reshape(space.shape), limits.high.reshape(space.shape))


def _middle(space: BoxSpace) -> NDArray[np.float64]:
    low, high = _bounds(space)
    with np.errstate(invalid="ignore"):  # the middle between infinities is not used
        middle = low / 2 + high / 2  # the sum of the bounds can be too large for a float64
    return _limited(space, np.where(np.isfinite(low) & np.isfinite(high), middle, np.clip(0.0, low, high)))


def _random(spec: PolicySpec, mask: Mask, sampler: RandomSource) -> Any:
    """Return a uniformly random action that `mask` allows. A dimension with an infinite bound gets a clipped normal number."""

    def pick(allowed: Sequence[int]) -> int:
        return allowed[int(sampler.uniform() * len(allowed))]

    def spread(space: BoxSpace) -> NDArray[np.float64]:
        low, high = _bounds(space)
        whole = np.dtype(space.dtype).kind in "iub"
        finite = np.isfinite(low) & np.isfinite(high)
        first, half = np.where(finite, low, 0.0), np.where(finite, high / 2 - low / 2, 0.0)  # the width can be infinite
        with np.errstate(over="ignore"):
            drawn = 2.0 * (first / 2 + (half + whole / 2) * sampler.uniforms(space.shape))
        unbounded = np.clip(sampler.normals(space.size).reshape(space.shape), low, high)
        values = np.where(finite, np.floor(drawn), np.rint(unbounded)) if whole else np.where(finite, drawn, unbounded)
        return _limited(space, values)

    return assemble_action(spec.action_space, mask, pick, spread)


class ActionSelector:
    """The object that chooses an agent's actions, for one environment or for a batch of environments.

    `request` has a fast path for the most frequent request: a running trajectory, a short flat observation of floats, no mask,
    and no closed segment that waits for rewards. `_request` handles every request, and gives the same results.
    """

    def __init__(
        self,
        parts: AgentComponents,
        spec: PolicySpec,
        rollout: int,
        baseline: Baseline | None,
        before: ActionSelector | None = None,
    ) -> None:
        self._parts = parts
        self._inputs = InputValidator(spec.observation_space, spec.action_space, parts.mask_refusal)
        self._leaves = leaves_of(spec.observation_space)
        if before is None:
            self.episodes = TrajectoryManager(parts, spec, self._inputs, rollout)
        else:
            self.episodes = before.episodes
            self.episodes.use(spec, self._inputs, rollout)
        parts.owner.overrider = ActionOverrider(spec)
        self._local = LocalActionSelector(spec, parts.config.explore)
        self._fallback = FallbackActionSelector(parts, spec, baseline, self._local)
        self._weight_subscriber, self._pending, self._threads = parts.io.weight_subscriber, parts.pending, parts.threads
        self._remote = parts.remote
        self._keeps_last = parts.config.on_bad_input == "drop"  # a copy, because the host can write to its own array
        # If the local policy always chooses, and records no extra columns, the fast path of `request` can be used.
        self._has_fast_path = parts.remote is None and self._fallback.max_age_s is None and not spec.columns
        self._plain_shape, self._plain_dtype = self._inputs.plain_shape, self._inputs.plain_dtype
        self.steps = self._compiled_steps(spec)
        if self.steps is not None:
            self.request = self.steps.request  # type: ignore[method-assign, assignment]

    def _compiled_steps(self, spec: PolicySpec) -> _native.Steps | None:
        """Return the compiled fast path, or None if this configuration has none. It calls the methods here in rare cases."""
        parts, dtype = self._parts, self._plain_dtype
        if parts.form != "compiled" or not COMPILED or not self._has_fast_path or dtype is None or self._keeps_last:
            return None
        from rl4sys_zmq.policies.compiled import step_arrays

        io = cast("CompiledIOThread", parts.io)
        start, size, makers, scalars = step_arrays(spec)
        methods = self.episodes, self.request, self._on_not_finite, self.episodes.add
        others = np.ndarray, parts.threads, parts.pending, RL4SysAction, io.native, makers, scalars
        sizes = start, math.prod(self._plain_shape or ()), dtype.itemsize, size
        steps: _native.Steps = native.require().Steps(methods + others, *sizes)
        return steps

    def _on_not_finite(self, traj: RL4SysTrajectory, obs: NDArray[Any]) -> tuple[RL4SysTrajectory, RL4SysAction]:
        """Do the rest of a request on the compiled fast path, which has drawn an action that is not finite."""
        assert traj.policy is not None
        try:
            action = self._fallback.roll_back_and_act(traj.policy, traj, obs.copy(), None)
        except FLOAT_ERRORS:
            return self._request(traj, obs, None)
        traj.requested.append(action)
        return traj, action

    def request(self, traj: RL4SysTrajectory | None, obs: object, mask: object) -> tuple[RL4SysTrajectory, RL4SysAction]:
        if traj is not None and mask is None and type(obs) is np.ndarray:
            writer, last = traj.writer, traj.last
            if (
                traj.selected_under
                is self._weight_subscriber.policy  # true only for a running trajectory with an earlier request
                and traj.episodes is self.episodes
                and writer.steps < writer.limit
                and len(traj.requested) < MAX_REQUESTED
                and (last is None or not last.done)
                and obs.shape == self._plain_shape
                and obs.dtype is self._plain_dtype
                and not self._pending.late
            ):
                observation = obs.copy()
                thread = self._threads.state
                policy = traj.policy
                if policy is not None and thread.policy is policy and hypot(*observation.tolist()) <= LARGEST_FLOAT32:
                    try:
                        raw, act, log_prob = thread.act(observation, None)
                        if isfinite(log_prob):
                            action = new_action(RL4SysAction, observation, raw, act, log_prob, thread.stamp, None)
                            if self._keeps_last:
                                thread.last_act = copy_tree(act)
                        else:
                            action = self._fallback.roll_back_and_act(policy, traj, observation, None)
                    except FLOAT_ERRORS:
                        return self._request(traj, obs, mask)
                    traj.requested.append(action)
                    return traj, action
        return self._request(traj, obs, mask)

    def _request(self, traj: RL4SysTrajectory | None, obs: object, mask: object) -> tuple[RL4SysTrajectory, RL4SysAction]:
        episodes, traj = self.episodes, self._ours(traj)
        try:
            observation, leading = self._inputs.observation(obs)
            allowed = self._inputs.mask(mask)
        except BadInput as exc:
            episodes.owner.refuse(exc)
            episodes.end_done([traj])
            if traj is None or traj.completed:
                traj = episodes.new_trajectory(traj)
            action = self._fallback.for_bad_input(traj)
            episodes.note_request(traj, action)
            return traj, action
        if self._pending.late:
            self._pending.expire()
        episodes.end_done([traj])
        [traj] = episodes.running([traj], [observation], [allowed], self._parts.policy.generation)
        if not traj.has_credit:
            self._parts.admit(episodes.rollout)
            traj.has_credit = True
        try:
            action = self._choose(traj, observation, allowed)
        except FLOAT_ERRORS:
            with np.errstate(all="ignore"):
                action = self._choose(traj, observation, allowed)
        add_leading_axis(action, leading)
        if self._keeps_last and action.raw is not None:
            self._threads.state.last_act = copy_tree(action.act)
        episodes.note_request(traj, action)
        return traj, action

    def _choose(self, traj: RL4SysTrajectory, observation: Tree, mask: Mask) -> RL4SysAction:
        policy = self._policy_for(traj)
        if self._remote is not None or self._fallback.is_stale():
            masks = None if mask is None else mask[None]
            actions = self._choose_elsewhere(BatchInputs(self._leaves.stack([observation]), masks, [observation], [mask]))
            if actions is not None:
                return actions[0]
        action = self._local.choose(policy, self._threads.state, traj.state, observation, mask)
        return action if isfinite(action.log_prob) else self._fallback.roll_back_and_act(policy, traj, observation, mask)

    def request_batch(
        self, trajs: Sequence[RL4SysTrajectory | None] | None, obs: object, masks: object
    ) -> tuple[list[RL4SysTrajectory], list[RL4SysAction]]:
        parts, episodes = self._parts, self.episodes
        trajectories = [None] * self._inputs.count(obs) if trajs is None else [self._ours(traj) for traj in trajs]
        count = len(trajectories)
        if not count and not self._inputs.count(obs):
            return [], []
        batch = self._inputs.batch(obs, masks, count)
        if parts.pending.late:
            parts.pending.expire()
        episodes.end_done(trajectories)
        thread = parts.threads.state
        if thread.calls_until_cut <= 0 or count != thread.batch_width:
            for traj, observation, mask in zip(trajectories, batch.each, batch.rows, strict=True):
                if traj is not None and not traj.completed and traj.writer.steps:
                    episodes.cut(traj, *traj.bootstrap(observation, mask))
            parts.admit(episodes.rollout * count)
            thread.calls_until_cut, thread.batch_width = episodes.rollout, count
        thread.calls_until_cut -= 1
        running = episodes.running(trajectories, batch.each, batch.rows, parts.policy.generation)
        actions = self._choose_batch(running, batch)
        for traj, action in zip(running, actions, strict=True):
            episodes.note_request(traj, action)
        return running, actions

    @without_float_errors
    def _choose_batch(self, running: Sequence[RL4SysTrajectory], batch: BatchInputs) -> list[RL4SysAction]:
        """Choose the actions of ``N`` running trajectories. With ``swap: episode``, each keeps the policy of its first step."""
        policies = [self._policy_for(traj) for traj in (running[:1] if self._parts.config.swap == "step" else running)]
        actions = self._choose_elsewhere(batch)
        if actions is not None:
            return actions
        groups: dict[int, list[int]] = {}
        for n, policy in enumerate(policies):
            groups.setdefault(id(policy), []).append(n)
        if len(groups) == 1:
            return self._choose_locally(policies[0], running, batch)
        chosen: dict[int, RL4SysAction] = {}
        for members in groups.values():
            each = [batch.each[n] for n in members]
            masks = None if batch.masks is None else batch.masks[members]
            part = BatchInputs(self._leaves.stack(each), masks, each, [batch.rows[n] for n in members])
            actions = self._choose_locally(policies[members[0]], [running[n] for n in members], part)
            chosen.update(zip(members, actions, strict=True))
        return [chosen[n] for n in range(len(running))]

    def _choose_elsewhere(self, batch: BatchInputs) -> list[RL4SysAction] | None:
        """Return the inference service's actions, or the baseline's for a stale policy. None: the local policy must choose."""
        fallback, parameters = self._fallback, self._parts.io.host.session_parameters
        if fallback.is_stale():
            return [fallback.for_stale(o, m) for o, m in zip(batch.each, batch.rows, strict=True)]
        if self._remote is None:
            return None
        try:
            answer = self._remote.ask(parameters.inference if parameters is not None else "", batch.observations, batch.masks)
        except CallError:
            if self._parts.config.on_stale != "baseline":
                raise
            return [fallback.baseline(o, m) for o, m in zip(batch.each, batch.rows, strict=True)]
        if answer is None:
            return None
        raws, acts, log_probs, version = answer
        self._weight_subscriber.saw(version)
        return new_actions(batch.each, raws, acts, log_probs, PolicyStamp(*version, self._parts.owner), batch.rows)

    def _choose_locally(self, policy: Policy, running: Sequence[RL4SysTrajectory], batch: BatchInputs) -> list[RL4SysAction]:
        actions, log_probs = self._local.choose_batch(policy, self._parts.threads.state, running, batch)
        if np.isfinite(log_probs).all():
            return actions
        parts = zip(running, batch.each, batch.rows, strict=True)
        return [self._fallback.roll_back_and_act(policy, traj, observation, mask) for traj, observation, mask in parts]

    def _ours(self, traj: RL4SysTrajectory | None) -> RL4SysTrajectory | None:
        """Return `traj`, or None for a trajectory that began in the parent process, before this process was forked."""
        if traj is None or traj.episodes is self.episodes:
            return traj
        if traj.episodes.owner is not self.episodes.owner:
            raise ActionError("this trajectory belongs to another agent")
        return None

    def _policy_for(self, traj: RL4SysTrajectory) -> Policy:
        """Return the policy for the trajectory's next action: the newest, or with ``swap: episode`` its first one."""
        policy, chosen = self._parts.policy, traj.policy
        if self._has_fast_path:
            traj.selected_under = policy
        if (
            chosen is None
            or self._parts.config.swap == "step"
            or chosen.generation != policy.generation
            or self._weight_subscriber.was_rolled_back(chosen)
        ):
            traj.policy = chosen = policy
        return chosen


class StartupActionSelector(ActionSelector):
    """The selector of an agent that started without its learner, until the first policy arrives. No step is stored."""

    def _choose(self, traj: RL4SysTrajectory, observation: Tree, mask: Mask) -> RL4SysAction:
        return self._fallback.before_policy(observation, mask)

    def _compiled_steps(self, spec: PolicySpec) -> None:
        return None

    @without_float_errors
    def _choose_batch(self, running: Sequence[RL4SysTrajectory], batch: BatchInputs) -> list[RL4SysAction]:
        return [self._fallback.before_policy(o, m) for o, m in zip(batch.each, batch.rows, strict=True)]
