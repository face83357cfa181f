"""Which rows belong to a sample: anchors are mapped to rows of their own trajectories, by pure functions of numbers."""

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
    """A number of rows, or minus one.

    Raises:
        ConfigError: when it is no integer, or one beyond all buffers.
    """
    if isinstance(rows, bool) or not isinstance(rows, (int, np.integer)) or abs(int(rows)) >= 1 << 32:
        raise ConfigError(f"{key} is a number of rows, not {rows!r:.60}", key=key)
    return int(rows)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, eq=False)
class SampledRows:
    """What a sampler chose for ``B`` anchors.

    Attributes:
        ids: ``[B]`` or ``[B, T]`` int64, rows of the anchors' own trajectories, also where the mask is False.
        mask: bool of the same shape, False where the row asked for lies outside the trajectory and the nearest one stands in.
        offset: ``[B]`` int64, how far ahead of its anchor each row is, for a sampler whose result says so; else None.
    """

    ids: Ids
    mask: NDArray[np.bool_]
    offset: Ids | None = None


class Sampler(ABC):
    """One key of a sample; subclass it for a rule of your own.

    Args:
        source: the key, or the path of a nested one, whose values it takes; None for the key that it is registered under.
    """

    def __init__(self, source: str | None = None) -> None:
        self.source = source

    @abstractmethod
    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """Chooses rows.

        Args:
            anchors: ``[B]``, the rows that were sampled.
            begins: ``[B]``, the first row of each one's trajectory that is held.
            ends: ``[B]``, one more than the last.
            rng: to draw from.

        Returns:
            Rows within ``begins <= ids < ends``; others are an error of the sampler, and are refused.
        """


class LatestSampler(Sampler):
    """The sampled row itself: ``[B, ...]``."""

    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """The anchors."""
        return SampledRows(anchors, np.ones(anchors.shape, np.bool_))


class SequenceSampler(Sampler):
    """The rows from `begin` to before `end`, counted from the sampled one: ``[B, end - begin, ...]``.

    Where that reaches over an edge of the trajectory, the row at the edge is repeated and the mask is False. A ``sample_range``
    that covers the window leaves no such case.

    Args:
        squeeze: leave the time axis out; for a window of one row.
        begin: of the first row, such as -3 for three before.
        end: one more than that of the last row.
        source: see `Sampler`.

    Raises:
        ConfigError: when the window is empty, not of whole rows, or squeezed and longer than a row.
    """

    def __init__(self, squeeze: bool = False, begin: int = 0, end: int = 1, source: str | None = None) -> None:
        super().__init__(source)
        begin, end = check_rows(begin, "begin"), check_rows(end, "end")
        if end <= begin:
            raise ConfigError(f"a sequence from {begin} to before {end} is empty", key="end")
        if squeeze and end - begin != 1:
            raise ConfigError(f"a sequence of {end - begin} rows can't be squeezed to one", key="squeeze")
        self._squeeze, self._begin, self._end = squeeze, begin, end

    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """The windows."""
        ids = anchors[:, None] + np.arange(self._begin, self._end)
        inside = (ids >= begins[:, None]) & (ids < ends[:, None])
        ids = np.clip(ids, begins[:, None], ends[:, None] - 1)
        return SampledRows(ids[:, 0], inside[:, 0]) if self._squeeze else SampledRows(ids, inside)


class FutureSampler(Sampler):
    """A row of the same trajectory, the sampled one or a later one: goals in hindsight.

    With ``source="next_observations"`` this is the strategy *future* of Andrychowicz et al. 2017, "Hindsight Experience Replay".
    The result has two entries, ``data`` and ``offset`` (how many rows ahead), and so has the mask.

    Args:
        distribution: `UNIFORM` over the rows to the trajectory's end; or `GEOMETRIC`, each row ``exp(-1 / lambda_)`` times as
            likely as the one before, cut off at the trajectory's end (and not piled up on its last row).
        max_future: only rows fewer than this ahead; None for all.
        lambda_: of `GEOMETRIC`: the mean of the exponential that is rounded down, in rows. A discount ``g`` is
            ``lambda_ = -1 / log(g)``.
        source: see `Sampler`.

    Raises:
        ConfigError: when an argument is out of its range.
    """

    class Distribution(Enum):
        """How the row is drawn."""

        UNIFORM = 0
        GEOMETRIC = 1
        EXPONENTIAL = 1  # agentlace's name of it

    def __init__(
        self,
        distribution: Distribution = Distribution.UNIFORM,
        max_future: int | None = None,
        lambda_: float | None = None,
        source: str | None = None,
    ) -> None:
        super().__init__(source)
        if not isinstance(distribution, FutureSampler.Distribution):
            raise ConfigError(f"a FutureSampler.Distribution, not {distribution!r:.60}", key="distribution")
        if max_future is not None and check_rows(max_future, "max_future") < 1:
            raise ConfigError(f"max_future is at least 1, not {max_future}", key="max_future")
        geometric = distribution is FutureSampler.Distribution.GEOMETRIC
        if geometric != (lambda_ is not None) or (lambda_ is not None and not (_is_number(lambda_) and 0 < lambda_ < np.inf)):
            raise ConfigError(f"GEOMETRIC needs a positive lambda_, UNIFORM has none, not {lambda_!r:.60}", key="lambda_")
        self._max_future, self._lambda = max_future, lambda_

    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """The later rows."""
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
    """Has rows sampled in proportion to ``(priority + epsilon) ** alpha``; one in a config, under a key of its own.

    Schaul et al. 2016 (arXiv 1511.05952, 2015), "Prioritized Experience Replay", the proportional variant. New rows have the
    greatest priority so far; `TrajectoryBuffer.update_priorities` sets others. The result under its key has two entries:
    ``indices``, the numbers of the rows, and ``weights``, the importance weights ``(N P(i)) ** -beta`` over their largest in the
    batch (so that N and the sum of the priorities cancel).

    Args:
        alpha: 0 for uniform, 1 for fully proportional. All configs of a buffer have the same.
        beta: 0 for no correction, 1 for all of it.
        epsilon: added to a priority, so that none is 0. All configs of a buffer have the same.

    Raises:
        ConfigError: when an argument is out of its range.
    """

    def __init__(self, alpha: float = 0.6, beta: float = 0.4, epsilon: float = 1e-6) -> None:
        super().__init__()
        for key, value, least in (("alpha", alpha, 0.0), ("beta", beta, 0.0), ("epsilon", epsilon, 1e-100)):
            if not (_is_number(value) and least <= value < np.inf):
                raise ConfigError(f"{key} is finite and at least {least:g}, not {value!r:.60}", key=key)
        self.alpha, self.beta, self.epsilon = float(alpha), float(beta), float(epsilon)

    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """The anchors, which were drawn by priority."""
        return SampledRows(anchors, np.ones(anchors.shape, np.bool_))

    def weights(self, masses: NDArray[np.float64]) -> NDArray[np.float32]:
        """The importance weights ``[B]`` of rows with these masses ``(priority + epsilon) ** alpha``; the largest is 1."""
        weights: NDArray[np.float32] = ((masses / masses.min(initial=np.inf)) ** -self.beta).astype(np.float32)
        return weights
