"""A policy that scores each waiting job by itself, with the same weights for all. This module imports no torch.

The probability of a job is the softmax of the scores, so the policy does not depend on the order of the jobs, and a network of a
few hundred weights suffices for 128 of them (Zhang et al. 2020, "RLScheduler"). A score is a linear function of the features plus
a small perceptron of them. At the start the perceptron gives almost zero, and the linear function has a weak preference for
short jobs.

The import of this module registers the kind of policy in this process. An actor's ``plugins`` name it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from job_scheduling.features import FEATURES, USED, WINDOW
from rl4sys_zmq.actor import PolicyEntry, register_policy
from rl4sys_zmq.errors import ConfigError, MaskError
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace, PolicySnapshot, PolicySpec, Space, TensorSpec

__all__ = ["ACTION_SPACE", "OBSERVATION_SPACE", "ScoringPolicy", "scoring_spec"]

KIND = "job_scorer"
SCALE = 20.0
"""The factor of all scores. It makes a step of the optimizer change the scores enough, at its usual step sizes."""

OBSERVATION_SPACE = BoxSpace((WINDOW, len(FEATURES)), low=-1.0, high=2.0)
ACTION_SPACE = DiscreteSpace(WINDOW)


def scoring_spec(observation_space: ObservationSpace, action_space: Space, hidden_sizes: tuple[int, ...]) -> PolicySpec:
    """Return the specification of a policy that scores jobs.

    Args:
        observation_space: A Box with a row of features for each job.
        action_space: One action for each row.
        hidden_sizes: The widths of the hidden layers, at least one.

    Raises:
        ConfigError: If the spaces are not those of jobs, or there is no hidden layer.
    """
    if not isinstance(observation_space, BoxSpace) or observation_space.shape != (getattr(action_space, "n", 0), len(FEATURES)):
        raise ConfigError(
            f"a {KIND} policy needs observations of the shape (jobs, {len(FEATURES)}) and an action for each job, not "
            f"{observation_space} and {action_space}",
            key="observation_space",
        )
    if not hidden_sizes:
        raise ConfigError(f"a {KIND} policy needs a hidden layer", key="hidden_sizes")
    tensors, width = [TensorSpec("linear", (len(FEATURES),))], len(FEATURES)
    for index, size in enumerate(hidden_sizes):
        tensors += [TensorSpec(f"layers.{index}.weight", (size, width)), TensorSpec(f"layers.{index}.bias", (size,))]
        width = size
    tensors.append(TensorSpec("output", (width,)))
    return PolicySpec(observation_space, action_space, KIND, {"hidden_sizes": list(hidden_sizes)}, tuple(tensors))


def check(spec: PolicySpec) -> None:
    """Check that a policy of this kind can be built from a specification.

    Raises:
        ConfigError: If it cannot.
    """
    sizes = spec.document.get("hidden_sizes")
    if not isinstance(sizes, list) or not all(isinstance(size, int) for size in sizes):
        raise ConfigError(f"a {KIND} policy has hidden_sizes, a list of integers", key="document")
    if scoring_spec(spec.observation_space, spec.action_space, tuple(sizes)).tensors != spec.tensors:
        raise ConfigError(f"the tensors of a {KIND} policy do not match its hidden_sizes", key="tensors")


@dataclass(frozen=True, slots=True, eq=False)
class ScoringPolicy:
    """The policy in numpy. It implements `rl4sys_zmq.policies.Policy`.

    A row without a job has the score 0. A mask forbids these rows.
    """

    snapshot: PolicySnapshot
    generation: int
    version: int
    start: int
    linear: NDArray[np.float32]
    layers: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]
    output: NDArray[np.float32]

    @classmethod
    def of(cls, spec: PolicySpec, snapshot: PolicySnapshot) -> ScoringPolicy:
        """Build the policy that `spec` describes, with views of the weights in `snapshot`."""
        check(spec)
        assert isinstance(spec.action_space, DiscreteSpace)
        views = spec.views(snapshot.flat)
        count = len(spec.document["hidden_sizes"])
        layers = tuple((views[f"layers.{k}.weight"].T, views[f"layers.{k}.bias"]) for k in range(count))
        start = spec.action_space.start
        return cls(snapshot, snapshot.generation, snapshot.version, start, views["linear"], layers, views["output"])

    def scores(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Return the scores of all rows, ``[..., jobs]`` for observations ``[..., jobs, features]``."""
        used = observations[..., USED] > 0.0
        rows = hidden = np.asarray(observations[used], dtype=np.float32)
        for weight, bias in self.layers:
            hidden = hidden @ weight
            hidden += bias
            np.maximum(hidden, 0.0, out=hidden)
        scores = np.zeros(used.shape, dtype=np.float32)
        scores[used] = SCALE * (rows @ self.linear + hidden @ self.output)
        return scores

    def act(
        self, observation: NDArray[Any], mask: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[np.int64, np.int64, float]:
        """Choose one job, as `rl4sys_zmq.policies.Policy.act` describes."""
        index, log_probs = _choose(self.scores(observation), mask, rng.uniform() if explore else None)
        action = np.int64(index + self.start)
        return action, action, float(log_probs)

    def act_batch(
        self, observations: NDArray[Any], masks: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
        """Choose ``N`` jobs, as `rl4sys_zmq.policies.Policy.act_batch` describes."""
        index, log_probs = _choose(self.scores(observations), masks, rng.uniforms(len(observations)) if explore else None)
        actions = index + self.start
        return actions, actions.copy(), log_probs.astype(np.float32)


def _choose(scores: NDArray[np.float32], masks: NDArray[Any] | None, uniforms: Any) -> tuple[Any, Any]:
    """Draw from the softmax of the last axis. Return the indices and their log-probabilities.

    Args:
        scores: ``[..., n]``.
        masks: ``[..., n]``, nonzero where an action is allowed, or None.
        uniforms: ``[...]`` random numbers in ``[0, 1)``. None takes the most probable index.
    """
    z = scores.astype(np.float64)
    if masks is not None:
        allowed = masks.astype(np.bool_, copy=False)
        if not allowed.any(axis=-1).all():
            raise MaskError("a mask forbids every job")
        z = np.where(allowed, z, -np.inf)
    z -= z.max(axis=-1, keepdims=True)
    cumulative = np.exp(z).cumsum(axis=-1)
    total = cumulative[..., -1]
    index = z.argmax(axis=-1) if uniforms is None else (cumulative <= (uniforms * total)[..., None]).sum(axis=-1)
    return index, np.take_along_axis(z, index[..., None], axis=-1)[..., 0] - np.log(total)


register_policy(
    PolicyEntry(
        name=KIND,
        factory=ScoringPolicy.of,
        summary="A score for each waiting job, with the same weights for all.",
        check=check,
    )
)
