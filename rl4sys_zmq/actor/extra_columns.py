"""Actions and segments of policies that record extra columns with each step (`ExtraColumnPolicy`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.action import AgentIdentity, RL4SysAction, new_action
from rl4sys_zmq.actor.segments import SegmentWriter
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies import ExtraColumnPolicy, Policy
from rl4sys_zmq.policies.base import Mask
from rl4sys_zmq.values import PolicySpec, Segment
from rl4sys_zmq.values.observations import leaves_of
from rl4sys_zmq.values.trees import Tree

if TYPE_CHECKING:
    from rl4sys_zmq.actor.components import ThreadState
    from rl4sys_zmq.actor.inputs import BatchInputs


class ExtraColumnAction(RL4SysAction):
    """An action of a policy with extra columns."""

    __slots__ = ("before", "columns", "state")

    columns: Mapping[str, NDArray[Any]]
    before: Any  # state of the policy before the step, None at the start of an episode
    state: Any  # state of the policy after the step

    @property
    def data(self) -> dict[str, Any]:
        """The log-probability ``logp_a`` and the extra columns, as a new dict."""
        return {**super().data, **self.columns}


class ExtraColumnActionSelector:
    """The object that chooses actions by a policy with extra columns, and checks the columns. One object serves all versions."""

    def __init__(self, spec: PolicySpec, explore: bool) -> None:
        self._kind = spec.kind
        self._explore = explore
        self._actions = leaves_of(spec.action_space, "actions")
        self._wanted = {column.name: (column.shape, np.dtype(column.dtype)) for column in spec.columns}

    def choose(self, thread: ThreadState, state: Any, observation: Tree, mask: Mask) -> ExtraColumnAction:
        raw, act, log_prob, columns, after = thread.step(observation, mask, state)
        action = new_action(ExtraColumnAction, observation, raw, act, log_prob, thread.stamp, mask)
        action.columns, action.before, action.state = self._checked(columns, ()), state, after
        return action

    def choose_batch(
        self, policy: Policy, thread: ThreadState, states: Sequence[Any], batch: BatchInputs
    ) -> tuple[list[RL4SysAction], NDArray[np.float32]]:
        step_batch = cast(ExtraColumnPolicy, policy).step_batch
        raw, act, log_probs, columns, after = step_batch(batch.observations, batch.masks, thread.sampler, self._explore, states)
        raws, acts, checked = self._actions.rows(raw), self._actions.rows(act), self._checked(columns, (len(states),))
        actions: list[RL4SysAction] = []
        for n, observation in enumerate(batch.each):
            log_prob = float(log_probs[n])
            action = new_action(ExtraColumnAction, observation, raws[n], acts[n], log_prob, thread.stamp, batch.rows[n])
            action.columns = {name: column[n] for name, column in checked.items()}
            action.before, action.state = states[n], after[n]
            actions.append(action)
        return actions, np.asarray(log_probs)

    def _checked(self, columns: Mapping[str, Any], rows: tuple[int, ...]) -> dict[str, NDArray[Any]]:
        """Return the columns from a policy, after a check of their names, shapes ``[*rows, *column]`` and dtypes."""
        if columns.keys() != self._wanted.keys():
            problem = f"returns the columns {sorted(columns)}; its spec has {sorted(self._wanted)}"
            raise ConfigError(f"a policy of kind {self._kind!r} {problem}", key="columns")
        out = {}
        for name, (shape, dtype) in self._wanted.items():
            value = np.asarray(columns[name])
            if value.shape != rows + shape or not (value.dtype == dtype or np.can_cast(value.dtype, dtype, "same_kind")):
                problem = f"is {value.dtype} {value.shape}; expected {dtype} {rows + shape}"
                raise ConfigError(f"column {name!r} of a policy of kind {self._kind!r} {problem}", key="columns")
            out[name] = value
        return out


class ExtraColumnSegmentWriter(SegmentWriter):
    """A `SegmentWriter` for a policy with extra columns."""

    __slots__ = ("_extras", "_initial", "_specs", "state")

    action_type = ExtraColumnAction

    def __init__(self, spec: PolicySpec, max_steps: int, segment_index: int) -> None:
        super().__init__(spec.observation_space, spec.action_space, max_steps, segment_index)
        self._specs = spec.columns
        self._extras = {c.name: np.empty((self.rows, *c.shape), dtype=c.dtype) for c in self._specs if c.per == "step"}
        self._initial: dict[str, NDArray[Any]] = {}
        self.state: Any = None  # state of the policy after the last step

    def write(self, step: RL4SysAction) -> None:
        assert isinstance(step, ExtraColumnAction)
        row, columns = self.steps, step.columns
        super().write(step)
        self.stamp = None
        for name, column in self._extras.items():
            column[row] = columns[name]
        if not row:
            self._initial = {c.name: np.array(columns[c.name], dtype=c.dtype) for c in self._specs if c.per == "segment"}
        self.state = step.state

    def continues(self, step: RL4SysAction) -> bool:
        """Return True if the policy chose `step` from the state in which the last step of this segment left it."""
        return super().continues(step) and isinstance(step, ExtraColumnAction) and step.before is self.state

    def recorded_action(self, row: int, owner: AgentIdentity) -> RL4SysAction:
        """Return the step in a row as an action with copied values. The action has no policy state, because no row has one."""
        action = super().recorded_action(row, owner)
        assert isinstance(action, ExtraColumnAction)
        action.columns = {name: np.array(column[row]) for name, column in self._extras.items()}
        action.before = action.state = None
        return action

    def build(self, episode_id: int, episode_return: float | None) -> Segment:
        extras = {name: column[: self.steps] for name, column in self._extras.items()}
        return replace(super().build(episode_id, episode_return), extras=extras, initial=self._initial)

    def _grow(self) -> None:
        super()._grow()
        self._extras = {name: np.concatenate([column, np.empty_like(column)]) for name, column in self._extras.items()}
