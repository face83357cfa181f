"""Estimates of the encoded size of a diff, from a sample of its elements. They help to choose the form of the diff."""

from __future__ import annotations

import numpy as np

from rl4sys_zmq.values import FlatWeights
from rl4sys_zmq.weights.bits import Integers
from rl4sys_zmq.weights.forms import IntegerMapping
from rl4sys_zmq.weights.symbols import symbols_of

__all__ = ["estimated_bits", "prediction_helps"]

SAMPLE, QUICK_SAMPLE = 1 << 12, 1 << 10
"""The approximate size of the sample in `estimated_bits` and in `prediction_helps`, in elements."""
PREDICTION_GAIN = 0.98
"""The largest ratio of the sizes of a diff with prediction and without, for which prediction is used.

Prediction must save some bytes, because a new actor then needs one more version before it can apply the diff.
"""

_CELL_BITS = 4.0
"""The approximate size, in bits, of the table entry for one symbol."""


def prediction_helps(before: FlatWeights, base: FlatWeights, new: FlatWeights, form: IntegerMapping) -> bool:
    """Estimate if the byte planes of a diff get shorter when the last difference is subtracted from the new one.

    Differences are those of all weights between two policy versions. Byte planes are the lowest bytes of all differences, then
    the second bytes, and so on. Return True if the estimated size is below `PREDICTION_GAIN` times the size without this.

    Args:
        before: The state (all float32 weights of a policy version) before the base.
        base: The state to which the diff applies.
        new: The state that results.
        form: Mapping of the weights to integers, with which differences are computed.
    """
    step = 1 + base.size // QUICK_SAMPLE
    some = form.select(np.arange(0, base.size, step)) if step > 1 else form
    now, was, last = (some.integers(flat[::step]) for flat in (new, base, before))
    plain: Integers = (now - was).astype(form.word, copy=False)
    predicted: Integers = plain - (was - last).astype(form.word, copy=False)
    return _magnitude_bits(predicted) < PREDICTION_GAIN * _magnitude_bits(plain)


def _magnitude_bits(words: Integers) -> float:
    """Return the approximate size of integers in bits, in a code whose lengths depend on the magnitudes alone."""
    magnitudes = np.abs(words.astype(np.float32))
    magnitudes += 1
    return float(np.log2(magnitudes, out=magnitudes).sum()) + 2.0 * words.size


def estimated_bits(differences: Integers) -> float:
    """Estimate the encoded size of the differences of two states as integers, in bits, from a sample."""
    step = 1 + differences.size // SAMPLE
    classes = symbols_of(np.abs(differences[::step].astype(np.int64)), 0)
    counts = np.bincount(classes)
    some = counts[counts > 0].astype(np.float64)
    entropy = float(classes.size * np.log2(classes.size) - (some * np.log2(some)).sum())
    # The entropy of a sample is too low, by about 1 / (2 ln 2) bits for each symbol.
    return step * (entropy + float(classes.sum())) + some.size * (_CELL_BITS + 0.72 * step)
