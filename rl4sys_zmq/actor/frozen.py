"""`FrozenAgent`, which acts with an exported policy, without a learner. It has the methods of `RL4SysAgent`."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from rl4sys_zmq.actor.acting import Baseline, LocalActionSelector, idle_action
from rl4sys_zmq.actor.action import AgentIdentity, RL4SysAction, add_leading_axis, new_action
from rl4sys_zmq.actor.components import CurrentThreadState
from rl4sys_zmq.actor.extra_columns import ExtraColumnAction
from rl4sys_zmq.actor.inputs import ActionOverrider, InputValidator
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ActionError, Closed
from rl4sys_zmq.policies import Policy, PolicyOrigin, build_policy, read_policy
from rl4sys_zmq.policies.base import Mask
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.values import PolicySpec
from rl4sys_zmq.values.arrays import without_float_errors
from rl4sys_zmq.values.trees import Tree, flatten


@dataclass(slots=True, eq=False, repr=False)
class FrozenTrajectory:
    """One episode of a `FrozenAgent`, which counts the steps and keeps no data.

    Attributes:
        episode_id: A random 64-bit number that identifies the episode.
        completed: True after `FrozenAgent.mark_end_of_trajectory`. The next request then starts another trajectory.
        steps: The number of actions added.
    """

    agent: FrozenAgent
    episode_id: int
    completed: bool = False
    steps: int = 0
    last: RL4SysAction | None = None  # the last added action
    state: Any = None  # of a policy with extra columns, after that action

    def __len__(self) -> int:
        return self.steps


class FrozenAgent(Resource):
    """An agent that acts with one policy from a folder and never learns. It has no learner, thread or socket.

    ::

        with FrozenAgent("policy") as agent:
            traj = None
            while running:
                traj, action = agent.request_for_action(traj, observation)
                agent.add_to_trajectory(traj, action)
                do(action.act)

    The loop of a host that was written for `RL4SysAgent` runs unchanged: rewards, `add_to_trajectory`, `mark_end_of_trajectory`
    and `flush` are accepted, and nothing is stored or sent. The state of a recurrent policy advances when an action is added.
    Several threads can use one agent, each with its own trajectories.

    Attributes:
        origin: The training that the policy comes from.
    """

    def __init__(
        self,
        policy: str | os.PathLike[str],
        *,
        explore: bool = False,
        seed: int | None = None,
        baseline: Baseline | None = None,
    ) -> None:
        """Read the exported policy from its folder, and verify its checksums.

        Args:
            policy: The folder from ``rl4sys-learner export``, or the folder of a learner's checkpoint.
            explore: True to sample actions as in training. False for the most probable action.
            seed: The seed of the random numbers; None takes one from the operating system. Only with `explore`.
            baseline: Your fallback function, from the observation and the mask to an action, for an observation for which the
                policy gives no finite action. None: the middle of the action range, or the first allowed discrete action.

        Raises:
            PolicyFolderError: If a file is missing, damaged, too large or of another format.
            ConfigError: If safetensors or what the policy needs is not installed, or the kind of the policy is not registered
                in this process.
        """
        stored = read_policy(policy)
        self.origin: PolicyOrigin = stored.origin
        self._spec, self._policy = stored.spec, build_policy(stored.spec, stored.snapshot)
        self._baseline = baseline
        self._inputs = InputValidator(stored.spec.observation_space, stored.spec.action_space)
        self._local = LocalActionSelector(stored.spec, explore)
        self._counters = Counters()
        self._ids = random.Random()
        seed = seed if seed is not None else random.SystemRandom().getrandbits(128)
        self._owner = AgentIdentity(self._counters, drops_bad_input=False)
        self._threads = CurrentThreadState(seed, itertools.count(), explore, self._owner)
        self._owner.overrider = ActionOverrider(stored.spec)
        self._closed = False

    @without_float_errors
    def request_for_action(
        self, traj: FrozenTrajectory | None, obs: object, mask: object = None
    ) -> tuple[FrozenTrajectory, RL4SysAction]:
        """Choose an action for one observation.

        Args:
            traj: The running trajectory. None or a completed trajectory starts a new one.
            obs: Observation ``[*obs]`` or ``[1, *obs]``, or a dict or tuple of them.
            mask: ``[n]`` or ``[1, n]``, 1 where one of the ``n`` discrete actions is allowed. None allows all.

        Returns:
            The trajectory and the action.

        Raises:
            ObservationError, MaskError: If the input is invalid. Nothing has changed.
            ActionError: If the trajectory belongs to another agent.
            Closed: If the agent is closed.
        """
        self._check_open()
        observation, leading = self._inputs.observation(obs)
        allowed = self._inputs.mask(mask)
        traj = self._running(traj)
        action = self._local.choose(self._policy, self._threads.state, traj.state, observation, allowed)
        if not (isfinite(action.log_prob) and _is_finite(action.raw)):
            action = self._fallback(observation, allowed)
        add_leading_axis(action, leading)
        return traj, action

    @without_float_errors
    def request_for_actions(
        self, trajs: Sequence[FrozenTrajectory | None] | None, obs: object, masks: object = None
    ) -> tuple[list[FrozenTrajectory], list[RL4SysAction]]:
        """Choose actions for ``N`` environments with one batched forward pass.

        Args:
            trajs: ``N`` trajectories. None or a completed one in the list starts a new one. None alone starts ``N`` new ones.
            obs: Observations ``[N, *obs]``. For a Dict or Tuple space, a dict or tuple of arrays ``[N, *leaf]``.
            masks: ``[N, n]`` for ``n`` discrete actions, 1 where an action is allowed. None allows all actions.

        Returns:
            ``N`` trajectories and ``N`` actions.

        Raises:
            ObservationError, MaskError: If the input is invalid. Nothing has changed.
            ActionError: If a trajectory belongs to another agent.
            Closed: If the agent is closed.
        """
        self._check_open()
        trajectories = [None] * self._inputs.count(obs) if trajs is None else list(trajs)
        if not trajectories and not self._inputs.count(obs):
            return [], []
        batch = self._inputs.batch(obs, masks, len(trajectories))
        running = [self._running(traj) for traj in trajectories]
        actions, _ = self._local.choose_batch(self._policy, self._threads.state, running, batch)
        for index, action in enumerate(actions):
            if not (isfinite(action.log_prob) and _is_finite(action.raw)):
                actions[index] = self._fallback(batch.each[index], batch.rows[index])
        return running, actions

    def add_to_trajectory(self, traj: FrozenTrajectory, action: RL4SysAction) -> None:
        """Count an action as the next step of `traj`. An action that is added after the end of its trajectory is ignored.

        Raises:
            ActionError: If the action or the trajectory belongs to another agent.
        """
        self._check_trajectory(traj)
        if action.stamp.owner is not self._owner:
            raise ActionError("this action belongs to another agent")
        if not traj.completed:
            traj.steps += 1
            traj.last = action
            self._counters.add("steps")
            if isinstance(action, ExtraColumnAction):
                traj.state = action.state

    def update_action_reward(self, action: RL4SysAction, reward: object) -> None:
        """Set an action's reward, as `RL4SysAction.update_reward` does. A `FrozenAgent` does not use the reward."""
        action.update_reward(reward)

    def mark_end_of_trajectory(
        self,
        traj: FrozenTrajectory,
        action: RL4SysAction | None = None,
        truncated: bool = False,
        final_obs: object = None,
        final_mask: object = None,
    ) -> None:
        """End an episode. A second call does nothing.

        Args:
            traj: The trajectory.
            action: Its last action, which is added now if it was not added before.
            truncated: Not used, as nothing is trained.
            final_obs: Not used.
            final_mask: Not used.

        Raises:
            ActionError: If the action or the trajectory belongs to another agent, or `traj` is None.
        """
        self._check_trajectory(traj)
        if traj.completed:
            return
        if action is not None and action is not traj.last:
            self.add_to_trajectory(traj, action)
        traj.completed = True
        self._counters.add("episodes")

    @property
    def version(self) -> int:
        """The version of the policy: the number of its publication."""
        return self._policy.version

    @property
    def generation(self) -> int:
        """The generation of the policy."""
        return self._policy.generation

    @property
    def digest(self) -> int:
        """The digest (xxh3-64 checksum) of the weights."""
        return self._policy.snapshot.digest

    @property
    def spec(self) -> PolicySpec:
        """The description of the policy: its spaces, kind, parameters and tensors."""
        return self._spec

    @property
    def policy(self) -> Policy:
        """The `Policy` object that chooses the actions."""
        return self._policy

    def flush(self, timeout_s: float) -> None:
        """Do nothing, because nothing is sent. `timeout_s` is not used."""

    def stats(self) -> dict[str, Any]:
        """Return the counts of steps, episodes and actions that were not finite, and the version of the policy."""
        counts = {name: self._counters.get(name) for name in ("steps", "episodes", "policies_not_finite")}
        return {**counts, "generation": self.generation, "version": self.version, "digest": f"{self.digest:016x}"}

    def close(self) -> None:
        """Make all later requests raise Closed. There is nothing to release."""
        self._closed = True

    def _running(self, traj: FrozenTrajectory | None) -> FrozenTrajectory:
        """Return the trajectory of the next step: the given one, or a new one if it is None or has ended."""
        if traj is not None:
            self._check_trajectory(traj)
            if traj.last is not None and traj.last.done:
                self.mark_end_of_trajectory(traj)
            if not traj.completed:
                return traj
        return FrozenTrajectory(self, self._ids.getrandbits(64))

    def _fallback(self, observation: Tree, mask: Mask) -> RL4SysAction:
        """Return the baseline's action, or the idle action, because the policy gave no finite action."""
        self._counters.add("policies_not_finite")
        act = self._baseline(observation, mask) if self._baseline is not None else idle_action(self._spec, mask)
        return new_action(RL4SysAction, observation, None, act, 0.0, self._threads.state.stamp, mask)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this agent was closed")

    def _check_trajectory(self, traj: object) -> None:
        if not isinstance(traj, FrozenTrajectory) or traj.agent is not self:
            raise ActionError(f"expected a trajectory of this agent, not {traj!r:.60}")


def _is_finite(action: Tree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in flatten(action)[0])
