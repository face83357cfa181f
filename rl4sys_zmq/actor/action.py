"""`RL4SysAction`, the action that a request returns to the host: one step, with its reward."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.slots import ActionSlots
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ActionError, BadInput, RewardError
from rl4sys_zmq.immutable import immutable_object
from rl4sys_zmq.policies import Policy, RandomSource
from rl4sys_zmq.policies.base import Mask
from rl4sys_zmq.values.trees import Tree, flatten

if TYPE_CHECKING:
    from rl4sys_zmq.actor.inputs import ActionOverrider
    from rl4sys_zmq.actor.segments import SegmentWriter

_INT64 = np.int64
A = TypeVar("A", bound="RL4SysAction")
LARGEST = float(np.finfo(np.float32).max)
LEAST = -LARGEST


class AgentIdentity:
    """A marker of the agent to which actions and trajectories belong. A forked child's agent keeps its parent's marker."""

    def __init__(self, counters: Counters, *, drops_bad_input: bool) -> None:
        self._counters, self._drops_bad_input = counters, drops_bad_input
        self.overrider: ActionOverrider | None = None  # set before the agent chooses its first action

    def refuse(self, error: BadInput) -> None:
        """Raise `error`, or with ``on_bad_input: drop`` count it as ``bad_input.ERROR``."""
        if not self._drops_bad_input:
            raise error
        self._counters.add(f"bad_input.{type(error).__name__}")


@immutable_object
class PolicyStamp:
    """The policy that chose an action, by agent, generation and version. All actions of one thread and version share it.

    Attributes:
        policy: A function that returns the policy, or None if the policy no longer exists or was never in this process. A
            strong reference would keep the weights of a version in memory as long as the host keeps one of its actions.
    """

    generation: int
    version: int
    owner: AgentIdentity
    source: str = ""  # source of an overridden action, as in `Segment.source`; empty if the policy chose the action
    policy: Callable[[], Policy | None] = field(default=lambda: None, repr=False)
    sampler: RandomSource | None = None  # random numbers of the thread; None if the policy was never here


class RL4SysAction(ActionSlots):
    """One action for the host and its step in the episode. `RL4SysAgent.request_for_action` returns this object.

    `rew`, `data`, `set_done`, `is_done` and `is_reward_set` are for programs that were written for RL4Sys.

    Attributes:
        obs: A checked copy of the observation for which the action was chosen: an array, or a tree of arrays.
        log_prob: The log-probability of the raw action (before clipping or squashing) under the policy that chose it.
        mask: A copy of the mask ``[n]`` bool, True where an action was allowed. None if the host gave no mask.
        done: True if the episode reached a terminal state with this action. Set by the host. The next `request_for_action`
            then ends the trajectory.
    """

    __slots__ = ()

    # No constructor: the call would cost as much time as setting all attributes. `new_action` and `new_actions` create actions.
    obs: Tree
    log_prob: float
    mask: Mask
    done: bool
    # All below is internal.
    raw: Any  # action to train on (before clipping or squashing), None if no policy chose the action
    env_act: Any  # `act`, which `override` replaces
    stamp: PolicyStamp
    known_reward: float | None
    writer: SegmentWriter | None  # has a copy of the step; None before the step is added to a trajectory
    row: int  # of the step in `writer`; unset before the step is added

    @property
    def act(self) -> Any:
        """The action for the environment: a numpy integer for Discrete, a read-only array of the space's shape and dtype for
        Box.

        The array has a leading axis of 1 if the observation had such an axis. To do another action, call `override`.
        """
        return self.env_act

    @act.setter
    def act(self, act: object) -> None:
        raise ActionError("act cannot be assigned, because the policy's action would be recorded; call action.override(act)")

    @property
    def source(self) -> str:
        """The source that was given to `override`; empty if the action was not overridden."""
        return self.stamp.source

    def override(self, act: object, source: str = "human") -> None:
        """Record that the host does another action than the policy's. Call this before the action is added to a trajectory.

        The attribute `act` then is the host's action. The learner gets this action with its log-probability under the policy,
        if the policy is in this process and can compute that. An off-policy algorithm trains on the action. Steps of one source
        are sent in separate segments, which an on-policy algorithm leaves out. The return of the episode is not reported,
        because it is not the policy's. A fallback action, which no policy chose, stays unrecorded.

        Args:
            act: The action that is done instead: an element of the action space that the mask allows, or a value that converts
                to such an element.
            source: Who or what chose it: 1 to 32 letters, digits, dots, hyphens and underscores, such as ``safety``.

        Raises:
            ActionError: If `act` or `source` is invalid, or the action is already stored. With ``on_bad_input: drop``, the
                error is counted instead, and an action that is not stored so far stays unrecorded.
        """
        owner = self.stamp.owner
        assert owner.overrider is not None
        try:
            done = owner.overrider.override(self, act, source, getattr(self, "before", None))
        except ActionError as exc:
            owner.refuse(exc)
            if self.writer is None:  # unrecorded; another stamp, so that `add_to_trajectory` looks at it
                self.raw, self.stamp = None, replace(self.stamp)
            return
        before = self.env_act
        self.env_act = done[None] if isinstance(before, np.ndarray) and np.ndim(before) > np.ndim(done) else done
        lock(self.env_act)

    @property
    def generation(self) -> int:
        """The generation of the policy that chose the action."""
        return self.stamp.generation

    @property
    def version(self) -> int:
        """The version of the policy that chose the action."""
        return self.stamp.version

    @property
    def reward(self) -> float | None:
        """The reward, or None if the host has not set it so far. Setting it has the effect of `update_reward`."""
        return self.known_reward

    @reward.setter
    def reward(self, reward: object) -> None:
        self.update_reward(reward)

    rew = reward

    @property
    def data(self) -> dict[str, Any]:
        """The values that the policy recorded, as a new dict: the log-probability ``logp_a`` and the extra columns.

        RL4Sys's dict also has ``v``, the critic's value. Here only the learner has a critic.
        """
        return {"logp_a": self.log_prob}

    def __copy__(self) -> RL4SysAction:
        return self._twin(lambda value: value)

    def __deepcopy__(self, memo: dict[int, Any]) -> RL4SysAction:
        return self._twin(lambda value: copy.deepcopy(value, memo))

    def _twin(self, copied: Callable[[Any], Any]) -> RL4SysAction:
        twin = type(self)()
        for kind in type(self).__mro__:
            for name in getattr(kind, "__slots__", ()):
                if hasattr(self, name):
                    setattr(twin, name, copied(getattr(self, name)))
        return twin

    def set_done(self, done: bool) -> None:
        """Set `done`: True if the episode reached a terminal state with this action."""
        self.done = done

    def is_done(self) -> bool:
        """Return `done`: True if the episode reached a terminal state with this action."""
        return self.done

    def is_reward_set(self) -> bool:
        """Return True if the host has set the reward."""
        return self.known_reward is not None

    @property
    def stored(self) -> bool:
        """True if the action is recorded as a step of a trajectory. An action that no policy chose is never recorded."""
        return self.writer is not None

    def update_reward(self, reward: object) -> None:
        """Set the reward, before or after the action is added to a trajectory. A later call replaces the reward.

        With ``on_bad_input: drop``, an error is counted and the reward stays as it was.

        Raises:
            RewardError: If the reward is not a single number that is finite in float32, or if the action's segment has already
                been queued for sending or was dropped.
        """
        try:
            value = reward if type(reward) is float and LEAST <= reward <= LARGEST else as_reward(reward)
            writer = self.writer
            if writer is not None:
                pending = writer.pending
                if pending is None:
                    writer.set_reward(self.row, value, self.known_reward is None)
                else:
                    pending.set_reward(writer, self.row, value)
            self.known_reward = value
        except RewardError as exc:
            self.stamp.owner.refuse(exc)

    _set_any_reward = update_reward


if hasattr(ActionSlots, "update_reward"):  # compiled code sets an ordinary reward, and calls `_set_any_reward` for any other
    del RL4SysAction.update_reward


def new_action(kind: type[A], observation: Tree, raw: Any, act: Any, log_prob: float, stamp: PolicyStamp, mask: Mask) -> A:
    """Create an action without a reward. `act` is for the environment. `raw` is trained on; None if no policy chose."""
    action = kind()
    action.obs = observation
    action.raw = raw
    action.env_act = act
    if type(act) is not _INT64 and raw is not None:  # a fallback action can be the host's own array
        lock(act)
    action.log_prob = log_prob
    action.stamp = stamp
    action.mask = mask
    action.known_reward = action.writer = None
    action.done = False
    return action


def add_leading_axis(action: RL4SysAction, leading: bool) -> None:
    """Add a leading axis of 1 to an array action for the environment, if `leading` is True."""
    if leading and isinstance(action.env_act, np.ndarray):
        action.env_act = action.env_act[None]


def lock(act: Tree) -> None:
    """Make the arrays of an action read-only, because a change in place would not be recorded."""
    for leaf in flatten(act)[0] if isinstance(act, dict | tuple) else (act,):
        if isinstance(leaf, np.ndarray):
            leaf.flags.writeable = False


def new_actions(
    observations: Iterable[Tree],
    raws: Iterable[Any],
    acts: Iterable[Any],
    log_probs: NDArray[np.float32],
    stamp: PolicyStamp,
    masks: Iterable[Mask],
) -> list[RL4SysAction]:
    """Create an `RL4SysAction` for each row of a batch."""
    # The code of `new_action` is repeated: a call for each row would take a tenth of the time of the request.
    actions = []
    for observation, raw, act, log_prob, mask in zip(observations, raws, acts, log_probs.tolist(), masks, strict=True):
        action = RL4SysAction()
        action.obs = observation
        action.raw = raw
        action.env_act = act
        if type(act) is not _INT64:
            lock(act)
        action.log_prob = log_prob
        action.stamp = stamp
        action.mask = mask
        action.known_reward = action.writer = None
        action.done = False
        actions.append(action)
    return actions


def as_reward(reward: object) -> float:
    """Return a reward as a float."""
    if isinstance(reward, float):
        reward = float(reward)  # numpy's float64 is one
    else:
        try:
            item = getattr(reward, "item", None)
            reward = float(item() if item is not None else reward)  # type: ignore[arg-type]
        except Exception as exc:  # also whatever a method of the host's object raises
            raise RewardError(f"a reward must be one number, not {reward!r:.80}") from exc
    if not LEAST <= reward <= LARGEST:
        raise RewardError(f"a reward must be finite in float32, not {reward}")
    return reward
