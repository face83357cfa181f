"""Training on a replay: its pace, its state, and the removal of data that make an update fail."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from rl4sys_zmq.algorithms.offpolicy.samplers import TorchDraws
from rl4sys_zmq.learner.registry.algorithm_entry import parameter_error
from rl4sys_zmq.replay import ReplayMemory, SequenceMemory
from rl4sys_zmq.replay.pace import PaceRule, UnitSchedule
from rl4sys_zmq.values import Segment

Rows = NDArray[np.int64]


class ReplayTraining(ABC):
    """The base class of all off-policy algorithms, those of other libraries included: their replay and their pace."""

    kind: ClassVar[str] = "offpolicy"
    max_policy_lag: int | None = None
    rollout_length: int
    publish_every_updates: int
    parameters: Any

    def _use_replay(self, replay: ReplayMemory | SequenceMemory, rule: PaceRule, seed: int) -> None:
        """Set the replay, and the rule for the pace of the training. A subclass calls this once, in its constructor."""
        self._replay, self._pace = replay, UnitSchedule(rule)
        self._generator = torch.Generator("cpu").manual_seed(seed)
        self._draws = TorchDraws(self._generator)

    @abstractmethod
    def _train_unit(self) -> Mapping[str, float]:
        """Do one unit of training. Return its metrics."""

    @abstractmethod
    def _train_on(self, rows: Rows) -> Mapping[str, Any]:
        """Do one gradient step on these rows of the replay. Return its metrics, numbers or tensors of one element."""

    @abstractmethod
    def _model_state(self) -> dict[str, Any]:
        """Return copies of everything that an update changes, except the pace and the priorities."""

    @abstractmethod
    def _restore_model(self, kept: Mapping[str, Any]) -> None:
        """Return to a state that `_model_state` has copied."""

    @abstractmethod
    def numbers_to_check(self) -> Sequence[NDArray[Any]]:
        """Return arrays of all numbers that must stay finite, the weights first."""

    @abstractmethod
    def _replay_settings(self) -> dict[str, Mapping[str, float | None]]:
        """Return the parameters that determine the due units (``pace``) and the stored returns (``stored_returns``)."""

    @property
    def _unit_gradient_steps(self) -> int:
        """The number of gradient steps in a unit of training."""
        steps: int = self.parameters.gradient_steps
        return steps

    def _draw(self) -> Rows:
        """Return the rows of a random batch. Rows below 0 are demonstrations, which are not in the replay."""
        return self._replay.draw(self.parameters.batch_size, self._draws)

    def _stored(self, segment: Segment) -> Segment:
        """Return a segment in the form that the replay stores."""
        return segment

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        self._replay.add(self._stored(segment))
        self._pace.observe(segment)

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Do one unit of training if `UnitSchedule` says that a unit is due, and return its metrics; otherwise return None."""
        if not self._pace.due or not len(self._replay):
            return None
        metrics = self._train_unit()
        self._pace.count_unit()
        return {**metrics, "replay/size": float(len(self._replay))}

    def demand(self) -> int:
        """Return the number of steps until the next version; `rollout_length` if `discard` has emptied the replay."""
        if not len(self._replay) and self._pace.steps:
            return self.rollout_length
        return self._pace.missing(self.publish_every_updates)

    def checkpoint(self) -> dict[str, Any]:
        """Return what an update changes: networks, optimizers, random state, counts and priorities, not the transitions."""
        return {**self._training_state(), "priorities": self._replay.checkpoint()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self._restore_model(kept)
        self._generator.set_state(torch.as_tensor(kept["generator"], device="cpu"))
        self._pace.units, self._pace.samples = int(kept["units"]), int(kept["samples"])
        self._replay.restore(kept.get("priorities"))

    def _training_state(self) -> dict[str, Any]:
        pace = {"generator": self._generator.get_state(), "units": self._pace.units, "samples": self._pace.samples}
        return {**self._model_state(), **pace}

    def state(self) -> dict[str, Any]:
        return self.state_beyond(())

    def state_beyond(self, stored: Collection[str]) -> dict[str, Any]:
        counters = {"steps": self._pace.steps, "episodes": self._pace.episodes}
        return {**self._training_state(), **counters, **self._replay_settings(), "replay": self._replay.state(stored)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state. If the parameters of the pace have changed, no unit of training is due afterwards."""
        self.restore(state)
        self._replay.load(state["replay"])
        settings = self._replay_settings()
        for name, value in settings["stored_returns"].items() if len(self._replay) else ():
            stored = state["stored_returns"][name]
            if stored != value:
                raise parameter_error(
                    name,
                    f"{value:g}, but the returns in the stored replay were computed with {stored:g}; set {name} to {stored:g} "
                    "again, or `forget` the client, which discards the replay",
                )
        self._pace.steps, self._pace.episodes = int(state["steps"]), int(state["episodes"])
        if state["pace"] != settings["pace"]:
            self._pace.settle()

    def discard(self) -> list[int]:
        """Remove the segments that make a loss or a weight non-finite in the next update.

        Return the numbers of the removed segments, in the form of `ReplayMemory.discard`. The networks do not change.
        """
        kept = self.checkpoint()
        rows = self._failing_rows()
        self.restore(kept)
        rows = rows[rows >= 0]  # demonstrations stay
        return self._replay.discard(np.unique(rows)) if len(rows) else []

    def _failing_rows(self) -> Rows:
        """Try the gradient steps of the next update. Return the rows that make the first failing step fail; empty if none fails.

        The rows of this step are halved again and again, as long as a half still fails.
        """
        for _ in range(self._unit_gradient_steps):
            rows, before = self._draw(), self.checkpoint()
            if not self._survives(rows, before):
                return self._halve(np.unique(rows), before)
        return np.empty(0, np.int64)

    def _halve(self, rows: Rows, before: Mapping[str, Any]) -> Rows:
        if len(rows) <= 1:
            return rows
        failing = [half for half in np.array_split(rows, 2) if not self._survives(half, before)]
        return np.concatenate([self._halve(half, before) for half in failing]) if failing else rows

    def _survives(self, rows: Rows, before: Mapping[str, Any]) -> bool:
        """Return True if losses and weights are finite after a gradient step on these rows, from the state `before`."""
        self.restore(before)
        losses = [float(value) for tag, value in self._train_on(rows).items() if "loss" in tag.rpartition("/")[2]]
        return all(bool(np.isfinite(array).all()) for array in (np.array(losses), *self.numbers_to_check()))


def check_replay_size(steps: int, size: int, available: int, files: str = "") -> None:
    """Raise `ConfigError` if a full replay of `size` bytes does not fit in memory. `files` is a remedy for the message."""
    if size > available:
        raise parameter_error(
            "buffer_size",
            f"a full replay of {steps:,} steps needs {size:,} bytes, and the learner's machine "
            f"has {available:,} bytes of memory; use a smaller buffer_size{files and f', or {files}'}",
        )
