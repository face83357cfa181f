"""Off-policy algorithms of Stable-Baselines3, which draw their transitions from a replay of this library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples, TrainFrequencyUnit

from rl4sys_zmq.algorithms.libraries.replayed import ReplayPace, ReplayTraining, scaled_actions
from rl4sys_zmq.algorithms.libraries.sb3_model import Sb3Adapter
from rl4sys_zmq.algorithms.networks.torch_layers import encode_observations
from rl4sys_zmq.algorithms.offpolicy.samplers import TorchDraws
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay import ReplayMemory, ReplayOptions
from rl4sys_zmq.values import Space


class _SegmentReplay(ReplayBuffer):
    """The replay buffer of a model: a view of a `ReplayMemory`. If `rows` is set, the next samples are these rows."""

    memory: ReplayMemory
    rows: NDArray[np.int64] | None = None

    def __init__(
        self, buffer_size: int, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], **unused: Any
    ) -> None:
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device="cpu")

    def connect(self, memory: ReplayMemory, generator: torch.Generator, observation_space: Space, action_space: Space) -> None:
        """Sample from this memory, whose actions are in the units of the environment, from now on."""
        self.memory, self._draws, self._space = memory, TorchDraws(generator), observation_space
        self._actions = action_space

    def size(self) -> int:
        return len(self.memory)

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Refuse a transition from the library."""
        raise NotImplementedError("transitions come from actors")

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        """Return random transitions. Their discounts include those of several steps, and are 0 after an end."""
        rows = self.memory.draw(batch_size, self._draws) if self.rows is None else self.rows
        batch = self.memory.gather(rows)
        discounts = torch.from_numpy(batch.discounts).unsqueeze(1)
        return ReplayBufferSamples(
            observations=encode_observations(self._space, batch.observations),
            actions=scaled_actions(batch.actions, self._actions),
            next_observations=encode_observations(self._space, batch.successors),
            dones=(discounts == 0).float(),
            rewards=torch.from_numpy(batch.returns).unsqueeze(1),
            discounts=discounts,
        )


class Sb3OffPolicy(Sb3Adapter, ReplayTraining):
    """An off-policy algorithm of Stable-Baselines3, with the pace and the target updates of the library."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        model, seed = self._model, arguments[-1]
        if model.train_freq.unit is not TrainFrequencyUnit.STEP:
            raise ConfigError(f"{self._name}: train_freq counts episodes; expected a number of steps", key="train_freq")
        every = model.train_freq.frequency
        pace = ReplayPace(
            learning_starts=model.learning_starts,
            every=every,
            gradient_steps=model.gradient_steps if model.gradient_steps >= 0 else every,
            batch_size=model.batch_size,
        )
        n_steps: int = getattr(self.parameters, "n_steps", getattr(model, "n_steps", 1))  # the user's own class has its own
        memory = ReplayMemory(
            self._observation_space,
            self._action_space,
            ReplayOptions(capacity=model.buffer_size, gamma=model.gamma, n_step=n_steps),
        )
        self.stored_returns = {"gamma": model.gamma, "n_steps": n_steps}
        self.use_replay(self._name, memory, pace, torch.Generator("cpu").manual_seed(seed))
        model.replay_buffer.connect(memory, self.generator, self._observation_space, self._action_space)

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "replay_buffer_class": _SegmentReplay}

    def _epsilon(self) -> float:
        """All actions are uniform until the training starts."""
        return super()._epsilon() if self._model.num_timesteps else 1.0

    def change(self, parameters: Mapping[str, object]) -> None:
        super().change(parameters)
        self.pace.batch_size = self._model.batch_size

    def train(self) -> dict[str, float]:
        new = self.pace.seen - self._model.num_timesteps
        self._advance(self.pace.seen)
        with self._random.active():
            for _ in range(new):
                self._model._on_step()
            self._model.train(gradient_steps=self.pace.gradient_steps, batch_size=self.pace.batch_size)
        return self._metrics()

    def try_rows(self, rows: NDArray[np.int64]) -> dict[str, float]:
        self._model.replay_buffer.rows = rows
        try:
            with self._random.active():
                self._model.train(gradient_steps=1, batch_size=len(rows))
        finally:
            self._model.replay_buffer.rows = None
        return self._metrics()

    def checkpoint(self) -> dict[str, Any]:
        return {**super().checkpoint(), **self.replay_checkpoint()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        super().restore(kept)
        self.replay_restore(kept)
