"""The histogram of the policy lags of training data: the numbers of versions by which they were older than the policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LAG_LIMITS = (0, 1, 2, 4, 8, 16, 32, 64)
"""The largest lag in each bucket but the last, which has no limit."""
_LIMITS = np.array(LAG_LIMITS, np.int64)


def count_lags(lags: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the steps in each bucket, int64 ``[len(LAG_LIMITS) + 1]``. ``steps[i]`` steps have the lag ``lags[i]``."""
    return np.bincount(np.searchsorted(_LIMITS, lags), weights=steps, minlength=len(LAG_LIMITS) + 1).astype(np.int64)


def lag_report(counts: Sequence[int]) -> dict[str, int]:
    """Return the number of steps by bucket, such as ``3-4``, without empty buckets."""
    firsts = (0, *(limit + 1 for limit in LAG_LIMITS))
    lasts = (*map(str, LAG_LIMITS), "")
    names = (str(first) if str(first) == last else f"{first}-{last}" for first, last in zip(firsts, lasts, strict=True))
    return {name: count for name, count in zip(names, counts, strict=True) if count}
