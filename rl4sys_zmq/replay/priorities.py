"""Random draws of a buffer's rows, in proportion to priorities (Schaul et al. 2016, the proportional variant)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, DataError
from rl4sys_zmq.replay.ring import Ids, RowRingBuffer
from rl4sys_zmq.replay.spans import DrawableSteps


class Draws(Protocol):
    """A source of the random numbers that a replay needs, such as a `numpy.random.Generator`.

    A replay has no random state of its own. Its user passes the source with each draw, and saves the state of the source.
    """

    def integers(self, low: int, high: int, size: int, /) -> NDArray[np.int64]:
        """Return random integers from `low` to ``high - 1``, int64 ``[size]``."""

    def random(self, size: int, /) -> NDArray[np.float64]:
        """Return random numbers in ``[0, 1)``, float64 ``[size]``."""


_CHILDREN = 64
"""Children of a node. A wide tree needs few numpy calls, which take most of the time of small batches."""
_TOP = 4096
"""Largest number of nodes in the first level, which has no parents."""


class SumTree:
    """A tree of sums, to draw one of `size` indices (*slots*) in proportion to weights (*masses*), which are 0 at first.

    Each level of the tree is an array. Node ``i`` of a level is the sum of the nodes ``64 i`` to ``64 i + 63`` of the next
    level. The last level has the masses. A node is always recomputed from its children, so rounding errors do not accumulate,
    and the sums depend only on the masses.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        nodes = -(-size // _CHILDREN)
        self._below = [np.zeros((nodes, _CHILDREN))]  # the levels below the first, each ``[nodes above, 64]``
        self._masses = self._below[0].reshape(-1)
        while nodes > _TOP:
            nodes = -(-nodes // _CHILDREN)
            self._below.insert(0, np.zeros((nodes, _CHILDREN)))
        self._top = np.zeros(nodes)
        self._ends: NDArray[np.float64] | None = None  # cumulated sums of the first level, while they are valid

    @property
    def total(self) -> float:
        return float(self._cumulated()[-1])

    def masses(self) -> NDArray[np.float64]:
        """Return a copy of the masses of all slots, ``[size]``."""
        return self._masses[: self._size].copy()

    def __getitem__(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        masses: NDArray[np.float64] = self._masses[slots]
        return masses

    def set(self, slots: NDArray[np.int64], masses: NDArray[np.float64] | float) -> None:
        """Set the masses of slots, finite and at least 0. If a slot is repeated, its last mass is used."""
        if not slots.size:
            return
        self._ends = None
        self._masses[slots] = masses
        nodes = slots
        for level in range(len(self._below) - 1, -1, -1):
            nodes = np.unique(nodes // _CHILDREN)
            above = self._below[level - 1].reshape(-1) if level else self._top
            above[nodes] = self._below[level][nodes].sum(axis=1)

    def find(self, marks: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return a slot for each number in `marks`, from 0 to the sum of all masses: the slot whose part of the sum contains it.

        A slot of mass 0 is never returned, unless all masses are 0.
        """
        ends = self._cumulated()
        nodes: NDArray[np.int64] = np.minimum(np.searchsorted(ends, marks, side="right"), _last_positive(self._top[None])[0])
        rest = np.maximum(marks - (ends[nodes] - self._top[nodes]), 0.0)
        rows = np.arange(len(marks))
        for level in self._below:
            children = level[nodes]
            sums = children.cumsum(axis=1)
            chosen = (sums > rest[:, None]).argmax(axis=1)
            beyond = np.flatnonzero(rest >= sums[:, -1])  # rounding can leave a rest beyond the last mass
            if beyond.size:
                chosen[beyond] = _last_positive(children[beyond])
            rest = np.maximum(rest - (sums[rows, chosen] - children[rows, chosen]), 0.0)
            nodes = nodes * _CHILDREN + chosen
        return nodes

    def _cumulated(self) -> NDArray[np.float64]:
        if self._ends is None:
            self._ends = self._top.cumsum()
        return self._ends


def _last_positive(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the last positive number in each row; the last index if there is none."""
    last: NDArray[np.int64] = rows.shape[1] - 1 - (rows[:, ::-1] > 0).argmax(axis=1)
    return last


_ROUNDS = 8
"""Number of attempts to draw allowed rows, before the missing ones are drawn from a list of all allowed rows."""
_LEAST = 1e-300
"""Smallest mass of a row, above 0 so that every row can be drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityOptions:
    """The options of prioritized sampling. A row is drawn in proportion to ``(priority + epsilon) ** alpha``.

    Attributes:
        alpha: Exponent. 0: uniform sampling. 1: fully proportional.
        epsilon: Constant that is added to each priority, so that each is above 0.
    """

    alpha: float = 0.6
    epsilon: float = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class PrioritiesCopy:
    """A copy of all priorities, to which `RowPriorities.restore` can return.

    Attributes:
        masses: Mass of each index of the ring, float64 ``[capacity]``.
        greatest: Largest mass until then.
        end: Number of the first row without a mass.
        lifetime: Number of times that the ring was emptied.
    """

    masses: NDArray[np.float64]
    greatest: float
    end: int
    lifetime: int


def importance_weights(masses: NDArray[np.float64], beta: float) -> NDArray[np.float32]:
    """Return the importance weights ``(N P(i)) ** -beta`` of drawn rows, divided by the largest of these weights.

    Source: Schaul et al. 2016, section 3.4. ``P(i)`` is the mass of row ``i`` divided by the sum of all masses. That sum and
    the number of rows ``N`` cancel out.

    Args:
        masses: ``[B]``, ``(priority + epsilon) ** alpha`` of each drawn row.
        beta: Amount of correction, from 0 (none) to 1 (full).
    """
    weights: NDArray[np.float32] = ((masses / masses.min(initial=np.inf)) ** -beta).astype(np.float32)
    return weights


class RowPriorities:
    """The priorities of the rows in a ring buffer, with random draws of rows.

    A row is drawn in proportion to its *mass*, ``(priority + epsilon) ** alpha``. A new row gets the largest mass so far.
    """

    def __init__(self, ring: RowRingBuffer, options: PriorityOptions) -> None:
        self.options = options
        self._ring = ring
        self._tree = SumTree(ring.capacity)
        self._greatest = 1.0
        self._known = 0  # the number of the first row without a mass
        self._lifetime = 0

    def masses(self, ids: Ids) -> NDArray[np.float64]:
        """Return the mass of each of these rows, which must still be in the ring."""
        self._add_new()
        return self._tree[ids % self._ring.capacity]

    def update(self, ids: NDArray[Any], priorities: NDArray[Any]) -> int:
        """Set the priorities of rows, and ignore those that were overwritten. Return the number of priorities that were set."""
        ring = self._ring
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise DataError("indices", f"shape {ids.shape} and dtype {ids.dtype}, not one dimension of integers")
        if priorities.shape != ids.shape:
            raise DataError("priorities", f"shape {priorities.shape}, for indices of shape {ids.shape}")
        if ids.size and not 0 <= ids.min() <= ids.max() < ring.end:
            raise DataError("indices", f"from {ids.min()} to {ids.max()}; the rows so far are 0 to {ring.end - 1}")
        alpha, values = self.options.alpha, priorities.astype(np.float64)
        if not np.all((values >= 0) & np.isfinite(values)):
            raise DataError("priorities", "one of them is negative or not finite")
        with np.errstate(over="ignore", under="ignore"):
            masses = np.maximum((values + self.options.epsilon) ** alpha, _LEAST)
            most = masses.max(initial=0.0) * ring.capacity
        if not np.isfinite(most):
            raise DataError("priorities", f"{values.max():g} is too large for alpha {alpha:g}")
        self._add_new()
        held = ids >= ring.begin
        self._tree.set(ids[held].astype(np.int64) % ring.capacity, masses[held])
        self._greatest = max(self._greatest, float(masses[held].max(initial=0.0)))
        return int(np.count_nonzero(held))

    def draw(self, count: int, draws: Draws, allowed: DrawableSteps | None = None) -> Ids:
        """Draw `count` rows in proportion to their masses, with replacement. If `allowed` refuses a row, another row is drawn."""
        self._add_new()
        drawn: list[Ids] = []
        missing = count
        for _ in range(_ROUNDS):
            ids = self._draw_any(missing, draws)
            if allowed is None:
                return ids
            ids = ids[allowed.allow(ids)]
            drawn.append(ids)
            missing -= len(ids)
            if not missing:
                return np.concatenate(drawn)
        assert allowed is not None
        held = np.arange(self._ring.begin, self._ring.end)
        held = held[allowed.allow(held)]
        ends = np.cumsum(self._tree[held % self._ring.capacity])
        places = np.searchsorted(ends, draws.random(missing) * ends[-1], side="right")
        return np.concatenate([*drawn, held[np.minimum(places, len(held) - 1)]])

    def keep(self) -> PrioritiesCopy:
        self._add_new()
        return PrioritiesCopy(self._tree.masses(), self._greatest, self._known, self._lifetime)

    def restore(self, kept: PrioritiesCopy) -> None:
        """Return to the priorities that `keep` has copied. Rows added since then get the largest mass of that time."""
        ring = self._ring
        old = range(ring.begin, min(kept.end, ring.end) if kept.lifetime == self._lifetime else ring.begin)
        self._greatest = kept.greatest
        held = np.arange(ring.begin, ring.end)
        masses = np.full(len(held), kept.greatest)
        masses[: len(old)] = kept.masses[held[: len(old)] % ring.capacity]
        self._tree.set(held % ring.capacity, masses)
        self._known = ring.end

    def overwrite(self, places: Ids, sources: Ids) -> None:
        """Copy the masses at the indices `sources` of the ring to the indices `places`."""
        self._add_new()
        self._tree.set(places, self._tree[sources])

    def drop(self, ids: Ids) -> None:
        """Set the masses of rows to 0 that the ring has dropped, so that they are not drawn."""
        self._tree.set(ids % self._ring.capacity, 0.0)

    def clear(self) -> None:
        """Forget all rows, after the ring was emptied. The largest mass so far stays."""
        self._tree = SumTree(self._ring.capacity)
        self._known = self._ring.end
        self._lifetime += 1

    def state(self) -> dict[str, Any]:
        """Return a copy of the masses in the order of the rows, of the largest mass so far, and of the options."""
        held = np.arange(self._ring.begin, self._ring.end)
        return {"masses": self.masses(held), "greatest": self._greatest, **asdict(self.options)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a `state` of the same rows. With other options, compute the masses anew."""
        held, masses = np.arange(self._ring.begin, self._ring.end), np.asarray(state["masses"], np.float64)
        if masses.shape != held.shape or not np.all((masses > 0) & np.isfinite(masses)):
            raise ConfigError(
                f"the replay state has {masses.shape} priorities, all positive: {bool(np.all(masses > 0))}; expected "
                f"{len(held)} positive ones",
                key="prioritised",
            )
        old = PriorityOptions(alpha=float(state["alpha"]), epsilon=float(state["epsilon"]))
        self.clear()
        self._tree.set(held % self._ring.capacity, self._converted(masses, old))
        self._greatest = float(self._converted(np.array([float(state["greatest"])]), old)[0])

    def _converted(self, masses: NDArray[np.float64], old: PriorityOptions) -> NDArray[np.float64]:
        """Convert masses from the options `old` to the present ones. With an old alpha of 0, all priorities count as 1."""
        new = self.options
        if new == old:
            return masses
        most = np.finfo(np.float64).max / self._ring.capacity  # the sum of all masses stays finite
        with np.errstate(over="ignore", under="ignore"):
            priorities = np.maximum(masses ** (1.0 / old.alpha) - old.epsilon, 0.0) if old.alpha else np.ones_like(masses)
            return np.clip((priorities + new.epsilon) ** new.alpha, _LEAST, most)

    def _draw_any(self, count: int, draws: Draws) -> Ids:
        slots = self._tree.find(draws.random(count) * self._tree.total)
        begin = self._ring.begin
        return np.minimum(begin + (slots - begin) % self._ring.capacity, self._ring.end - 1)

    def _add_new(self) -> None:
        """Give the largest mass so far to rows that were added to the ring since the last call."""
        if self._known < self._ring.end:
            ids = np.arange(max(self._known, self._ring.begin), self._ring.end)
            self._tree.set(ids % self._ring.capacity, self._greatest)
            self._known = self._ring.end
