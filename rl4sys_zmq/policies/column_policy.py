"""The base class of policies with a state that they carry from step to step, or with extra columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.policies.base import Action, Choice, Choices, Mask
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, PolicySpec
from rl4sys_zmq.values.trees import Tree, flatten, unflatten, unflatten_each

StepChoice = tuple[Action, Action, float, Mapping[str, Any], Any]
"""The result of one step: the raw action to train on, the action for the environment, the log-probability of the raw action, the
values of the extra columns by name, and the policy's state after the step."""

BoundStep = Callable[[Any, Mask, Any], StepChoice]
"""A policy's `ExtraColumnPolicy.step` for one thread: it takes an observation, a mask (or None) and a state."""

BatchChoice = tuple[Tree, Tree, NDArray[np.float32], Mapping[str, NDArray[Any]], Sequence[Any]]
"""The result of one step in each of ``N`` environments: the parts of `StepChoice` as arrays ``[N, ...]`` or trees of
them, and ``N`` states."""


class ExtraColumnPolicy(ABC):
    """The base class of policies that keep a state between steps, or record extra columns.

    A subclass implements `step`. `PolicySpec.columns` describes the extra columns. The state can be any object, such as the
    hidden state of a recurrent network. It is None at the start of an episode. The actor stores the state with the trajectory
    once the action is added, and passes it to the next step. So a policy must not change a state or a value that it has
    returned, but must create a new object. A policy object is immutable: new weights become a new object, which continues from
    the state that the old one returned.

    Attributes:
        snapshot: The weights.
        generation: The number of the worker that published the weights.
        version: The number of the publication of the weights.
    """

    def __init__(self, snapshot: PolicySnapshot) -> None:
        self.snapshot = snapshot
        self.generation, self.version = snapshot.generation, snapshot.version

    @abstractmethod
    def step(self, observation: Any, mask: Mask, rng: RandomSource, explore: bool, state: Any) -> StepChoice:
        """Choose one action.

        Args:
            observation: As in `Policy.act`.
            mask: As in `Policy.act`.
            rng: The source of random numbers.
            explore: As in `Policy.act`.
            state: The state after the previous step. None for the first step of an episode.

        Returns:
            Five values:

            - The raw action, the action and the log-probability, as in `Policy.act`.
            - The values of all columns of the spec, by name. Each value has the shape of one row of its column, and a dtype that
              can be cast to that of the column. The value of a column with one value for each segment is stored only if this
              step becomes the first step of a segment. A recurrent policy returns the given `state` there, as an array.
            - The state after this step.

        Raises:
            MaskError: If `mask` forbids every action.
        """

    def bind_step(self, rng: RandomSource, explore: bool) -> BoundStep:
        """Return `step` for one thread, with the given `rng` and `explore`.

        A subclass can return a faster function that uses buffers, because no other thread calls it. But each call must return a
        new state object.
        """
        step = self.step
        return lambda observation, mask, state: step(observation, mask, rng, explore, state)

    def step_batch(
        self,
        observations: Tree,
        masks: Mask,
        rng: RandomSource,
        explore: bool,
        states: Sequence[Any],
    ) -> BatchChoice:
        """Choose an action for each of ``N`` observations.

        This default calls `step` for each observation. A subclass can override the method with one forward pass.

        Args:
            observations: ``[N, *obs]``, or a tree of such arrays.
            masks: ``[N, n]`` or None.
            rng: The source of random numbers.
            explore: As in `step`.
            states: ``N`` states, one for each observation.

        Raises:
            MaskError: If a row of `masks` forbids every action.
        """
        leaves, structure = flatten(observations)
        each = unflatten_each(structure, leaves, len(states))
        rows = [
            self.step(observation, None if masks is None else masks[n], rng, explore, states[n])
            for n, observation in enumerate(each)
        ]
        raws, acts, log_probs, values, after = zip(*rows, strict=True)
        columns = {name: np.stack([np.asarray(row[name]) for row in values]) for name in values[0]}
        return _stacked(raws), _stacked(acts), np.array(log_probs, dtype=np.float32), columns, after

    def act(self, observation: Any, mask: Mask, rng: RandomSource, explore: bool) -> Choice:
        """Choose the first action of an episode, as `Policy.act` describes."""
        raw, act, log_prob, _, _ = self.step(observation, mask, rng, explore, None)
        return raw, act, log_prob

    def act_batch(self, observations: Tree, masks: Mask, rng: RandomSource, explore: bool) -> Choices:
        """Choose the first actions of ``N`` episodes, as `Policy.act_batch` describes."""
        count = len(flatten(observations)[0][0])
        raws, acts, log_probs, _, _ = self.step_batch(observations, masks, rng, explore, [None] * count)
        return raws, acts, log_probs


def _stacked(actions: Sequence[Action]) -> Tree:
    """Return ``N`` actions as an array ``[N, *act]``, or as a tree of such arrays if an action is a dict or a tuple."""
    structure = flatten(actions[0], by_key=True)[1]
    rows = [flatten(action, by_key=True)[0] for action in actions]
    return unflatten(structure, [np.stack(column) for column in zip(*rows, strict=True)])


def local_only_reason(spec: PolicySpec) -> str:
    """Return the reason why the learner's inference service cannot choose actions for policies of this spec.

    The reason is a text for an error message, with the remedy. It is empty if the service can choose the actions.
    """
    if spec.columns:
        return f"a policy of kind {spec.kind!r} has extra columns, which only a policy in the actor records; use inference: local"
    if spec.observation_space.shape is None:
        return f"observations are {spec.observation_space!s:.80}; the service takes single arrays; use inference: local"
    if not isinstance(spec.action_space, BoxSpace | DiscreteSpace):
        return f"actions are {spec.action_space!s:.80}; the service gives Box or Discrete actions; use inference: local"
    return ""
