"""Training of a library's networks from a replay: its pace, its state, and the removal of data that make an update fail."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.algorithms.action_distributions import ActionScale
from rl4sys_zmq.algorithms.offpolicy.replay_checks import check_replay_size, check_stored_returns, find_failing_rows
from rl4sys_zmq.algorithms.offpolicy.samplers import TorchDraws
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithms import mask_refusal
from rl4sys_zmq.replay import ReplayMemory
from rl4sys_zmq.values import BoxSpace, Segment, Space

STEPS_PER_VERSION = 256
"""The default number of steps from one published version to the next."""


@dataclass(slots=True, kw_only=True)
class ReplayPace:
    """The count of observed steps and of the updates that they make due, or that count as done (`settle`)."""

    learning_starts: int
    every: int
    gradient_steps: int
    batch_size: int
    steps: int = 0
    updates: int = 0

    @property
    def due(self) -> bool:
        return self.updates < self._updates_due

    @property
    def rule(self) -> dict[str, int]:
        """The numbers that determine how many updates are due."""
        return {"learning_starts": self.learning_starts, "every": self.every}

    @property
    def _updates_due(self) -> int:
        """The first update follows the first multiple of `every` above `learning_starts`, as in the libraries."""
        return max(0, self.steps // self.every - self._before)

    @property
    def _before(self) -> int:
        return self.learning_starts // self.every

    @property
    def seen(self) -> int:
        """The number of observed steps at which the last update was due."""
        return (self._before + self.updates) * self.every

    def settle(self) -> None:
        """Count as done exactly the updates that are due, because the rule is new and would apply to all earlier steps."""
        self.updates = self._updates_due

    def missing(self, publish_every: int) -> int:
        """Return the steps until the next version, which comes after every `publish_every` updates."""
        version = (self.updates // publish_every + 1) * publish_every
        return max(0, (self._before + version) * self.every - self.steps)


class ReplayTraining(ABC):
    """The methods of an off-policy `Algorithm` that are the same for all libraries."""

    kind: ClassVar[str] = "offpolicy"
    max_policy_lag: int | None = None
    rollout_length: int
    stored_returns: Mapping[str, float] = {}
    """The parameters with which the returns in the replay were computed, if they hold more than single rewards."""

    def use_replay(self, name: str, memory: ReplayMemory, pace: ReplayPace, generator: torch.Generator) -> None:
        """Train from this replay. A subclass calls this once, at the end of its construction."""
        self.memory, self.pace, self.generator = memory, pace, generator
        self.publish_every_updates = max(1, round(STEPS_PER_VERSION / pace.every))
        self._label = name

    def check_memory(self, available: int) -> None:
        check_replay_size(self.memory.options.capacity, self.memory.nbytes, available)

    @abstractmethod
    def train(self) -> dict[str, float]:
        """Do all gradient steps of an update. Return its metrics."""

    @abstractmethod
    def try_rows(self, rows: NDArray[np.int64]) -> dict[str, float]:
        """Do one gradient step on these rows of the replay. Return its metrics."""

    @abstractmethod
    def checkpoint(self) -> dict[str, Any]:
        """Return copies of everything that an update changes, with `replay_checkpoint`."""

    @abstractmethod
    def restore(self, kept: Mapping[str, Any]) -> None:
        """Return to a state that `checkpoint` has copied."""

    @abstractmethod
    def numbers_to_check(self) -> Sequence[NDArray[Any]]:
        """Return all numbers that must stay finite, the weights first."""

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        refuse_masks(segment, self._label)
        self.memory.add(segment)
        self.pace.steps += segment.steps

    def demand(self) -> int:
        """Return the steps until the next version; those of one segment if `discard` has emptied the replay."""
        if not len(self.memory) and self.pace.steps:
            return self.rollout_length
        return self.pace.missing(self.publish_every_updates)

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        if not self.pace.due or not len(self.memory):
            return None
        self.pace.updates += 1
        return {**self.train(), "replay/size": float(len(self.memory))}

    def state(self) -> dict[str, Any]:
        return self.state_beyond(())

    def state_beyond(self, stored: Collection[str]) -> dict[str, Any]:
        parameters = {"pace": self.pace.rule, "stored_returns": dict(self.stored_returns)}
        return {**self.checkpoint(), "steps": self.pace.steps, **parameters, "replay": self.memory.state(stored)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state. If the rule of the pace is new, no update is due then."""
        self.restore(state)
        self.memory.load(state["replay"])
        if len(self.memory):
            check_stored_returns(state["stored_returns"], self.stored_returns)
        self.pace.steps = int(state["steps"])
        if state["pace"] != self.pace.rule:
            self.pace.settle()

    def draw(self) -> NDArray[np.int64]:
        return self.memory.draw(self.pace.batch_size, TorchDraws(self.generator))

    def replay_checkpoint(self) -> dict[str, Any]:
        return {"updates": self.pace.updates, "generator": self.generator.get_state()}

    def replay_restore(self, kept: Mapping[str, Any]) -> None:
        self.pace.updates = int(kept["updates"])
        self.generator.set_state(torch.as_tensor(kept["generator"], device="cpu"))

    def discard(self) -> list[int]:
        """Remove the segments of the transitions that make the next update non-finite."""
        kept = self.checkpoint()
        rows = find_failing_rows(self.pace.gradient_steps, self.draw, self.checkpoint, self._survives)
        self.restore(kept)
        return self.memory.discard(np.unique(rows)) if len(rows) else []

    def _survives(self, rows: NDArray[np.int64], before: Mapping[str, Any]) -> bool:
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
    """Return actions for a library's networks, ``[B, n]``: those of a Box as numbers from -1 to 1."""
    if isinstance(space, BoxSpace):
        return ActionScale(space)(torch.from_numpy(actions.astype(np.float32, copy=False)))
    return torch.from_numpy(actions.reshape(len(actions), -1))
