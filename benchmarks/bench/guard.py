"""Comparison of a new benchmark record with an earlier one, to find regressions.

Only ratios between this library and a baseline are compared, never times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["TOLERANCE", "ratios", "regressions"]

TOLERANCE = 1.25
"""Factor by which a new median may be worse than the worst earlier pair. Medians of five vary by 10 % on a busy machine."""


def ratios(results: Any, path: str = "") -> Iterator[tuple[str, float, float, bool]]:
    """Yield each ratio of this library to a baseline in the ``results`` of a benchmark record, as a tuple.

    The tuple has the path of the ratio, the median over all pairs, the worst pair, and True if a higher ratio is better.
    """
    if isinstance(results, dict):
        if "ratio_spread" in results:
            more = results.get("better") == "higher"
            yield path, results["ratio"], results["ratio_spread"][0 if more else 1], more
            return
        for key, value in results.items():
            yield from ratios(value, f"{path}/{key}" if path else key)
    elif isinstance(results, list):
        for row in results:
            if isinstance(row, dict) and {"pair", "dtype", "level", "ratio", "baseline"} <= set(row):
                share = row["ratio"] / row["baseline"]
                yield f"{path}/{row['dtype']} level {row['level']}", share, share, True


def regressions(earlier: Any, now: Any, tolerance: float = TOLERANCE) -> list[str]:
    """Return a sentence for each ratio that is missing now, or is worse than the worst earlier pair by more than `tolerance`.

    Args:
        earlier: The ``results`` of an earlier record, from a file in the repository.
        now: The ``results`` of a new measurement with the same benchmarks.
        tolerance: Factor above 1 by which a new ratio may be worse.
    """
    found = {path: median for path, median, _, _ in ratios(now)}
    out = []
    for path, median, worst, more in ratios(earlier):
        if path not in found:
            out.append(f"{path}: was {median:.2f} and is not measured now")
        elif found[path] < worst / tolerance if more else found[path] > worst * tolerance:
            out.append(f"{path}: {found[path]:.2f} of the baseline, was {median:.2f} (worst pair {worst:.2f})")
    return out
