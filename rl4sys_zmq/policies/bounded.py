"""The action heads of off-policy algorithms for bounded continuous actions: a squashed Gaussian, and a deterministic one.

Both compute a number from -1 to 1 for each dimension of an action, and scale it to the bounds of the action space. The scaled
action, in float32, is the raw action, which is trained on. The environment gets the same action in the dtype of the space. So
recorded data contain actions in the units of the environment, and other algorithms can train on them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from math import atanh, exp, isfinite, log, log1p, nan, pi, tanh
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.policies.action_bounds import NEAREST_1, action_bounds, bounder
from rl4sys_zmq.policies.base import Action, Choice, Choices, Mask
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import BoxSpace, PolicySnapshot, PolicySpec

PYTHON_MAX_SIZE = 16
"""The largest number of dimensions of an action for which Python floats are faster than numpy (for 2, 8 us instead of 21 us)."""

LEAST_STD = 1e-6
"""The standard deviation with which the density of a noise of a smaller standard deviation is computed, to keep it finite."""

_LOG_2, _HALF_LOG_2PI = log(2.0), 0.5 * log(2.0 * pi)


class _Scale:
    """The map from numbers between -1 and 1 to the actions of a space.

    Attributes:
        axes: The middle and the half width of the range of each dimension.
        log_volume: The sum of the logarithms of the half widths, to subtract from a log-density in the scaled numbers.
    """

    def __init__(self, space: BoxSpace) -> None:
        bounds = action_bounds(space)
        self._centre, self._half = bounds.centre.astype(np.float64), bounds.half.astype(np.float64)
        self.axes = tuple(zip(self._centre.tolist(), self._half.tolist(), strict=True))
        self.log_volume = float(np.log(np.maximum(self._half, np.finfo(np.float32).tiny)).sum())  # equal bounds have no density
        self._shape, self._bound = None if len(space.shape) == 1 else space.shape, bounder(space, "clip")

    def one(self, values: list[float]) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Return the raw action and the action for the environment, from numbers between -1 and 1."""
        raw = np.array([centre + half * value for value, (centre, half) in zip(values, self.axes, strict=True)], np.float32)
        env = self._bound(raw)
        return (raw, env) if self._shape is None else (raw.reshape(self._shape), env.reshape(self._shape))

    def rows(self, values: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Return ``N`` raw actions and actions for the environment, from numbers between -1 and 1, ``[N, n]``."""
        raw = (values * self._half + self._centre).astype(np.float32)
        env = self._bound(raw)
        rows = len(values)
        return (raw, env) if self._shape is None else (raw.reshape(rows, *self._shape), env.reshape(rows, *self._shape))


_scale_of = lru_cache(maxsize=64)(_Scale)


class _BoundedHead(ABC):
    """The base class of `SquashedGaussianHead` and `DeterministicHead`. It implements `ActionHead`, and ignores masks."""

    def __init__(self, spec: PolicySpec) -> None:
        assert isinstance(spec.action_space, BoxSpace)
        self._scale, self._size = _scale_of(spec.action_space), spec.action_space.size

    def choose(self, outputs: NDArray[Any], mask: Mask, rng: RandomSource, explore: bool) -> Choice:
        if self._size > PYTHON_MAX_SIZE:
            values, log_densities = self._draw_rows(outputs[None], rng, explore)
            raws, envs = self._scale.rows(values)
            return raws[0], envs[0], float(log_densities[0]) - self._scale.log_volume
        drawn, log_density = self._draw(outputs.tolist(), rng, explore)
        raw, env = self._scale.one(drawn)
        return raw, env, log_density - self._scale.log_volume

    def choose_batch(self, outputs: NDArray[Any], masks: Mask, rng: RandomSource, explore: bool) -> Choices:
        values, log_densities = self._draw_rows(outputs, rng, explore)
        return *self._scale.rows(values), (log_densities - self._scale.log_volume).astype(np.float32)

    def assess(self, act: Action, outputs: NDArray[Any], mask: Mask, rng: RandomSource) -> tuple[Action, float]:
        pairs = zip(act.reshape(-1).tolist(), self._scale.axes, strict=True)
        values = [(number - centre) / half if half else 0.0 for number, (centre, half) in pairs]
        return np.array(act, np.float32), self._log_density(outputs.tolist(), values) - self._scale.log_volume

    @abstractmethod
    def _log_density(self, outputs: list[float], values: list[float]) -> float:
        """Return the log-density of an action, given as numbers between -1 and 1."""

    @abstractmethod
    def _draw(self, outputs: list[float], rng: RandomSource, explore: bool) -> tuple[list[float], float]:
        """Return an action as numbers between -1 and 1, and the log-density of these numbers."""

    @abstractmethod
    def _draw_rows(self, outputs: NDArray[Any], rng: RandomSource, explore: bool) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return ``N`` actions as numbers between -1 and 1, ``[N, n]``, and their log-densities, ``[N]``."""


class SquashedGaussianHead(_BoundedHead):
    """The head of a tanh-squashed Gaussian whose standard deviation depends on the observation (Haarnoja et al. 2018).

    The network's outputs are the means, and then the logarithms of the standard deviations, which are clipped to a range. For a
    sample ``u`` of this normal distribution ``N``, the action is ``tanh(u)``, scaled to the bounds. Its log-density is ``log
    N(u) - sum(log(1 - tanh(u)^2)) - sum(log((high - low) / 2))``. It is computed from ``u``, because an action that was rounded
    near a bound does not determine ``u``.
    """

    def __init__(self, spec: PolicySpec, parameters: HeadParameters) -> None:
        super().__init__(spec)
        self._least, self._most = parameters.log_std_min, parameters.log_std_max

    def _draw(self, outputs: list[float], rng: RandomSource, explore: bool) -> tuple[list[float], float]:
        size, least, most = self._size, self._least, self._most
        noises = rng.normals(size).tolist() if explore else [0.0] * size
        log_density = -size * (_HALF_LOG_2PI + 2.0 * _LOG_2)
        drawn = []
        for index, noise in enumerate(noises):
            log_std = min(max(outputs[size + index], least), most)
            sample = outputs[index] + exp(log_std) * noise
            far = abs(sample)  # log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + exp(-2 |u|)))
            log_density += 2.0 * (far + log1p(exp(-2.0 * far))) - log_std - 0.5 * noise * noise
            drawn.append(tanh(sample))
        return drawn, log_density

    def _log_density(self, outputs: list[float], values: list[float]) -> float:
        log_density = -self._size * (_HALF_LOG_2PI + 2.0 * _LOG_2)
        for index, value in enumerate(values):
            sample = atanh(min(max(value, -NEAREST_1), NEAREST_1))
            log_std = min(max(outputs[self._size + index], self._least), self._most)
            far, noise = abs(sample), (sample - outputs[index]) * exp(-log_std)
            log_density += 2.0 * (far + log1p(exp(-2.0 * far))) - log_std - 0.5 * noise * noise
        return log_density

    def _draw_rows(self, outputs: NDArray[Any], rng: RandomSource, explore: bool) -> tuple[NDArray[Any], NDArray[np.float64]]:
        means, log_stds = outputs[:, : self._size].astype(np.float64), outputs[:, self._size :].astype(np.float64)
        log_stds = np.minimum(np.maximum(log_stds, self._least), self._most)
        noises = np.zeros(means.shape)
        if explore:
            noises = rng.normals(means.size).reshape(means.shape).astype(np.float64)
        samples = means + np.exp(log_stds) * noises
        far = np.abs(samples)
        log_densities = 2.0 * (far + np.log1p(np.exp(-2.0 * np.minimum(far, 300.0))) - _LOG_2) - log_stds
        log_densities -= 0.5 * np.square(noises) + _HALF_LOG_2PI
        return np.tanh(samples), log_densities.sum(axis=1)


class DeterministicHead(_BoundedHead):
    """The head of a policy that computes one action for each observation, and explores around it (Lillicrap et al. 2016).

    The action is the tanh of the network's outputs, scaled to the bounds. To explore, the head adds normal noise before the
    scaling, with the standard deviation in the tensor ``noise_std``, and clips the result to the bounds. With the probability
    in the tensor ``epsilon``, the action is instead uniform within the bounds.

    The log-probability is the log-density of this mixture of a normal and a uniform distribution, without the clipping, also
    with ``explore=False``. A standard deviation below `LEAST_STD` counts as `LEAST_STD`. The log-probability is NaN if an
    output of the network is not finite.
    """

    def __init__(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        super().__init__(spec)
        tensors = spec.views(snapshot.flat)
        self._std, epsilon = max(float(tensors["noise_std"][0]), 0.0), min(max(float(tensors["epsilon"][0]), 0.0), 1.0)
        self._epsilon = epsilon
        self._log_uniform = (log(epsilon) if epsilon else -np.inf) - self._size * _LOG_2
        log_std = log(max(self._std, LEAST_STD))
        self._log_normal = (log1p(-epsilon) if epsilon < 1.0 else -np.inf) - self._size * (_HALF_LOG_2PI + log_std)

    def _draw(self, outputs: list[float], rng: RandomSource, explore: bool) -> tuple[list[float], float]:
        drawn, squares = [tanh(output) for output in outputs], 0.0
        if explore and self._epsilon and rng.uniform() < self._epsilon:
            for index, mean in enumerate(drawn):
                drawn[index] = 2.0 * rng.uniform() - 1.0
                squares += ((drawn[index] - mean) / max(self._std, LEAST_STD)) ** 2
        elif explore and self._std:
            std = self._std
            for index, noise in enumerate(rng.normals(len(drawn)).tolist()):
                drawn[index] = min(max(drawn[index] + std * noise, -1.0), 1.0)
                squares += noise * noise
        if not isfinite(sum(outputs)):
            return drawn, nan
        return drawn, self._mixed(squares)

    def _log_density(self, outputs: list[float], values: list[float]) -> float:
        std = max(self._std, LEAST_STD)
        return self._mixed(sum(((value - tanh(output)) / std) ** 2 for value, output in zip(values, outputs, strict=True)))

    def _mixed(self, squares: float) -> float:
        """Return the log-density of the mixture, from the squared distance to the mean in units of the standard deviation."""
        normal = self._log_normal - 0.5 * squares
        if not self._epsilon:
            return normal
        high, low = max(normal, self._log_uniform), min(normal, self._log_uniform)
        return high + log1p(exp(low - high))

    def _draw_rows(self, outputs: NDArray[Any], rng: RandomSource, explore: bool) -> tuple[NDArray[Any], NDArray[np.float64]]:
        means = np.tanh(outputs.astype(np.float64))
        noises = np.zeros(means.shape)
        values = means
        if explore:
            noises = rng.normals(means.size).reshape(means.shape).astype(np.float64)
            values = np.minimum(np.maximum(means + self._std * noises, -1.0), 1.0)
            noises *= self._std / max(self._std, LEAST_STD)
        if explore and self._epsilon:
            uniform = rng.uniforms(len(means)) < self._epsilon
            values[uniform] = 2.0 * rng.uniforms(means[uniform].shape) - 1.0
            noises[uniform] = (values[uniform] - means[uniform]) / max(self._std, LEAST_STD)
        normals = self._log_normal - 0.5 * np.square(noises).sum(axis=1)
        normals[~np.isfinite(outputs).all(axis=1)] = nan
        return values, np.logaddexp(normals, self._log_uniform) if self._epsilon else normals
