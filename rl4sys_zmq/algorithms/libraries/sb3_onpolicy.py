"""On-policy algorithms of Stable-Baselines3, with advantages and value targets that are computed as for PPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from stable_baselines3 import A2C

from rl4sys_zmq.algorithms.action_distributions import ActionDistributions
from rl4sys_zmq.algorithms.libraries.replayed import refuse_masks
from rl4sys_zmq.algorithms.libraries.sb3_model import Sb3Adapter
from rl4sys_zmq.algorithms.onpolicy.rollout import RolloutBatch, join_segments, vtrace
from rl4sys_zmq.values import Segment


class Sb3OnPolicy(Sb3Adapter):
    """An on-policy algorithm of Stable-Baselines3. Each update trains on a batch of whole segments.

    The advantages and value targets are those of `vtrace`, with traces across the segments of an episode. A2C and its subclasses
    ignore the probabilities of the actions, so the advantages of old segments get the factor that V-trace has for the policy.
    """

    kind: ClassVar[str] = "onpolicy"
    max_policy_lag: int | None = 4

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rollout_length = min(self.rollout_length, self._model.n_steps)
        self._masked = hasattr(self._model.rollout_buffer, "action_masks")
        self._without_ratio = isinstance(self._model, A2C)
        self._taken: list[tuple[Segment, bool]] = []
        self._buffered = self._surplus = 0

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        if not self._masked:
            refuse_masks(segment, self._name)
        self._taken.append((segment, correct))
        self._buffered += segment.steps

    def demand(self) -> int:
        missing: int = self._model.n_steps - self._surplus - self._buffered
        return max(0, missing)

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        if not self._buffered or (self.demand() and not partial):
            return None
        rollout = join_segments(self._taken, self._observation_space, ActionDistributions(self._action_space))
        self._clear()
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
        self._surplus = self._limited(self._surplus + count - model.n_steps)
        return self._metrics()

    def _limited(self, surplus: int) -> int:
        """Return the steps by which the next batch is smaller. No batch shrinks to less than half."""
        return int(min(max(0, surplus), self._model.n_steps // 2))

    def _fill(self, rollout: RolloutBatch) -> None:
        """Write a batch into a new rollout buffer of the model."""
        model, policy = self._model, self._model.policy
        policy.set_training_mode(False)
        masks = None if rollout.forbidden is None else (~rollout.forbidden).numpy()
        features = rollout.features[rollout.rows]
        with torch.no_grad():
            estimates = policy.predict_values(rollout.features).squeeze(1).numpy().astype(np.float64)
            rhos = np.ones(len(rollout.rewards))
            if rollout.correct.any():
                mask_argument = {} if masks is None else {"action_masks": masks}
                current = policy.evaluate_actions(features, rollout.actions, **mask_argument)[1]
                rhos[rollout.correct] = (current - rollout.log_probs).exp().numpy()[rollout.correct]
        values = np.append(estimates, 0.0)
        before, after = values[rollout.rows], values[rollout.rows + 1] * rollout.alive
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
        return {**self.checkpoint(), "surplus": self._surplus}

    def load(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._surplus = self._limited(int(state["surplus"]))  # the size of a batch can be new
        self._clear()

    def checkpoint(self) -> dict[str, Any]:
        return {**super().checkpoint(), "surplus": self._surplus}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.load(kept)

    def discard(self) -> list[int]:
        """Return an empty list: there is no replay from which to remove bad data."""
        return []

    def _clear(self) -> None:
        self._taken, self._buffered = [], 0
