"""Actions of policies with extra columns (`rl4sys_zmq.policies.ColumnPolicy`), and the segments that store their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.action import RL4SysAction
from rl4sys_zmq.actor.segments import SegmentWriter, Step
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies import ColumnPolicy, Policy
from rl4sys_zmq.values import ColumnSpec, ObservationSpace, PolicySpec, Segment, Space
from rl4sys_zmq.values.observations import leaves_of
from rl4sys_zmq.values.trees import Tree

if TYPE_CHECKING:
    from rl4sys_zmq.actor.context import ThreadState

__all__ = ["ColumnWriter", "RecordedAction", "StepRecorder"]


class RecordedAction(RL4SysAction):
    """An action of a policy with extra columns.

    Attributes:
        columns: The values of the extra columns, by name.
        before: The state of the policy before the step, None at the start of an episode.
        state: The state after it.
    """

    __slots__ = ("before", "columns", "state")

    columns: Mapping[str, NDArray[Any]]
    before: Any
    state: Any


class StepRecorder:
    """The caller of policies with extra columns, for one spec. It checks the values that they return."""

    def __init__(self, spec: PolicySpec, explore: bool) -> None:
        self._kind = spec.kind
        self._explore = explore
        self._leaves = leaves_of(spec.observation_space)
        self._wanted = {column.name: (column.shape, np.dtype(column.dtype)) for column in spec.columns}

    def choose(
        self, policy: Policy, thread: ThreadState, state: Any, observation: Tree, mask: NDArray[np.bool_] | None
    ) -> RecordedAction:
        """Choose an action from a state.

        Args:
            policy: The policy. `thread` has taken it.
            thread: The state of this host thread.
            state: The state of the policy.
            observation: ``[*obs]``, checked.
            mask: ``[n]`` or None, checked.

        Raises:
            ConfigError: If the policy returns other columns than its spec has.
        """
        parts = cast(ColumnPolicy, policy).step(observation, mask, thread.sampler, self._explore, state)
        raw, act, log_prob, columns, after = parts
        return _action(observation, (raw, act, log_prob, self._checked(columns, ()), after), thread, mask, state)

    def choose_batch(
        self,
        policy: Policy,
        thread: ThreadState,
        states: Sequence[Any],
        observations: Tree,
        masks: NDArray[np.bool_] | None,
    ) -> list[RecordedAction]:
        """Choose ``N`` actions, each from a state, as `choose` does.

        Args:
            policy: The policy. `thread` has taken it.
            thread: The state of this host thread.
            states: ``N`` states.
            observations: ``[N, *obs]``, checked.
            masks: ``[N, n]`` or None, checked.

        Raises:
            ConfigError: If the policy returns other columns than its spec has.
        """
        parts = cast(ColumnPolicy, policy).step_batch(observations, masks, thread.sampler, self._explore, states)
        raws, acts, log_probs, columns, after = parts
        found = self._checked(columns, (len(states),))
        return [
            _action(
                observation,
                (raws[n], acts[n], float(log_probs[n]), {name: column[n] for name, column in found.items()}, after[n]),
                thread,
                None if masks is None else masks[n],
                states[n],
            )
            for n, observation in enumerate(self._leaves.rows(observations))
        ]

    def _checked(self, columns: Mapping[str, Any], rows: tuple[int, ...]) -> dict[str, NDArray[Any]]:
        """Return the values of all columns as arrays, ``[*rows, *row]`` each."""
        if columns.keys() != self._wanted.keys():
            found, wanted = sorted(columns), sorted(self._wanted)
            raise ConfigError(
                f"a policy of kind {self._kind!r} returns the columns {found}; its spec has {wanted}", key="columns"
            )
        out = {}
        for name, (shape, dtype) in self._wanted.items():
            value = np.asarray(columns[name])
            if value.shape != rows + shape or not np.can_cast(value.dtype, dtype, "same_kind"):
                problem = f"is {value.dtype} {value.shape}; expected {dtype} {rows + shape}"
                raise ConfigError(f"column {name!r} of a policy of kind {self._kind!r} {problem}", key="columns")
            out[name] = value
        return out


def _action(
    observation: Tree,
    choice: tuple[Any, Any, float, Mapping[str, NDArray[Any]], Any],
    thread: ThreadState,
    mask: NDArray[np.bool_] | None,
    before: Any,
) -> RecordedAction:
    action = RecordedAction()
    action.obs = observation
    action.raw, action.act, action.log_prob, action.columns, action.state = choice
    action.before = before
    action.stamp = thread.stamp
    action.mask = mask
    action.known_reward = action.writer = None
    action.done = False
    return action


class ColumnWriter(SegmentWriter):
    """The columns of a growing segment, with the extra columns of the policy.

    Its `stamp` stays None, so that each action is added by `Episodes.add`, which keeps the trajectory's state.

    Attributes:
        state: The state of the policy after the last row.
    """

    __slots__ = ("_extras", "_initial", "_specs", "state")

    def __init__(
        self,
        observation_space: ObservationSpace,
        action_space: Space,
        max_steps: int,
        segment_index: int,
        columns: Sequence[ColumnSpec],
    ) -> None:
        super().__init__(observation_space, action_space, max_steps, segment_index)
        self._specs = columns
        self._extras = {c.name: np.empty((self.rows, *c.shape), dtype=c.dtype) for c in columns if c.per == "step"}
        self._initial: dict[str, NDArray[Any]] = {}
        self.state: Any = None

    def write(self, step: Step) -> None:
        """Write the next row."""
        assert isinstance(step, RecordedAction)
        row, columns = self.steps, step.columns
        super().write(step)
        self.stamp = None
        for name, column in self._extras.items():
            column[row] = columns[name]
        if not row:
            self._initial = {c.name: np.array(columns[c.name], dtype=c.dtype) for c in self._specs if c.per == "segment"}
        self.state = step.state

    def continues(self, step: Step) -> bool:
        """Return True if a step was chosen from the state after the last row."""
        return isinstance(step, RecordedAction) and step.before is self.state

    def build(self, episode_id: int, episode_return: float | None) -> Segment:
        """Return the finished segment. It takes over the columns."""
        extras = {name: column[: self.steps] for name, column in self._extras.items()}
        return replace(super().build(episode_id, episode_return), extras=extras, initial=self._initial)

    def _grow(self) -> None:
        super()._grow()
        self._extras = {name: np.concatenate([column, np.empty_like(column)]) for name, column in self._extras.items()}
