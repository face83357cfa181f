"""Trajectories: the start and end of episodes, and their division into segments."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from rl4sys_zmq.actor.action import RL4SysAction
from rl4sys_zmq.actor.components import AgentComponents
from rl4sys_zmq.actor.extra_columns import ExtraColumnAction, ExtraColumnSegmentWriter
from rl4sys_zmq.actor.inputs import InputValidator
from rl4sys_zmq.actor.segments import PendingEpisodeSegments, SegmentWriter
from rl4sys_zmq.actor.slots import TrajectorySlots
from rl4sys_zmq.errors import ActionError, BadInput, ObservationError, RewardError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies import Policy
from rl4sys_zmq.policies.base import Mask
from rl4sys_zmq.values import PolicySpec
from rl4sys_zmq.values.trees import Tree

log = get_logger(__name__)

MAX_REQUESTED = 1024
"""The largest number of requested actions of one trajectory that are kept though the host has given them up."""


class RequestedActions(deque[RL4SysAction]):
    """A queue of the actions that were requested and not added so far, for one trajectory or several consecutive ones."""

    __slots__ = ("newest",)

    newest: RL4SysTrajectory | None  # newest of these trajectories. None if there is only one

    def __init__(self) -> None:
        super().__init__()
        self.newest = None


@dataclass(slots=True, eq=False, repr=False)
class RL4SysTrajectory(TrajectorySlots):
    """One episode, which `RL4SysAgent.request_for_action` starts. Its steps are sent in segments while the episode runs.

    `version`, `actions` and the methods are for programs that were written for RL4Sys. There a trajectory is a list of actions,
    which is sent as a whole after its end.

    Attributes:
        episode_id: A random 64-bit number that identifies the episode.
        completed: True after `mark_end_of_trajectory`. The next request then starts another trajectory.
    """

    episodes: TrajectoryManager
    episode_id: int
    writer: SegmentWriter
    cap_left: int  # counts down from `max_traj_length`
    completed: bool = field(default=False, init=False)
    # All below is internal.
    closed: PendingEpisodeSegments = field(init=False)
    steps_before: int = field(default=0, init=False)  # steps of earlier segments
    last: RL4SysAction | None = field(default=None, init=False)
    marked: RL4SysAction | None = field(default=None, init=False)  # the action with which the episode was ended
    # chose the last action; with `swap: episode` it acts for the whole episode
    policy: Policy | None = field(default=None, init=False)
    # the agent's policy at that time: `policy` is valid while it is the same
    selected_under: Policy | None = field(default=None, init=False)
    state: Any = field(default=None, init=False)  # of a policy with extra columns, after the last added action
    cut_index: int = field(default=-2, init=False)  # of the last cut segment; nothing was cut so far
    has_credit: bool = field(default=False, init=False)  # the learner has permitted the steps of the open segment
    # not added so far, also those of the ended trajectory that this one follows
    requested: RequestedActions = field(default_factory=RequestedActions, init=False)
    first: RL4SysAction | None = field(default=None, init=False)  # the first action that was requested for this trajectory itself

    def __post_init__(self) -> None:
        self.closed = PendingEpisodeSegments(self.episode_id)

    def bootstrap(self, observation: Tree, mask: Mask) -> tuple[Tree, Mask]:
        """Return the observation and mask of the first requested action that was not added; the arguments if there is none.

        The learner bootstraps from them.
        """
        waiting = next((action for action in self.requested if action.writer is None), None)
        return (observation, mask) if waiting is None else (waiting.obs, waiting.mask)

    @property
    def steps(self) -> int:
        """The number of actions added to this trajectory, including those already sent."""
        return self.steps_before + self.writer.steps

    def __len__(self) -> int:
        return self.steps

    @property
    def version(self) -> int:
        """The version of the policy that chose the last added action; before that, of the agent's current policy.

        Each action also has its own version (`RL4SysAction.version`).
        """
        return self.last.version if self.last is not None else self.episodes.policy_version

    @property
    def actions(self) -> list[RL4SysAction]:
        """The actions of this trajectory that were not queued for sending so far, oldest first, as a new list.

        The list has the actions of the newest segment, and the actions of earlier segments that wait for rewards. ``len(traj)``
        counts all actions. Adding to the list or removing from it has no effect on the trajectory.

        The last action is the object that `request_for_action` returned. The others are copies of what was recorded: `act` is
        then the action to train on, for a Box before clipping or squashing. A reward can be set through a copy, but the
        original object does not show that reward.
        """
        return self.episodes.actions(self)

    def get_actions(self) -> list[RL4SysAction]:
        """Return `actions`: the actions that were not queued for sending so far, oldest first."""
        return self.actions

    def add_action(self, action: RL4SysAction) -> None:
        """Store an action as the next step, as `RL4SysAgent.add_to_trajectory` does.

        Raises:
            ActionError: If the action is of another agent or already stored, or, with ``overflow: wait``, comes too late.
        """
        self.episodes.add(self, action)

    def is_empty(self) -> bool:
        """Return True if no action was added so far."""
        return not self.steps

    def is_valid(self) -> bool:
        """Return False if steps of this trajectory are missing in the data for the learner.

        A step is missing if its reward did not come in time, if no policy chose its action, if it was requested and not added,
        or if `clear` discarded it between others. In RL4Sys, actions of different policy versions make a trajectory invalid
        too.
        """
        return not self.closed.lost

    def is_completed(self) -> bool:
        """Return `completed`: True if the host has ended the episode."""
        return self.completed

    def mark_completed(self) -> None:
        """End the episode in a terminal state, and send its last steps, as `RL4SysAgent.mark_end_of_trajectory` does.

        Raises:
            RewardError: If a step has no reward. Only with ``overflow: wait``.
        """
        self.episodes.end(self)

    def clear(self) -> None:
        """Discard the newest steps, those in the unfinished segment. The episode goes on.

        ``cleared_steps`` in `RL4SysAgent.stats` counts them. Steps in finished segments are on their way to the learner and are
        not discarded. After the end of the episode, this method does nothing.
        """
        self.episodes.discard_open_segment(self)


class TrajectoryManager:
    """The manager of one agent's trajectories, which begins and ends them, adds steps, and cuts them into segments."""

    def __init__(self, parts: AgentComponents, spec: PolicySpec, inputs: InputValidator, rollout: int) -> None:
        config = parts.config
        self.owner = parts.owner
        self.use(spec, inputs, rollout)
        self._parts, self._pending, self._counters = parts, parts.pending, parts.counters
        self._stores, self._explores = config.submits, config.explore
        # An embedded host must not fail because of late rewards, and an evaluation not because it has none.
        self._lenient = config.overflow == "drop_oldest" or not config.explore
        self._max_steps = config.max_traj_length
        self._ids = random.Random()

    def use(self, spec: PolicySpec, inputs: InputValidator, rollout: int) -> None:
        """From now on, store steps of the policy that `spec` describes, in segments of at most `rollout` steps."""
        self._spec, self.inputs, self.rollout = spec, inputs, rollout

    def new_trajectory(self, ended: RL4SysTrajectory | None = None) -> RL4SysTrajectory:
        """Return a new trajectory. The actions that were requested for `ended` after its last step belong to the new one."""
        traj = RL4SysTrajectory(self, self._ids.getrandbits(64), self._new_writer(self.rollout, 0), self._max_steps)
        if ended is not None and ended.requested and (ended.requested.newest is None or ended.requested.newest.completed):
            traj.requested = ended.requested
            traj.requested.newest = traj
        return traj

    def _following(self, traj: RL4SysTrajectory, action: RL4SysAction | None) -> RL4SysTrajectory | None:
        """Return the running trajectory after the ended `traj` to which `action` belongs; None if there is none."""
        if action is None or not self._lenient:
            return None
        newest = traj.requested.newest
        running = newest is not None and not newest.completed
        if action.writer is None:
            return None if action not in traj.requested else newest if running else self.new_trajectory(traj)
        belongs = running and newest is not None and (action.writer is newest.writer or action.writer in newest.closed.writers)
        return newest if belongs else None

    def _begun(self, traj: RL4SysTrajectory) -> RL4SysTrajectory:
        """Return the running episode if one has begun since `traj` ended and got no request so far; otherwise `traj`."""
        newest = traj.requested.newest
        if newest is None or newest.completed or newest.first is not None:
            return traj
        self.end_done([newest])
        return newest

    def note_request(self, traj: RL4SysTrajectory, action: RL4SysAction) -> None:
        """Record that `action` was requested for `traj`, to notice if the host never adds it."""
        if traj.first is None:
            traj.first = action
        if len(traj.requested) >= MAX_REQUESTED and len(traj.requested) % MAX_REQUESTED == 0:
            self._forget_requests(traj)
        traj.requested.append(action)

    def _forget_requests(self, traj: RL4SysTrajectory) -> None:
        """Forget older requested actions to which the host has no reference, so that it can never add them."""
        actions = list(traj.requested)
        # Three references are not the host's: the list, the deque, and the argument of the call.
        held = [sys.getrefcount(actions[i]) > 3 + (actions[i] is traj.first) for i in range(len(actions))]
        newer = len(actions) - MAX_REQUESTED // 2
        kept = [action for i, action in enumerate(actions) if not i or i >= newer or held[i] or held[i - 1]]
        traj.requested.clear()
        traj.requested.extend(kept)

    def running(
        self,
        trajs: Sequence[RL4SysTrajectory | None],
        observations: Sequence[Tree],
        masks: Sequence[Mask],
        generation: int,
    ) -> list[RL4SysTrajectory]:
        """Prepare trajectories for their next step, by a policy of `generation`. Replace ended trajectories by new ones."""
        running = []
        for i, traj in enumerate(trajs):
            if traj is not None and traj.completed:
                traj = self._begun(traj)
            if traj is None or traj.completed:
                traj = self.new_trajectory(traj)
            else:
                writer = traj.writer
                steps = writer.steps
                if steps and (steps >= writer.limit or writer.generation != generation):
                    self.cut(traj, *traj.bootstrap(observations[i], masks[i]))
            running.append(traj)
        return running

    def end_done(self, trajs: Iterable[RL4SysTrajectory | None]) -> None:
        """End the trajectories whose last action has ``done`` set to True by the host."""
        for traj in trajs:
            if traj is not None and traj.last is not None and traj.last.done and not traj.completed:
                self.end(traj, traj.last)

    def cut(self, traj: RL4SysTrajectory, observation: Tree, mask: Mask, *, follows: bool = True) -> SegmentWriter:
        """Close the trajectory's segment, and return the next. `follows` is False if steps are missing between them."""
        writer = traj.writer
        left = traj.cap_left - writer.steps
        capped = left <= 0
        if capped:
            left = self._max_steps
        after = self._new_writer(min(self.rollout, left), writer.segment_index + (1 if follows else 2))
        writer.close(observation, mask)
        # A signal handler of the host can raise in any call. The trajectory changes between two calls, so that it keeps the steps
        # or passes them on, and never does both.
        writer.capped = capped
        traj.steps_before += writer.steps
        traj.cap_left, traj.writer, traj.cut_index = left, after, writer.segment_index
        traj.has_credit, traj.selected_under = False, None
        self._pending.close(traj.closed, writer)
        return after

    def actions(self, traj: RL4SysTrajectory) -> list[RL4SysAction]:
        """Return the actions of a trajectory, as described in `RL4SysTrajectory.actions`."""
        writers = [*traj.closed.writers]
        if traj.writer not in writers:
            writers.append(traj.writer)
        known = (traj.last, traj.marked)
        for writer in writers:
            writer.pending = self._pending
        return [action for writer in writers for action in writer.recorded_actions(self.owner, known)]

    def discard_open_segment(self, traj: RL4SysTrajectory) -> None:
        """Discard the trajectory's newest steps, as `RL4SysTrajectory.clear` describes."""
        writer = traj.writer
        if traj.completed or not writer.steps:
            return
        self._counters.add("cleared_steps", writer.steps)
        index = writer.segment_index
        traj.writer = self._new_writer(writer.limit, index + 1 if index else 0)  # a gap, unless the episode begins here
        traj.last = None
        if index:
            traj.closed.lost = True

    @property
    def policy_version(self) -> int:
        """The version of the agent's current policy."""
        return self._parts.policy.version

    def _new_writer(self, max_steps: int, segment_index: int) -> SegmentWriter:
        spec = self._spec
        if spec.columns:
            return ExtraColumnSegmentWriter(spec, max_steps, segment_index)
        return SegmentWriter(spec.observation_space, spec.action_space, max_steps, segment_index)

    def add(self, traj: RL4SysTrajectory, action: RL4SysAction) -> None:
        """Store an action as the next step of `traj`, with the checks that the fast path of the agent leaves out."""
        if action.stamp.owner is not self.owner or traj.episodes.owner is not self.owner:
            raise ActionError("the action and the trajectory must come from this agent")
        if action.writer is not None:
            if self._lenient and (action.done or action is traj.marked):
                return  # a queue of late rewards contains the action that ended the episode
            raise ActionError("this action is stored already")
        if traj.episodes is not self:
            self._counters.add("forked_trajectories")
            return  # the trajectory belongs to the parent of this forked process
        if traj.completed:
            self._add_late(traj, action)
            return
        if self._stores and not self._skip_to(traj, action):
            self._add_late(traj, action)
            return
        traj.last = action
        if isinstance(action, ExtraColumnAction):
            traj.state = action.state
        if not self._stores:
            traj.requested.clear()
            return
        if action.raw is None:  # no policy chose it: it is not stored, so the next step does not follow the last stored one
            self._counters.add("unrecorded_actions")
            self._leave_gap(traj, action)
            traj.requested.popleft()
            return
        self._note_source(traj.closed, action)
        writer = traj.writer
        if not writer.limit:  # the episode began before the first policy arrived, so its return is unknown
            writer = traj.writer = self._new_writer(min(self.rollout, traj.cap_left), 0)
            traj.closed.lost = True
        # A new segment begins if this one is full, or if the generation, the source or the policy's state differs.
        if writer.steps and (writer.steps >= writer.limit or not writer.continues(action)):
            writer = self.cut(traj, action.obs, action.mask)
        writer.write(action)
        traj.requested.popleft()

    def _skip_to(self, traj: RL4SysTrajectory, action: RL4SysAction) -> bool:
        """Remove the actions before `action` from ``traj.requested``, and note the gap. Return False if it is not there."""
        requested = traj.requested
        while requested and requested[0].writer is not None:  # a signal handler has raised after the write
            requested.popleft()
        if action not in requested:
            return False
        if requested[0] is not action:
            begun = traj.steps or traj.first is None or traj.first not in requested
            if begun or requested.index(cast(RL4SysAction, traj.first)) < requested.index(action):
                self._leave_gap(traj, requested[0])
            while requested[0] is not action:
                requested.popleft()
                self._counters.add("skipped_actions")
        return True

    def _note_source(self, closed: PendingEpisodeSegments, action: RL4SysAction) -> None:
        if action.source:
            self._counters.add("overridden_steps")
            closed.overridden = True

    def _leave_gap(self, traj: RL4SysTrajectory, first: RL4SysAction) -> None:
        """Mark that the next step does not follow the last one. `first` is the first action that is not recorded."""
        traj.closed.lost = True
        if traj.writer.steps:
            self.cut(traj, first.obs, first.mask, follows=False)
        elif traj.writer.segment_index == traj.cut_index + 1:  # the segment was cut between the two steps
            traj.writer.segment_index += 1

    def _refuse_late(self, problem: str, remedy: str) -> None:
        if not self._lenient:
            raise ActionError(f"{problem}; {remedy}")
        if not self._counters.get("late_actions_dropped"):
            log.warning("%s and is dropped; the counter is late_actions_dropped", problem)
        self._counters.add("late_actions_dropped")

    def _add_late(self, traj: RL4SysTrajectory, action: RL4SysAction) -> None:
        """Store an action that does not follow the last step of `traj`, in the episode to which it belongs, or drop it."""
        closed = self._pending.join(action, self._parts.longest_segment) if self._lenient else None
        following = self._following(traj, action) if closed is None and traj.completed else None
        if closed is not None:
            traj.steps_before += closed is traj.closed
            self._note_source(closed, action)
        elif following is not None:
            self.add(following, action)
        elif traj.completed:
            problem = "an action was added after the end of its trajectory"
            self._refuse_late(problem, "this trajectory has ended; request_for_action starts another")
        else:
            self._refuse_late("an action was added after a later one", "add actions in the order in which they were requested")

    def _expect_late(self, traj: RL4SysTrajectory, last: RL4SysAction) -> None:
        """Keep the segment open for the actions that were requested before `last`, until the reward of `last` is set."""
        requested = list(traj.requested)
        if last.raw is None or last not in requested or not traj.writer.limit:
            return
        end = requested.index(last)
        first = requested.index(traj.first) if traj.first in requested[: end + 1] else 0
        late = [action for action in requested[first : end + 1] if action.writer is None]
        if len(late) > 1:
            traj.closed.late, traj.closed.held = deque(late), traj.writer
            self.cut(traj, late[0].obs, late[0].mask)
            for _ in requested[:end]:
                traj.requested.popleft()

    def _final_observation(self, final_obs: object, final_mask: object) -> tuple[Tree | None, Mask]:
        """Return the observation after the last step of a truncated episode, and its mask; None if the host gave none."""
        try:
            if final_obs is not None:
                return self.inputs.observation(final_obs)[0], self.inputs.mask(final_mask)
            if self._explores:
                raise ObservationError("truncated=True needs final_obs, the observation after the last action")
        except BadInput as exc:
            self.owner.refuse(exc)
        return None, None

    def _check_rewards(self, writers: Sequence[SegmentWriter]) -> None:
        """Raise RewardError if one of the last segments lacks a reward. If rewards may come late, count the episode instead."""
        for part in writers:
            if not part.missing:
                continue
            step = f"step {part.first_missing()} of segment {part.segment_index}"
            if not self._lenient:
                raise RewardError(f"{step} has no reward; call update_reward before mark_end_of_trajectory")
            if not self._counters.get("ended_without_rewards"):
                log.warning("an episode ended and %s has no reward: the segment waits for it (ended_without_rewards)", step)
            self._counters.add("ended_without_rewards")
            return

    def end(
        self,
        traj: RL4SysTrajectory,
        action: RL4SysAction | None = None,
        truncated: bool = False,
        final_obs: object = None,
        final_mask: object = None,
    ) -> None:
        """End an episode, as described in `RL4SysAgent.mark_end_of_trajectory`."""
        if not isinstance(traj, RL4SysTrajectory):
            raise ActionError(f"there is no trajectory to end: expected one from request_for_action, not {traj!r:.60}")
        if traj.episodes.owner is not self.owner:
            raise ActionError("this trajectory belongs to another agent")
        if traj.episodes is not self:
            return
        if traj.completed:
            following = self._following(traj, action)
            if following is not None:
                self.end(following, action, truncated, final_obs, final_mask)
            return
        final, allowed = self._final_observation(final_obs, final_mask) if truncated and self._stores else (None, None)
        if action is not None and action.writer is None and action is not traj.last:
            if self._lenient and self._stores:
                self._expect_late(traj, action)
            self.add(traj, action)
        writer = traj.writer
        if self._stores and traj.steps:
            self._check_rewards([*traj.closed.writers, writer])
            if writer.steps:  # an empty one follows an automatic cut after the last step: the segment before it was the last
                self._close_last(traj, action, truncated, final, allowed)
        if traj.closed.overridden:
            self._counters.add("overridden_episodes")
        traj.completed = True
        traj.marked = action
        traj.selected_under = traj.policy = None
        requested = traj.requested
        if action is None and requested:  # the episode ended after these requests, so they belong to no later one
            self._counters.add("skipped_actions", sum(1 for left in requested if left.writer is None))
            requested.clear()
        if not requested:
            requested.newest = None
        if writer.terminated or writer.truncated:
            self._pending.close(traj.closed, writer)

    def _close_last(
        self,
        traj: RL4SysTrajectory,
        action: RL4SysAction | None,
        truncated: bool,
        final: Tree | None,
        allowed: Mask,
    ) -> None:
        """Close the last segment of an episode. With `truncated`, the last step's observation can stand in for `final`."""
        writer = traj.writer
        after, its_mask = traj.bootstrap(None, None)
        if action is not traj.last and (action is not None or after is not None):
            # The last steps are not recorded, or the action is of another episode: no terminal state is known.
            truncated = traj.closed.lost = True
            if after is not None:
                final, allowed = after, its_mask
        if action is not None:
            action.done = True
        writer.terminated, writer.truncated, writer.episode_length = not truncated, truncated, traj.steps
        if truncated and final is None:
            final, allowed = writer.last_observation, writer.last_mask
        writer.close(final, allowed)
