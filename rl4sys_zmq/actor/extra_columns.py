"""Actions and segments (runs of steps) of policies that record further values with each step (`ExtraColumnPolicy`).

The values are called extra columns. Such a policy can also carry a state from step to step, for example a recurrent state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.action import RL4SysAction, lock
from rl4sys_zmq.actor.segments import AgentIdentity, EpisodeStep, SegmentWriter
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies import ExtraColumnPolicy, Policy
from rl4sys_zmq.values import ColumnSpec, ObservationSpace, PolicySpec, Segment, Space
from rl4sys_zmq.values.observations import leaves_of
from rl4sys_zmq.values.trees import Tree

if TYPE_CHECKING:
    from rl4sys_zmq.actor.components import ThreadState


class ExtraColumnAction(RL4SysAction):
    """An action of a policy with extra columns (further values that the policy records with each step).

    Attributes:
        columns: The values of the extra columns for this step, by name.
        before: The state of the policy before the step, None at the start of an episode.
        state: The state of the policy after the step.
    """

    __slots__ = ("before", "columns", "state")

    columns: Mapping[str, NDArray[Any]]
    before: Any
    state: Any

    @property
    def data(self) -> dict[str, Any]:
        """A new dict with the log-probability ``logp_a`` and the extra columns (values that the policy recorded)."""
        return {**super().data, **self.columns}

    @property
    def _state_before(self) -> Any:
        return self.before


class ExtraColumnActionSelector:
    """The object that chooses actions by a policy with extra columns (further values that it records with each step).

    It calls the policy, and checks the columns that the policy returns. One object serves all versions of the policy.
    """

    def __init__(self, spec: PolicySpec, explore: bool) -> None:
        self._kind = spec.kind
        self._explore = explore
        self._leaves = leaves_of(spec.observation_space)
        self._actions = leaves_of(spec.action_space, "actions")
        self._wanted = {column.name: (column.shape, np.dtype(column.dtype)) for column in spec.columns}

    def choose(self, thread: ThreadState, state: Any, observation: Tree, mask: NDArray[np.bool_] | None) -> ExtraColumnAction:
        """Choose an action for one observation, with the policy in a given state.

        Args:
            thread: The data of this host thread. Call ``thread.take(policy)`` before: that policy chooses.
            state: The state of the policy after the previous step, None at the start of an episode.
            observation: ``[*obs]``, checked.
            mask: ``[n]`` or None, checked.

        Raises:
            ConfigError: If the columns that the policy returns differ from its spec in name, shape or dtype.
        """
        raw, act, log_prob, columns, after = thread.step(observation, mask, state)
        return _action(observation, (raw, act, log_prob, self._checked(columns, ()), after), thread, mask, state)

    def choose_batch(
        self,
        policy: Policy,
        thread: ThreadState,
        states: Sequence[Any],
        observations: Tree,
        masks: NDArray[np.bool_] | None,
    ) -> list[ExtraColumnAction]:
        """Choose an action for each of ``N`` observations, as `choose` does for one.

        Args:
            policy: The policy. Call ``thread.take(policy)`` before.
            thread: The data of this host thread, such as its random numbers.
            states: ``N`` states of the policy, one for each observation.
            observations: ``[N, *obs]``, checked.
            masks: ``[N, n]`` or None, checked.

        Raises:
            ConfigError: If the columns that the policy returns differ from its spec in name, shape or dtype.
        """
        parts = cast(ExtraColumnPolicy, policy).step_batch(observations, masks, thread.sampler, self._explore, states)
        log_probs, columns, after = parts[2:]
        raws, acts = (self._actions.rows(actions) for actions in parts[:2])
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
        """Check the extra columns (further values of each step) that a policy returned, and convert them to arrays.

        Args:
            columns: The values by name.
            rows: The leading shape of each value: ``(N,)`` for a batch, ``()`` for one step.

        Returns:
            An array ``[*rows, *row]`` for each column name, where ``row`` is the column's shape in the spec.

        Raises:
            ConfigError: If a name, a shape or a dtype differs from the spec.
        """
        if columns.keys() != self._wanted.keys():
            found, wanted = sorted(columns), sorted(self._wanted)
            raise ConfigError(
                f"a policy of kind {self._kind!r} returns the columns {found}; its spec has {wanted}", key="columns"
            )
        out = {}
        for name, (shape, dtype) in self._wanted.items():
            value = columns[name]
            if type(value) is np.ndarray and value.dtype == dtype and value.shape == rows + shape:
                out[name] = value
                continue
            value = np.asarray(value)
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
) -> ExtraColumnAction:
    action = ExtraColumnAction()
    action.obs = observation
    action.raw, action.env_act, action.log_prob, action.columns, action.state = choice
    lock(action.env_act)
    action.before = before
    action.stamp = thread.stamp
    action.mask = mask
    action.known_reward = action.writer = None
    action.done = False
    return action


class ExtraColumnSegmentWriter(SegmentWriter):
    """The columns of an unfinished segment (run of steps) of a policy that records further values (extra columns).

    `stamp` stays None. So `RL4SysAgent.add_to_trajectory` never uses its fast path, but calls `TrajectoryManager.add`, which
    records the state of the policy in the trajectory.

    Attributes:
        state: The state of the policy (such as a recurrent state) after the last step.
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

    def write(self, step: EpisodeStep) -> None:
        """Write one step as the next row of all columns."""
        assert isinstance(step, ExtraColumnAction)
        row, columns = self.steps, step.columns
        super().write(step)
        self.stamp = None
        for name, column in self._extras.items():
            column[row] = columns[name]
        if not row:
            self._initial = {c.name: np.array(columns[c.name], dtype=c.dtype) for c in self._specs if c.per == "segment"}
        self.state = step.state

    def continues(self, step: EpisodeStep) -> bool:
        """Return True if `step` follows the last row: the policy chose it from the state that it had after that row.

        Otherwise the step belongs into a new segment.
        """
        return super().continues(step) and isinstance(step, ExtraColumnAction) and step.before is self.state

    def read(self, row: int, step: EpisodeStep, owner: AgentIdentity) -> None:
        """Fill `step`, a new `ExtraColumnAction`, with copies of a row. The policy's states become None: rows have none."""
        assert isinstance(step, ExtraColumnAction)
        super().read(row, step, owner)
        step.columns = {name: np.array(column[row]) for name, column in self._extras.items()}
        step.before = step.state = None

    def build(self, episode_id: int, episode_return: float | None) -> Segment:
        """Return the finished segment (run of steps) with the extra columns. `SegmentWriter.build` describes the arguments."""
        extras = {name: column[: self.steps] for name, column in self._extras.items()}
        return replace(super().build(episode_id, episode_return), extras=extras, initial=self._initial)

    def _grow(self) -> None:
        super()._grow()
        self._extras = {name: np.concatenate([column, np.empty_like(column)]) for name, column in self._extras.items()}


def recorded_actions(writer: SegmentWriter, owner: AgentIdentity, known: Iterable[RL4SysAction | None]) -> list[RL4SysAction]:
    """Return the recorded steps of a segment (run of steps) as action objects, oldest first.

    Args:
        writer: The segment.
        owner: The agent, as in `PolicyStamp`.
        known: Actions that still exist as objects. The result has these objects for their steps, and copies for the others.
    """
    by_row = {action.row: action for action in known if action is not None and action.writer is writer}
    return [by_row.get(row) or _recorded_action(writer, row, owner) for row in range(writer.steps)]


def _recorded_action(writer: SegmentWriter, row: int, owner: AgentIdentity) -> RL4SysAction:
    action = ExtraColumnAction() if isinstance(writer, ExtraColumnSegmentWriter) else RL4SysAction()
    writer.read(row, action, owner)
    action.env_act, action.done = action.raw, False
    lock(action.env_act)
    return action
