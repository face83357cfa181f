"""Off-policy algorithms of Stable-Baselines3, which draw their transitions from a replay buffer of this library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples, TrainFrequencyUnit

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.adapters.replayed import STEPS_PER_VERSION, ReplayPace, failing_rows
from rl4sys_zmq.learner.algorithms.adapters.sb3_model import Sb3Adapter
from rl4sys_zmq.learner.algorithms.networks import encode_observations
from rl4sys_zmq.learner.algorithms.torch_draws import TorchDraws
from rl4sys_zmq.policies.gaussian import action_bounds
from rl4sys_zmq.replay import ReplayMemory, ReplayOptions
from rl4sys_zmq.values import BoxSpace, Segment, Space

__all__ = ["Sb3OffPolicy"]


class _SegmentReplay(ReplayBuffer):
    """The replay buffer of a model: a view of a `ReplayMemory`, into which segments are written in bulk.

    Attributes:
        memory: The transitions.
        rows: The rows of the next samples; None to draw them.
    """

    memory: ReplayMemory
    rows: NDArray[np.int64] | None = None

    def __init__(
        self, buffer_size: int, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], **unused: Any
    ) -> None:
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device="cpu")

    def connect(self, memory: ReplayMemory, generator: torch.Generator, observation_space: Space, action_space: Space) -> None:
        """Sample from this memory from now on.

        Args:
            memory: The transitions. Their actions are in the units of the environment.
            generator: The source of random rows.
            observation_space: The space of the observations in the memory.
            action_space: The space of the actions in the memory.
        """
        self.memory, self._draws, self._space = memory, TorchDraws(generator), observation_space
        self._bounds = action_bounds(action_space) if isinstance(action_space, BoxSpace) else None

    def size(self) -> int:
        """Return the number of transitions."""
        return len(self.memory)

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Refuse a transition from the library: all of them come in segments."""
        raise NotImplementedError("transitions come from actors")

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        """Return random transitions as tensors. Their discounts include those of several steps, and are 0 after an end."""
        rows = self.memory.draw(batch_size, self._draws) if self.rows is None else self.rows
        batch = self.memory.gather(rows)
        discounts = torch.from_numpy(batch.discounts).unsqueeze(1)
        actions = batch.actions.reshape(len(rows), -1)
        if self._bounds is not None:  # the library's networks compute numbers from -1 to 1
            actions = ((actions - self._bounds.centre) / self._bounds.half).astype(np.float32)
        return ReplayBufferSamples(
            observations=encode_observations(self._space, batch.observations),
            actions=torch.from_numpy(actions),
            next_observations=encode_observations(self._space, batch.successors),
            dones=(discounts == 0).float(),
            rewards=torch.from_numpy(batch.returns).unsqueeze(1),
            discounts=discounts,
        )


class Sb3OffPolicy(Sb3Adapter):
    """An off-policy algorithm of Stable-Baselines3. Its training depends on the number of observed steps, not on time.

    As in the library, each `train_freq` environment steps are followed by `gradient_steps` gradient steps, and the target network
    is updated after a number of environment steps.
    """

    kind: ClassVar[str] = "offpolicy"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        model = self._model
        if model.train_freq.unit is not TrainFrequencyUnit.STEP:
            raise ConfigError(f"{self._name}: train_freq counts episodes; expected a number of steps", key="train_freq")
        self._pace = ReplayPace(learning_starts=model.learning_starts, every=model.train_freq.frequency)
        self.publish_every_updates = max(1, round(STEPS_PER_VERSION / self._pace.every))
        self._gradient_steps = model.gradient_steps if model.gradient_steps >= 0 else self._pace.every
        self._generator = torch.Generator().manual_seed(arguments[-1])
        n_steps = getattr(self.parameters, "n_steps", 1)
        options = ReplayOptions(capacity=model.buffer_size, gamma=model.gamma, n_step=n_steps)
        self._memory = ReplayMemory(self._observation_space, self._action_space, options)
        model.replay_buffer.connect(self._memory, self._generator, self._observation_space, self._action_space)

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "replay_buffer_class": _SegmentReplay}

    def _epsilon(self) -> float:
        """Return the current probability of a uniform action. All actions are uniform until the training starts."""
        return super()._epsilon() if self._model.num_timesteps else 1.0

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Write the segment into the replay buffer. Off-policy data can have any age, so `correct` has no effect."""
        self._check_masks(segment)
        self._memory.add(segment)
        self._pace.steps += segment.steps

    def demand(self) -> int:
        """Return the number of environment steps that are missing until the next policy version can be published.

        If `discard` has emptied the replay buffer, return the length of one segment, so that new data arrive.
        """
        if not len(self._memory) and self._pace.steps:
            return self.rollout_length
        return self._pace.missing(self.publish_every_updates)

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Do one training and return its metrics, or return None if none is due. The argument `partial` has no effect."""
        if not self._pace.due or not len(self._memory):
            return None
        self._pace.trainings += 1
        seen = self._pace.learning_starts + self._pace.trainings * self._pace.every
        new = seen - self._model.num_timesteps
        self._advance(seen)
        with self._random.active():
            for _ in range(new):
                self._model._on_step()
            self._model.train(gradient_steps=self._gradient_steps, batch_size=self._model.batch_size)
        return {**self._metrics(), "replay/size": float(len(self._memory))}

    def state(self) -> dict[str, Any]:
        """Return copies of the whole state, with the replay buffer."""
        return {**self.checkpoint(), "steps": self._pace.steps, "replay": self._memory.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` has returned."""
        self.restore(state)
        self._pace.steps = int(state["steps"])
        self._memory.load(state["replay"])

    def checkpoint(self) -> dict[str, Any]:
        """Return copies of everything that an update changes; not the replay buffer."""
        return {**super().checkpoint(), "trainings": self._pace.trainings, "generator": self._generator.get_state()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Return to a state that `checkpoint` has copied. The replay buffer and the counts of observed data do not change."""
        super().restore(kept)
        self._pace.trainings = int(kept["trainings"])
        self._generator.set_state(kept["generator"])

    def discard(self) -> list[int]:
        """Find the transitions that make the next update non-finite, and remove their segments from the replay buffer.

        Returns:
            The numbers of the removed segments, counted from 0 in the order of the calls of `observe`.
        """
        kept = self.checkpoint()
        rows = self._failing_rows()
        self._model.replay_buffer.rows = None
        self.restore(kept)
        return self._memory.discard(np.unique(rows)) if len(rows) else []

    def _failing_rows(self) -> NDArray[np.int64]:
        """Try the gradient steps of the next update, and return the rows that make the first failing step fail."""
        for _ in range(self._gradient_steps):
            rows = self._memory.draw(self._model.batch_size, TorchDraws(self._generator))
            before = self.checkpoint()
            if not self._survives(rows, before):
                return failing_rows(np.unique(rows), lambda part: self._survives(part, before))  # noqa: B023 - used at once
        return np.empty(0, np.int64)

    def _survives(self, rows: NDArray[np.int64], before: Mapping[str, Any]) -> bool:
        """Return True if all losses and weights are finite after a gradient step on some rows, from a given state."""
        self.restore(before)
        self._model.replay_buffer.rows = rows
        with self._random.active():
            self._model.train(gradient_steps=1, batch_size=len(rows))
        return bool(np.isfinite(list(self._metrics().values())).all()) and all(
            bool(np.isfinite(array).all()) for array in self.numbers_to_check()
        )
