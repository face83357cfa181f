"""The base class of policies that record extra columns, or act by a state that they carry from step to step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.policies.base import Action
from rl4sys_zmq.policies.sampler import Sampler
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.values.trees import Tree, flatten, unflatten_each

__all__ = ["BatchChoice", "ColumnPolicy", "StepChoice", "local_only_reason"]

StepChoice = tuple[Action, Action, float, Mapping[str, Any], Any]
"""The raw action, the action, its log-probability, the values of the extra columns by name, and the state after the step."""

BatchChoice = tuple[NDArray[Any], NDArray[Any], NDArray[np.float32], Mapping[str, NDArray[Any]], Sequence[Any]]
"""The parts of ``N`` choices: arrays ``[N, ...]`` as in `StepChoice`, and ``N`` states."""


class ColumnPolicy(ABC):
    """One version of a policy with extra columns (`PolicySpec.columns`). It is immutable, as every `Policy`.

    The state is any object; None at the start of an episode. An actor keeps it with the trajectory, and passes it on when the
    action was added to the trajectory. So a policy never changes a state or a value that it has returned: it creates new ones.
    A new version of the policy continues from the state of the version before.

    Attributes:
        snapshot: The weights.
        generation: The generation of the snapshot.
        version: The version of the snapshot.
    """

    def __init__(self, snapshot: PolicySnapshot) -> None:
        self.snapshot = snapshot
        self.generation, self.version = snapshot.generation, snapshot.version

    @abstractmethod
    def step(self, observation: Any, mask: NDArray[Any] | None, rng: Sampler, explore: bool, state: Any) -> StepChoice:
        """Choose one action.

        Args:
            observation: As in `Policy.act`.
            mask: As in `Policy.act`.
            rng: The source of random numbers.
            explore: As in `Policy.act`.
            state: The state after the step before; None for the first step of an episode.

        Returns:
            The three parts that `Policy.act` returns; the values of all columns of the spec, by name, each with the shape of a
            row of its column and a dtype that fits; and the state after this step. The value of a column per segment is stored
            only if this step becomes the first of a segment. A recurrent policy returns `state` itself there, as an array.

        Raises:
            MaskError: If `mask` forbids every action.
        """

    def step_batch(
        self,
        observations: Tree,
        masks: NDArray[Any] | None,
        rng: Sampler,
        explore: bool,
        states: Sequence[Any],
    ) -> BatchChoice:
        """Choose ``N`` actions. This default calls `step` for each; a policy can override it with one forward pass.

        Args:
            observations: ``[N, *obs]``, or a tree of such arrays.
            masks: ``[N, n]`` or None.
            rng: The source of random numbers.
            explore: As in `step`.
            states: ``N`` states.

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
        return np.stack(raws), np.stack(acts), np.array(log_probs, dtype=np.float32), columns, after

    def act(self, observation: Any, mask: NDArray[Any] | None, rng: Sampler, explore: bool) -> tuple[Action, Action, float]:
        """Choose the first action of an episode, as `Policy.act` describes."""
        raw, act, log_prob, _, _ = self.step(observation, mask, rng, explore, None)
        return raw, act, log_prob

    def act_batch(
        self, observations: Tree, masks: NDArray[Any] | None, rng: Sampler, explore: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
        """Choose the first actions of ``N`` episodes, as `Policy.act_batch` describes."""
        count = len(flatten(observations)[0][0])
        raws, acts, log_probs, _, _ = self.step_batch(observations, masks, rng, explore, [None] * count)
        return raws, acts, log_probs


def local_only_reason(spec: PolicySpec) -> str:
    """Return why only an actor's own policy can act by a spec, with the remedy; empty if the learner can act for the actor."""
    if spec.columns:
        return f"a policy of kind {spec.kind!r} has extra columns, which only a policy in the actor records; use inference: local"
    if spec.observation_space.shape is None:
        return f"observations are {spec.observation_space!s:.80}; the service takes single arrays; use inference: local"
    return ""
