"""Training of a library's networks from a replay: its pace, its state, and the search for data that make an update fail."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.algorithms.action_scale import ActionScale
from rl4sys_zmq.algorithms.offpolicy.failing_rows import find_failing_rows
from rl4sys_zmq.algorithms.offpolicy.replay_size import check_replay_size
from rl4sys_zmq.algorithms.offpolicy.stored_returns import check_stored_returns
from rl4sys_zmq.algorithms.torch_draws import TorchDraws
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithms import mask_refusal
from rl4sys_zmq.replay import ReplayMemory
from rl4sys_zmq.values import BoxSpace, Segment, Space

STEPS_PER_VERSION = 256
"""The default number of environment steps from one published policy version to the next."""


@dataclass(slots=True, kw_only=True)
class ReplayPace:
    """The count of observed steps and of the updates that they make due. It does not depend on time.

    Attributes:
        learning_starts: Steps that are observed before the first update.
        every: Steps from one update to the next.
        gradient_steps: Gradient steps of each update.
        batch_size: Transitions of each gradient step.
        steps: Steps observed so far.
        updates: Updates done so far, or counted as done (`settle`).
    """

    learning_starts: int
    every: int
    gradient_steps: int
    batch_size: int
    steps: int = 0
    updates: int = 0

    @property
    def due(self) -> bool:
        """True if an update is due."""
        return self.updates < self._updates_due

    @property
    def rule(self) -> dict[str, int]:
        """The numbers by name that determine how many updates a number of observed steps makes due."""
        return {"learning_starts": self.learning_starts, "every": self.every}

    @property
    def _updates_due(self) -> int:
        """The number of updates that the observed steps make due in all.

        As in the libraries, the first one follows the first multiple of `every` above `learning_starts`.
        """
        return max(0, self.steps // self.every - self._before)

    @property
    def _before(self) -> int:
        """The number of multiples of `every` up to `learning_starts`, after which no update follows."""
        return self.learning_starts // self.every

    @property
    def seen(self) -> int:
        """The number of observed steps at which the last update was due."""
        return (self._before + self.updates) * self.every

    def settle(self) -> None:
        """Count as done exactly the updates that the observed steps make due, because the rule is new.

        Otherwise the new rule would apply to all earlier steps, and make many updates due at once or none for long.
        """
        self.updates = self._updates_due

    def missing(self, publish_every: int) -> int:
        """Return the number of steps until the next policy version, which comes after every `publish_every` updates."""
        version = (self.updates // publish_every + 1) * publish_every
        return max(0, (self._before + version) * self.every - self.steps)


class ReplayTraining(ABC):
    """The methods of an off-policy `Algorithm` that are the same for all libraries."""

    kind: ClassVar[str] = "offpolicy"
    max_policy_lag: int | None = None
    rollout_length: int
    stored_returns: Mapping[str, float] = {}
    """The parameters by name with which the returns in the replay were computed, if they hold more than single rewards."""

    def use_replay(self, name: str, memory: ReplayMemory, pace: ReplayPace, generator: torch.Generator) -> None:
        """Train from this replay. A subclass calls this once, at the end of its construction.

        Args:
            name: The name of the algorithm, for messages.
            memory: The replay.
            pace: The pace of the training.
            generator: The source of random rows.
        """
        self.memory, self.pace, self.generator = memory, pace, generator
        self.publish_every_updates = max(1, round(STEPS_PER_VERSION / pace.every))
        self._label = name

    def check_memory(self, available: int) -> None:
        """Check that a full replay is not larger than the memory that the process can have.

        Raises:
            ConfigError: If it is larger.
        """
        check_replay_size(self.memory.options.capacity, self.memory.nbytes, available)

    @abstractmethod
    def train(self) -> dict[str, float]:
        """Do all gradient steps of an update. Return its metrics."""

    @abstractmethod
    def try_rows(self, rows: NDArray[np.int64]) -> dict[str, float]:
        """Do one gradient step on these rows of the replay. Return its metrics."""

    @abstractmethod
    def checkpoint(self) -> dict[str, Any]:
        """Return copies of everything that an update changes, with those of `replay_checkpoint`."""

    @abstractmethod
    def restore(self, kept: Mapping[str, Any]) -> None:
        """Return to a state that `checkpoint` has copied."""

    @abstractmethod
    def numbers_to_check(self) -> Sequence[NDArray[Any]]:
        """Return all numbers that must stay finite, the weights first."""

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Write the segment into the replay. Off-policy data can have any age, so `correct` has no effect."""
        refuse_masks(segment, self._label)
        self.memory.add(segment)
        self.pace.steps += segment.steps

    def demand(self) -> int:
        """Return the number of environment steps that are missing until the next policy version can be published.

        If `discard` has emptied the replay, return the length of one segment, so that new data arrive.
        """
        if not len(self.memory) and self.pace.steps:
            return self.rollout_length
        return self.pace.missing(self.publish_every_updates)

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Do one update and return its metrics, or return None if none is due. The argument `partial` has no effect."""
        if not self.pace.due or not len(self.memory):
            return None
        self.pace.updates += 1
        return {**self.train(), "replay/size": float(len(self.memory))}

    def state(self) -> dict[str, Any]:
        """Return copies of the whole state, with the replay."""
        return self.state_beyond(())

    def state_beyond(self, stored: Collection[str]) -> dict[str, Any]:
        """Return the same as `state`, but without the arrays of those pieces of the replay whose names are in `stored`."""
        parameters = {"pace": self.pace.rule, "stored_returns": dict(self.stored_returns)}
        return {**self.checkpoint(), "steps": self.pace.steps, **parameters, "replay": self.memory.state(stored)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` has returned. If the rule of the pace is new, no update is due then.

        Raises:
            ConfigError: If the stored replay has returns of other parameters (`stored_returns`).
        """
        self.restore(state)
        self.memory.load(state["replay"])
        if len(self.memory):
            check_stored_returns(state["stored_returns"], self.stored_returns)
        self.pace.steps = int(state["steps"])
        if state["pace"] != self.pace.rule:
            self.pace.settle()

    def draw(self) -> NDArray[np.int64]:
        """Return the rows of a random batch."""
        return self.memory.draw(self.pace.batch_size, TorchDraws(self.generator))

    def replay_checkpoint(self) -> dict[str, Any]:
        """Return copies of what an update changes in this class."""
        return {"updates": self.pace.updates, "generator": self.generator.get_state()}

    def replay_restore(self, kept: Mapping[str, Any]) -> None:
        """Restore what `replay_checkpoint` has returned."""
        self.pace.updates = int(kept["updates"])
        self.generator.set_state(torch.as_tensor(kept["generator"], device="cpu"))

    def discard(self) -> list[int]:
        """Find the transitions that make the next update non-finite, and remove their segments from the replay.

        Returns:
            The numbers of the removed segments, counted from 0 in the order of the calls of `observe`.
        """
        kept = self.checkpoint()
        rows = find_failing_rows(self.pace.gradient_steps, self.draw, self.checkpoint, self._survives)
        self.restore(kept)
        return self.memory.discard(np.unique(rows)) if len(rows) else []

    def _survives(self, rows: NDArray[np.int64], before: Mapping[str, Any]) -> bool:
        """Return True if all losses and weights are finite after a gradient step on some rows, from a given state."""
        self.restore(before)
        try:
            metrics = self.try_rows(rows)
        except ValueError:  # a distribution of torch refuses parameters that are not finite
            return False
        numbers = (np.array([*metrics.values()]), *self.numbers_to_check())
        return all(bool(np.isfinite(array).all()) for array in numbers)


def refuse_masks(segment: Segment, name: str) -> None:
    """Refuse a segment with action masks, for an algorithm that would ignore them."""
    if segment.masks is not None:
        raise ConfigError(mask_refusal(name) or f"{name} ignores action masks", key="algorithm_name")


def scaled_actions(actions: NDArray[Any], space: Space) -> Tensor:
    """Return actions of a replay for a library's networks, ``[B, n]``: those of a Box as numbers from -1 to 1."""
    if isinstance(space, BoxSpace):
        return ActionScale(space)(torch.from_numpy(actions.astype(np.float32, copy=False)))
    return torch.from_numpy(actions.reshape(len(actions), -1))
