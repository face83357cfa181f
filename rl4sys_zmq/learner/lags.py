"""The histogram of the policy lags of steps that were trained on."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

LAG_LIMITS = (0, 1, 2, 4, 8, 16, 32, 64)
"""The largest lag in each bucket but the last, which has no limit."""


def count_lags(steps: Mapping[int, int]) -> list[int]:
    """Return the number of steps in each bucket of `LAG_LIMITS`. `steps` has the number of steps for each lag."""
    counts = [0] * (len(LAG_LIMITS) + 1)
    for lag, number in steps.items():
        counts[bisect.bisect_left(LAG_LIMITS, lag)] += number
    return counts


def lag_report(counts: Sequence[int]) -> dict[str, int]:
    """Return the results of `count_lags` by the range of lags, such as ``3-4``, without those that are 0."""
    firsts = (0, *(limit + 1 for limit in LAG_LIMITS))
    lasts = (*map(str, LAG_LIMITS), "")
    names = (str(first) if str(first) == last else f"{first}-{last}" for first, last in zip(firsts, lasts, strict=True))
    return {name: count for name, count in zip(names, counts, strict=True) if count}
