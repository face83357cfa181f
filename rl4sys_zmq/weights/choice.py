"""Which way will be short, before anything is coded: entropies of a sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.values import FlatWeights
from rl4sys_zmq.weights.bits import Integers
from rl4sys_zmq.weights.contexts import Groups
from rl4sys_zmq.weights.forms import Form
from rl4sys_zmq.weights.symbols import symbols_of

__all__ = ["WORTH", "estimated_bits", "prediction_helps"]

SAMPLE = 1 << 12
"""About how many elements are looked at."""
WORTH = 0.98
"""What needs the version before the base must come down to this share: an actor that has just joined has to fetch it."""

_CLASSES = 40
_CELL_BITS = 4.0
"""About what a table says of one symbol in one group."""


def prediction_helps(before: FlatWeights, base: FlatWeights, difference: Integers, form: Form) -> bool:
    """Whether differences are shorter less the last ones, without any groups."""
    step = 1 + base.size // SAMPLE
    some = form.select(np.arange(0, base.size, step))
    plain = difference[::step].astype(np.int64)
    predicted: Integers = (plain - some.integers(base[::step]) + some.integers(before[::step])).astype(form.word)
    return estimated_bits(predicted, None) < WORTH * estimated_bits(plain, None)


def estimated_bits(differences: Integers, groups: Groups | None) -> float:
    """About how many bits the differences take when each group, or the whole, has a code of its own."""
    step = 1 + differences.size // SAMPLE
    classes = symbols_of(np.abs(differences[::step].astype(np.int64)), 0)
    keys = classes.astype(np.intp)
    if groups is not None:
        keys += groups.labels[::step].astype(np.intp) * _CLASSES
    cells = np.bincount(keys)
    members = np.add.reduceat(cells, np.arange(0, cells.size, _CLASSES))
    entropy = _xlogx(members) - _xlogx(cells)
    # The entropy of a sample is too small, by about 1 / (2 ln 2) bits for each cell.
    return step * (entropy + float(classes.sum())) + np.count_nonzero(cells) * (_CELL_BITS + 0.72 * step)


def _xlogx(counts: NDArray[np.intp]) -> float:
    some = counts[counts > 0].astype(np.float64)
    return float((some * np.log2(some)).sum())
