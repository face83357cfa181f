"""The built-in policy for continuous actions: a diagonal Gaussian.

The raw sample is trained on. The environment gets a bounded form of that sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import log, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.policies.base import Act, Action
from rl4sys_zmq.policies.mlp import MLPParameters
from rl4sys_zmq.policies.network import PolicyNetwork
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import BoxSpace, PolicySnapshot, PolicySpec

__all__ = ["ActionBounds", "Bounder", "GaussianPolicy", "action_bounds", "bounder"]

Bounder = Callable[[NDArray[np.float32]], NDArray[Any]]
"""A function from raw actions ``[..., n]`` to new arrays of actions for the environment."""

_LIMITS = np.finfo(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class GaussianPolicy:
    """A policy that samples ``mean + exp(log_std) * noise`` in float32. It implements `Policy` and ignores masks.

    The log-probability of a sample ``a`` of ``n`` dimensions is
    ``-0.5 * sum(((a - mean) / std)^2) - sum(log_std) - n / 2 * log(2 pi)``. It is computed from the sample after rounding to
    float32, so that the learner gets the same number from the stored action.
    """

    snapshot: PolicySnapshot
    generation: int
    version: int
    _network: PolicyNetwork
    _shape: tuple[int, ...] | None
    _bound: Bounder
    _std: NDArray[np.float32]
    _inverse_std: NDArray[np.float32]
    _constant: float

    @classmethod
    def of(cls, spec: PolicySpec, document: MLPParameters, snapshot: PolicySnapshot, network: PolicyNetwork) -> GaussianPolicy:
        """Build the policy that `spec` describes. `network` must have been built from the weights in `snapshot`."""
        space = spec.action_space
        assert isinstance(space, BoxSpace)
        log_std = spec.views(snapshot.flat)["log_std"].astype(np.float64)
        # A standard deviation of 0 or infinity would make the log-probability NaN.
        exponent = np.clip(log_std, np.log(_LIMITS.tiny), np.log(_LIMITS.max))
        return cls(
            snapshot=snapshot,
            generation=snapshot.generation,
            version=snapshot.version,
            _network=network,
            _shape=None if len(space.shape) == 1 else space.shape,
            _bound=bounder(space, document.squash),
            _std=np.exp(exponent).astype(np.float32),
            _inverse_std=np.exp(-exponent).astype(np.float32),
            _constant=-float(log_std.sum()) - 0.5 * space.size * log(2.0 * pi),
        )

    def act(
        self, observation: NDArray[Any], mask: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[Action, Action, float]:
        """Choose one action, as `Policy.act` describes."""
        return self._sample(self._network.single(observation), rng, explore)

    def bind(self, rng: RandomSource, explore: bool) -> Act:
        """Return a faster form of `act` for one thread, with the given `rng` and `explore`."""
        fused, sample = self._network.fused, self._sample
        if fused is None:
            return lambda observation, mask: self.act(observation, mask, rng, explore)
        forward = fused.forward()
        if explore:
            return lambda observation, mask: sample(forward(observation), rng, True)
        return lambda observation, mask: sample(forward(observation).copy(), rng, False)  # the raw action is the mean itself

    def _sample(self, mean: NDArray[Any], rng: RandomSource, explore: bool) -> tuple[Action, Action, float]:
        log_prob = self._constant
        raw = mean
        if explore:
            raw = self._std * rng.normals(len(mean))
            np.add(raw, mean, raw)
            z = raw - mean
            np.multiply(z, self._inverse_std, z)
            log_prob -= 0.5 * float(z.dot(z))
        env = self._bound(raw)
        if self._shape is not None:
            return raw.reshape(self._shape), env.reshape(self._shape), log_prob
        return raw, env, log_prob

    def act_batch(
        self, observations: NDArray[Any], masks: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
        """Choose ``N`` actions, as `Policy.act_batch` describes."""
        mean = self._network.batch(observations)
        count = len(mean)
        log_probs = np.full(count, self._constant, dtype=np.float32)
        raw = mean
        if explore:
            raw = self._std * rng.normals(mean.size).reshape(mean.shape)
            np.add(raw, mean, raw)
            z = raw - mean
            np.multiply(z, self._inverse_std, z)
            log_probs -= 0.5 * np.square(z, out=z).sum(axis=1)
        env = self._bound(raw)
        if self._shape is not None:
            return raw.reshape(count, *self._shape), env.reshape(count, *self._shape), log_probs
        return raw, env, log_probs


@dataclass(frozen=True, slots=True, eq=False)
class ActionBounds:
    """The bounds of a continuous action space, and the numbers that map a raw sample of the policy into them.

    Attributes:
        work: The dtype of the computation. Narrow types are computed in float32, wide ones in float64, and rounded once at the
            end.
        low, high: The bounds, ``[n]`` in the dtype `work`.
        half, centre: Half of the width and the middle of the range, ``[n]`` in the dtype `work`; not finite without bounds.
    """

    work: np.dtype[Any]
    low: NDArray[Any]
    high: NDArray[Any]
    half: NDArray[Any]
    centre: NDArray[Any]


def action_bounds(space: BoxSpace) -> ActionBounds:
    """Return the bounds of a continuous action space, for the conversion of the policy's raw samples to actions."""
    dtype = np.dtype(space.dtype)
    work: np.dtype[Any] = np.dtype(np.float32) if dtype in (np.float32, np.float16) else np.dtype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        low: NDArray[Any] = _edge(space.low_array().ravel(), dtype).astype(work)
        high: NDArray[Any] = _edge(space.high_array().ravel(), dtype).astype(work)
        return ActionBounds(work, low, high, high / 2 - low / 2, high / 2 + low / 2)


@lru_cache(maxsize=64)
def bounder(space: BoxSpace, squash: str) -> Bounder:
    """Return a function that maps the policy's raw samples ``[..., n]`` to actions for the environment.

    The result is a new array of the space's dtype. The actions are within the bounds of the space. `squash` is ``clip`` or
    ``tanh``, as in `MLPParameters`.
    """
    dtype = np.dtype(space.dtype)
    bounds = action_bounds(space)
    work, low, high, half, centre = bounds.work, bounds.low, bounds.high, bounds.half, bounds.centre
    whole_number = dtype.kind in "iub"
    free = bool(np.all(low == -np.inf) and np.all(high == np.inf))

    def bound(raw: NDArray[np.float32]) -> NDArray[Any]:
        env: NDArray[Any] = raw.astype(work)
        if squash == "tanh":
            np.tanh(env, env)
            np.multiply(env, half, env)
            np.add(env, centre, env)
        if whole_number:
            np.rint(env, env)
        if not free:
            np.maximum(env, low, out=env)
            np.minimum(env, high, out=env)
        return env if work == dtype else env.astype(dtype)

    return bound


def _edge(bound: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    """Return the bounds of a space, limited to the range of `dtype`. If `dtype` is float32 or float64, they are not changed."""
    if dtype in (np.float64, np.float32):
        return bound
    if dtype == np.float16:
        limit = float(np.finfo(np.float16).max)
        return np.clip(bound, -limit, limit).astype(np.float16).astype(np.float64)
    if dtype.kind == "b":
        return np.clip(bound, 0.0, 1.0)
    info = np.iinfo(dtype)
    # The largest 64-bit integers are not exact floats; use the next float below.
    top = float(info.max) if dtype.itemsize < 8 else float(np.nextafter(float(info.max), 0.0))
    return np.clip(bound, float(info.min), top)
