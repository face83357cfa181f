"""Samplers for `TrajectoryBuffer.sample`. A sampler chooses the steps whose values one key of a sample has.

The buffer first draws steps at random, the *anchors*. A sampler then maps each anchor to steps of the same trajectory, for
example the anchor itself, a window around the anchor, or a later step. A *row* is the number of a step.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.config.options import check_value, instance_of, integer, number, optional
from rl4sys_zmq.errors import ConfigError, config_error
from rl4sys_zmq.replay.priorities import PriorityOptions, importance_weights
from rl4sys_zmq.replay.ring import Ids

MAX_ROWS = (1 << 32) - 1
ROWS = integer(-MAX_ROWS, MAX_ROWS)
"""A number of rows, which can be negative."""


def require_numpy(use_jax: object, device: object = None) -> None:
    """Raise `ConfigError` if an argument asks for arrays of JAX, which agentlace can use. The steps are numpy arrays."""
    for key, value in (("use_jax", use_jax), ("device", device)):
        if value is not None and value is not False:
            text = f"{key} is {value!r:.60}, and the steps are numpy arrays; omit it, and copy each sample with jax.device_put"
            raise ConfigError(text, key=key)


@dataclass(frozen=True, slots=True, eq=False)
class SampledRows:
    """The rows that a sampler chose for ``B`` drawn steps (*anchors*).

    Attributes:
        ids: Numbers of the rows, int64 ``[B]``, or ``[B, T]`` for ``T`` rows for each anchor. Each row is in the trajectory of
            its anchor, also where `mask` is False.
        mask: Bool array of the same shape. False where the requested row is outside the trajectory, and the nearest row of the
            trajectory replaces it.
        offset: Int64 ``[B]``, the number of rows between the anchor and the chosen row. None if the sampler does not report it.
    """

    ids: Ids
    mask: NDArray[np.bool_]
    offset: Ids | None = None


class Sampler(ABC):
    """The base class of samplers. A sampler chooses the rows for one key of a sample. Derive a sampler of your own from it.

    Args:
        source: The key of the stored steps whose values this sampler reads, or the path of a nested key. None: the same key as in
            the sample. A sampler that is registered for ``"rewards"`` then reads ``"rewards"``.
        use_jax: Must be False, which is agentlace's default.

    Raises:
        ConfigError: If `use_jax` is given.
    """

    def __init__(self, source: str | None = None, use_jax: bool = False) -> None:
        require_numpy(use_jax)
        self.source = source

    @abstractmethod
    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """Choose one row or ``T`` rows of the sample for each of ``B`` drawn rows (*anchors*), from the anchor's trajectory.

        Args:
            anchors: ``[B]``, the numbers of the rows that were drawn.
            begins: ``[B]``, the first stored row of each anchor's trajectory.
            ends: ``[B]``, the last row of each anchor's trajectory, plus one.
            rng: Random generator of the buffer.

        Returns:
            The row numbers ``ids``, ``[B]`` or ``[B, T]``, and a mask. For a number outside of ``begins <= ids < ends``,
            `TrajectoryBuffer.sample` raises `ConfigError`.
        """


class LatestSampler(Sampler):
    """A sampler that returns each drawn step itself. With a batch of ``B`` steps, values have the shape ``[B, ...]``."""

    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """Return the anchors."""
        return SampledRows(anchors, np.ones(anchors.shape, np.bool_))


class SequenceSampler(Sampler):
    """A sampler that returns a window of consecutive steps around each drawn step.

    The window has the offsets `begin` to ``end - 1`` from the drawn row. Values in the sample have the shape ``[B, end - begin,
    ...]``. If the window reaches beyond the trajectory, the first or last row of the trajectory is repeated, and the mask is
    False there. To exclude this case, register the sampler with a ``sample_range`` that covers the window.

    Args:
        squeeze: True to omit the time axis. The window must then have one row.
        begin: Offset of the first row from the drawn row, such as -3.
        end: Offset of the last row, plus one.
        source: Key of the stored steps to read, as in `Sampler`.

    Raises:
        ConfigError: If the window is empty, an offset is not an integer, or `squeeze` is True for more than one row.
    """

    def __init__(self, squeeze: bool = False, begin: int = 0, end: int = 1, source: str | None = None) -> None:
        super().__init__(source)
        begin, end = check_value("begin", begin, ROWS), check_value("end", end, ROWS)
        if end <= begin:
            raise ConfigError(f"a sequence with begin {begin} and end {end} is empty", key="end")
        if squeeze and end - begin != 1:
            raise config_error("squeeze", f"a sequence of {end - begin} rows cannot be squeezed; use one row, or squeeze=False")
        self._squeeze, self._begin, self._end = squeeze, begin, end

    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """Return the rows of the window around each anchor."""
        ids = anchors[:, None] + np.arange(self._begin, self._end)
        inside = (ids >= begins[:, None]) & (ids < ends[:, None])
        ids = np.clip(ids, begins[:, None], ends[:, None] - 1)
        return SampledRows(ids[:, 0], inside[:, 0]) if self._squeeze else SampledRows(ids, inside)


class FutureSampler(Sampler):
    """A sampler that returns the drawn step or a random later one of its trajectory, for hindsight experience replay.

    With ``source="next_observations"`` this is the strategy *future* of Andrychowicz et al. 2017, "Hindsight Experience
    Replay". In a sample, the value of the key that has this sampler is a dict: ``data`` has the values, and ``offset`` the
    numbers of rows between the drawn rows and the returned ones. The mask of the key is a dict with the same two entries.

    Args:
        distribution: `UNIFORM`: all rows up to the end of the trajectory are equally likely. `GEOMETRIC`: each row is
            ``exp(-1 / lambda_)`` times as likely as the row before; the distribution is cut off at the end of the trajectory and
            normalized.
        max_future: The offset is less than this number. None: no limit.
        lambda_: Parameter of `GEOMETRIC`, in rows: the mean of an exponential distribution whose value is rounded down. A
            discount ``g`` corresponds to ``lambda_ = -1 / log(g)``.
        source: Key of the stored steps to read, as in `Sampler`.

    Raises:
        ConfigError: If an argument is out of range.
    """

    class Distribution(Enum):
        """The distribution of the number of steps from the drawn step to the returned later step."""

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
        check_value("distribution", distribution, instance_of(FutureSampler.Distribution))
        self._max_future = check_value("max_future", max_future, optional(integer(1, MAX_ROWS)))
        self._lambda = check_value("lambda_", lambda_, optional(number(0, sys.float_info.max, above=True)))
        if (distribution is FutureSampler.Distribution.UNIFORM) != (lambda_ is None):
            raise ConfigError(f"lambda_ is {lambda_!r:.60}; GEOMETRIC needs a positive number, UNIFORM needs None", key="lambda_")

    def draw(self, anchors: Ids, begins: Ids, ends: Ids, rng: np.random.Generator) -> SampledRows:
        """Return, for each anchor, a random row at or after it in the same trajectory, and the distance between both."""
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


class PrioritySampler(LatestSampler):
    """A sampler that makes the buffer draw steps by priority, in proportion to ``(priority + epsilon) ** alpha``.

    Source: Schaul et al. 2016 (arXiv 1511.05952, 2015), "Prioritized Experience Replay", the proportional variant. A new row has
    the largest priority so far; `TrajectoryBuffer.update_priorities` sets other priorities.

    A sampling configuration can have at most one such sampler, under a separate key. In the sample, this key has two entries:
    ``indices``, the numbers of the rows, and ``weights``, the importance weights ``(N P(i)) ** -beta``, divided by the largest
    weight in the batch. ``N`` is the number of steps, and ``P(i)`` the probability to draw step ``i``.

    Args:
        alpha: Exponent. 0: uniform sampling. 1: fully proportional. It must be the same in all configurations of a buffer.
        beta: Correction by importance weights. 0: no correction. 1: full correction.
        epsilon: Constant added to each priority, so that each is above 0. It must be the same in all configurations of a buffer.

    Raises:
        ConfigError: If an argument is out of range.
    """

    def __init__(self, alpha: float = 0.6, beta: float = 0.4, epsilon: float = 1e-6) -> None:
        super().__init__()
        alpha, self.beta = check_value("alpha", alpha, number(0)), check_value("beta", beta, number(0))
        self.options = PriorityOptions(alpha=alpha, epsilon=check_value("epsilon", epsilon, number(1e-100)))

    def weights(self, masses: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the importance weights ``[B]`` of a batch of drawn steps. The largest weight is 1.

        `masses` has ``(priority + epsilon) ** alpha`` of each drawn step.
        """
        return importance_weights(masses, self.beta)
