"""The samplers of a trajectory buffer: pure functions from sampled rows (*anchors*) to rows of their trajectories."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.serving.data.ring import Ids

__all__ = ["SampledRows", "FutureSampler", "LatestSampler", "PrioritySampler", "Sampler", "SequenceSampler", "check_rows"]


def check_rows(rows: object, key: str) -> int:
    """Return a number of rows, which can be negative.

    Raises:
        ConfigError: If it is not an integer, or its size is 2^32 or more.
    """
    if isinstance(rows, bool) or not isinstance(rows, (int, np.integer)) or abs(int(rows)) >= 1 << 32:
        raise ConfigError(f"{key} must be a number of rows, not {rows!r:.60}", key=key)
    return int(rows)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, eq=False)
class SampledRows:
    """The rows that a sampler chose for ``B`` anchors (the rows that were drawn for a sample).

    Attributes:
        ids: Numbers of the rows, int64 ``[B]``, or ``[B, T]`` for ``T`` rows for each anchor. Each row is in its anchor's
            trajectory, also where the mask is False.
        mask: Bool of the same shape; False where the requested row is outside the trajectory and the nearest row replaces it.
        offset: ``[B]`` int64, the distance of each row ahead of its anchor, if the sampler reports it; else None.
    """

    ids: Ids
    mask: NDArray[np.bool_]
    offset: Ids | None = None


class Sampler(ABC):
    """The rule for one key of a sample; subclass it for a rule of your own.

    Args:
        source: Key, or path of a nested key, whose values it reads; None for the key that it is registered under.
    """

    def __init__(self, source: str | None = None) -> None:
        self.source = source

    @abstractmethod
    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """Choose rows.

        Args:
            anchors: ``[B]``, the sampled rows.
            begins: ``[B]``, the first held row of each anchor's trajectory.
            ends: ``[B]``, one past the last row of each anchor's trajectory.
            rng: Random generator.

        Returns:
            Rows with ``begins <= ids < ends``. Rows outside raise `ConfigError` in `TrajectoryBuffer.sample`.
        """


class LatestSampler(Sampler):
    """A sampler of the sampled row itself: ``[B, ...]``."""

    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """Return the anchors."""
        return SampledRows(anchors, np.ones(anchors.shape, np.bool_))


class SequenceSampler(Sampler):
    """A sampler of the rows `begin` to `end` (excluded) relative to the sampled one: ``[B, end - begin, ...]``.

    Where this window crosses the edge of the trajectory, the row at the edge is repeated and the mask is False. A
    ``sample_range`` that covers the window excludes this case.

    Args:
        squeeze: Omit the time axis, for a window of one row.
        begin: Offset of the first row, such as -3 for three rows before.
        end: Offset one past the last row.
        source: See `Sampler`.

    Raises:
        ConfigError: If the window is empty or not in whole rows, or `squeeze` is set and it has more than one row.
    """

    def __init__(self, squeeze: bool = False, begin: int = 0, end: int = 1, source: str | None = None) -> None:
        super().__init__(source)
        begin, end = check_rows(begin, "begin"), check_rows(end, "end")
        if end <= begin:
            raise ConfigError(f"a sequence with begin {begin} and end {end} is empty", key="end")
        if squeeze and end - begin != 1:
            raise ConfigError(
                f"a sequence of {end - begin} rows cannot be squeezed; use one row, or squeeze=False", key="squeeze"
            )
        self._squeeze, self._begin, self._end = squeeze, begin, end

    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """Return the windows."""
        ids = anchors[:, None] + np.arange(self._begin, self._end)
        inside = (ids >= begins[:, None]) & (ids < ends[:, None])
        ids = np.clip(ids, begins[:, None], ends[:, None] - 1)
        return SampledRows(ids[:, 0], inside[:, 0]) if self._squeeze else SampledRows(ids, inside)


class FutureSampler(Sampler):
    """A sampler of the sampled row or a later one of the same trajectory, for goals in hindsight.

    With ``source="next_observations"`` this is the strategy *future* of Andrychowicz et al. 2017, "Hindsight Experience
    Replay". The result has two entries, ``data`` and ``offset`` (the number of rows ahead), and so has the mask.

    Args:
        distribution: `UNIFORM` over the rows up to the trajectory's end; or `GEOMETRIC`, each row ``exp(-1 / lambda_)`` times
            as likely as the one before, truncated at the trajectory's end (the remaining probability does not go to its last
            row).
        max_future: Only rows fewer than this ahead; None for all.
        lambda_: For `GEOMETRIC`, the mean of the exponential that is rounded down, in rows. A discount ``g`` corresponds to
            ``lambda_ = -1 / log(g)``.
        source: See `Sampler`.

    Raises:
        ConfigError: If an argument is out of range.
    """

    class Distribution(Enum):
        """The distribution from which the row is drawn."""

        UNIFORM = 0
        GEOMETRIC = 1
        EXPONENTIAL = 1  # agentlace's name

    def __init__(
        self,
        distribution: Distribution = Distribution.UNIFORM,
        max_future: int | None = None,
        lambda_: float | None = None,
        source: str | None = None,
    ) -> None:
        super().__init__(source)
        if not isinstance(distribution, FutureSampler.Distribution):
            raise ConfigError(f"distribution must be a FutureSampler.Distribution, not {distribution!r:.60}", key="distribution")
        if max_future is not None and check_rows(max_future, "max_future") < 1:
            raise ConfigError(f"max_future must be at least 1, not {max_future}", key="max_future")
        geometric = distribution is FutureSampler.Distribution.GEOMETRIC
        if geometric != (lambda_ is not None) or (lambda_ is not None and not (_is_number(lambda_) and 0 < lambda_ < np.inf)):
            raise ConfigError(f"lambda_ is {lambda_!r:.60}; GEOMETRIC needs a positive number, UNIFORM needs None", key="lambda_")
        self._max_future, self._lambda = max_future, lambda_

    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """Return the sampled rows or later ones."""
        choices = ends - anchors
        if self._max_future is not None:
            choices = np.minimum(choices, self._max_future)
        if self._lambda is None:
            offset = rng.integers(0, choices)
        else:  # the exponential's inverse distribution function, cut off at `choices`
            below = -np.expm1(-choices / self._lambda)
            ahead = -self._lambda * np.log1p(-rng.random(anchors.shape) * below)
            offset = np.minimum(ahead.astype(np.int64), choices - 1)
        return SampledRows(anchors + offset, np.ones(anchors.shape, np.bool_), offset)


class PrioritySampler(Sampler):
    """A sampler that draws steps in proportion to ``(priority + epsilon) ** alpha``; at most one per config.

    Schaul et al. 2016 (arXiv 1511.05952, 2015), "Prioritized Experience Replay", the proportional variant. New rows have the
    largest priority so far; `TrajectoryBuffer.update_priorities` sets others. Register it under a key of its own. The result
    under this key has two entries: ``indices``, the numbers of the rows, and ``weights``, the importance weights ``(N P(i)) **
    -beta`` divided by the largest in the batch (so that N and the sum of the priorities cancel).

    Args:
        alpha: 0 for uniform, 1 for fully proportional. All configs of a buffer must have the same.
        beta: 0 for no correction, 1 for full correction.
        epsilon: Added to each priority, so that none is 0. All configs of a buffer must have the same.

    Raises:
        ConfigError: If an argument is out of range.
    """

    def __init__(self, alpha: float = 0.6, beta: float = 0.4, epsilon: float = 1e-6) -> None:
        super().__init__()
        for key, value, least in (("alpha", alpha, 0.0), ("beta", beta, 0.0), ("epsilon", epsilon, 1e-100)):
            if not (_is_number(value) and least <= value < np.inf):
                raise ConfigError(f"{key} must be finite and at least {least:g}, not {value!r:.60}", key=key)
        self.alpha, self.beta, self.epsilon = float(alpha), float(beta), float(epsilon)

    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """Return the anchors, which were drawn by priority."""
        return SampledRows(anchors, np.ones(anchors.shape, np.bool_))

    def weights(self, masses: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the importance weights ``[B]`` of rows with these masses; the largest is 1."""
        weights: NDArray[np.float32] = ((masses / masses.min(initial=np.inf)) ** -self.beta).astype(np.float32)
        return weights
