"""Stable-Baselines3's algorithms, trained on segments from actors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import A2C
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import ReplayBufferSamples, TrainFrequencyUnit

from rl4sys_zmq.algorithms.action_distributions import ActionDistributionBuilder
from rl4sys_zmq.algorithms.libraries.adapter import LibraryReplayTraining, refuse_masks, scaled_actions
from rl4sys_zmq.algorithms.libraries.sb3_model import Sb3Adapter
from rl4sys_zmq.algorithms.networks.inputs import encode_observations
from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import BatchCompletionRule
from rl4sys_zmq.algorithms.onpolicy.rollout import OnPolicyTraining, RolloutBatch, vtrace
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithms import ALGORITHMS
from rl4sys_zmq.plugins import load_object
from rl4sys_zmq.replay import Draws, ReplayMemory, ReplayOptions
from rl4sys_zmq.replay.pace import PaceRule
from rl4sys_zmq.values import ObservationSpace, Segment, Space


class Sb3OnPolicy(Sb3Adapter, OnPolicyTraining):
    """An on-policy algorithm of Stable-Baselines3. Each update trains on a batch of whole segments.

    The advantages and value targets are those of `vtrace`, with traces across the segments of an episode. A2C and its
    subclasses ignore the probabilities of the actions. So they get advantages that are multiplied by V-trace's importance
    weights ``ρ``, which are 1 except for segments over the limit on the lag.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rollout_length = min(self.rollout_length, self._model.n_steps)
        self._masked = hasattr(self._model.rollout_buffer, "action_masks")
        self._without_ratio = isinstance(self._model, A2C)
        self._use_batches(BatchCompletionRule(steps=self._model.n_steps), ActionDistributionBuilder(self._action_space))

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        if not self._masked:
            refuse_masks(segment, self._name)
        super().observe(segment, correct=correct)

    def _train_batch(self, rollout: RolloutBatch) -> dict[str, float]:
        model, count = self._model, len(rollout.rewards)
        normalise = getattr(model, "normalize_advantage", False)
        self._advance(model.num_timesteps + count)
        with self._random.active():
            self._fill(rollout)
            if count == 1:  # a single advantage has no deviation
                model.normalize_advantage = False
            try:
                model.train()
            finally:
                model.normalize_advantage = normalise
        return self._metrics()

    def _fill(self, rollout: RolloutBatch) -> None:
        """Write the steps of a batch into a new rollout buffer, a class of Stable-Baselines3, and give it to the model."""
        model, policy = self._model, self._model.policy
        policy.set_training_mode(False)
        masks = None if rollout.forbidden is None else (~rollout.forbidden).numpy()
        features = rollout.features[rollout.rows]
        with torch.no_grad():
            before, after = rollout.step_values(policy.predict_values(rollout.features))
            rhos = np.ones(len(rollout.rewards))
            if rollout.correct.any():
                mask_argument = {} if masks is None else {"action_masks": masks}
                current = policy.evaluate_actions(features, rollout.actions, **mask_argument)[1]
                rhos[rollout.correct] = (current - rollout.log_probs).exp().numpy()[rollout.correct]
        advantages, targets = vtrace(
            rollout.rewards, before, after, rollout.continues, rhos, gamma=model.gamma, lam=model.gae_lambda
        )
        if self._without_ratio:
            advantages *= np.minimum(rhos, 1.0)
        count = len(advantages)
        buffer = model.rollout_buffer_class(
            count,
            model.observation_space,
            model.action_space,
            device=model.device,
            gamma=model.gamma,
            gae_lambda=model.gae_lambda,
            **model.rollout_buffer_kwargs,
        )
        columns = {
            "observations": features.numpy(),
            "actions": rollout.actions.numpy(),
            "rewards": rollout.rewards,
            "returns": targets,
            "advantages": advantages,
            "values": before,
            "log_probs": rollout.log_probs.numpy(),
            "episode_starts": np.append(True, ~rollout.continues[:-1]),
        }
        if masks is not None:
            columns["action_masks"] = masks
        for name, column in columns.items():
            target = getattr(buffer, name)
            target[...] = column.reshape(target.shape)
        buffer.pos, buffer.full = count, True
        model.rollout_buffer = buffer

    def state(self) -> dict[str, Any]:
        return {**self._model_state(), "surplus": self._surplus}

    def load(self, state: Mapping[str, Any]) -> None:
        self._restore_model(state)
        self._restart(int(state["surplus"]))


class _SegmentReplay(ReplayBuffer):
    """A replay buffer for a model of Stable-Baselines3, which reads a `ReplayMemory`.

    If `rows` is set, the next sample has these rows of the memory; otherwise it has random rows.
    """

    memory: ReplayMemory
    rows: NDArray[np.int64] | None = None

    def __init__(
        self, buffer_size: int, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], **unused: Any
    ) -> None:
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device="cpu")

    def connect(self, memory: ReplayMemory, draws: Draws, observation_space: ObservationSpace, action_space: Space) -> None:
        """Let `sample` draw from `memory`, whose actions are not scaled, with random numbers from `draws`."""
        self.memory, self._draws = memory, draws
        self._space, self._actions = observation_space, action_space

    def size(self) -> int:
        return len(self.memory)

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Raise an error: the library must not add transitions."""
        raise NotImplementedError("transitions come from actors")

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        """Return `batch_size` random transitions as tensors, or those in `rows`.

        The discounts are those of n-step returns, and 0 after a terminal state.
        """
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


class Sb3OffPolicy(Sb3Adapter, LibraryReplayTraining):
    """An off-policy algorithm of Stable-Baselines3. It trains and updates target networks as often as in that library."""

    more_arguments = {"replay_buffer_class": _SegmentReplay}

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        model, seed = self._model, arguments[-1]
        if model.train_freq.unit is not TrainFrequencyUnit.STEP:
            raise ConfigError(f"{self._name}: train_freq counts episodes; expected a number of steps", key="train_freq")
        rule = PaceRule(
            learning_starts=model.learning_starts,
            train_frequency=model.train_freq.frequency,
            rollout_length=self.rollout_length,
        )
        n_steps: int = getattr(self.parameters, "n_steps", getattr(model, "n_steps", 1))  # the user's own class has its own
        self.stored_returns = {"gamma": model.gamma, "n_steps": n_steps}
        self.use_replay(ReplayOptions(capacity=model.buffer_size, gamma=model.gamma, n_step=n_steps), rule, seed)
        model.replay_buffer.connect(self._replay, self._draws, self._observation_space, self._action_space)

    @property
    def _unit_gradient_steps(self) -> int:
        steps: int = self._model.gradient_steps
        return steps if steps >= 0 else self._pace.rule.train_frequency

    def _draw(self) -> NDArray[np.int64]:
        return self._replay.draw(self._model.batch_size, self._draws)

    def _train_unit(self) -> dict[str, float]:
        seen = self._pace.next_unit_steps()
        new = seen - self._model.num_timesteps
        self._advance(seen)
        with self._random.active():
            for _ in range(new):
                self._model._on_step()
            self._model.train(gradient_steps=self._unit_gradient_steps, batch_size=self._model.batch_size)
        return self._metrics()

    def _train_on(self, rows: NDArray[np.int64]) -> dict[str, float]:
        self._model.replay_buffer.rows = rows
        try:
            with self._random.active():
                self._model.train(gradient_steps=1, batch_size=len(rows))
        finally:
            self._model.replay_buffer.rows = None
        return self._metrics()


def build(
    name: str, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
) -> Sb3Adapter:
    """Build the algorithm `name`, a class of Stable-Baselines3 or, as ``package.module:Class``, one of the user."""
    entry, cls = ALGORITHMS.get(f"sb3:{name}"), _find_class(name)
    if entry.plan is not None:
        entry.plan(observation_space, action_space, parameters)
    adapter: type[Sb3Adapter] = Sb3OnPolicy if issubclass(cls, OnPolicyAlgorithm) else Sb3OffPolicy
    return adapter(cls, entry, observation_space, action_space, parameters, seed)


def _find_class(name: str) -> type[BaseAlgorithm]:
    if ":" not in name:
        algorithm = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
    else:
        try:
            algorithm = load_object(name)
        except (ImportError, AttributeError) as exc:
            raise ConfigError(
                f"sb3:{name} cannot be loaded ({exc}); install or correct the module, or add its folder to PYTHONPATH",
                key="algorithm_name",
            ) from exc
    if isinstance(algorithm, type) and issubclass(algorithm, OnPolicyAlgorithm | OffPolicyAlgorithm):
        return algorithm
    raise ConfigError(
        f"sb3:{name} is {algorithm!r:.80}; expected a class that is derived from OnPolicyAlgorithm or OffPolicyAlgorithm of "
        "stable_baselines3",
        key="algorithm_name",
    )
