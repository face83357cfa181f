"""Alternating measurements of this library ("ours") and a reference (the "baseline").

The speed of a machine changes over time, so only the ratios within a pair are meaningful.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

__all__ = ["PairedFigures", "MedianRange", "measure_pairs", "spread"]

LEAST_PAIRS = 5


@dataclass(frozen=True, slots=True)
class MedianRange:
    """The median, the lowest and the highest of several figures."""

    median: float
    least: float
    greatest: float

    def text(self, digits: int = 2) -> str:
        """Return the text for a table: ``median [lowest, highest]``."""
        return f"{self.median:.{digits}f} [{self.least:.{digits}f}, {self.greatest:.{digits}f}]"


def spread(figures: Sequence[float]) -> MedianRange:
    """Return the median, the lowest and the highest of the given figures, of which there must be at least one."""
    return MedianRange(median(figures), min(figures), max(figures))


@dataclass(frozen=True, slots=True)
class PairedFigures:
    """The figures of this library and of a reference implementation (the baseline), in pairs.

    Attributes:
        ours: Figures of this library.
        baseline: Figures of the baseline. ``baseline[i]`` was measured directly before or after ``ours[i]``.
    """

    ours: tuple[float, ...]
    baseline: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """For each pair, the figure of this library divided by that of the baseline."""
        return tuple(a / b for a, b in zip(self.ours, self.baseline, strict=True))

    @property
    def differences(self) -> tuple[float, ...]:
        """For each pair, the figure of this library minus that of the baseline."""
        return tuple(a - b for a, b in zip(self.ours, self.baseline, strict=True))

    def record(self) -> dict[str, Any]:
        """Return all figures, with the medians and the ratios, as JSON values."""
        ratio = spread(self.ratios)
        return {
            "ours": spread(self.ours).median,
            "baseline": spread(self.baseline).median,
            "ratio": ratio.median,
            "ratio_spread": [ratio.least, ratio.greatest],
            "pairs": [[a, b] for a, b in zip(self.ours, self.baseline, strict=True)],
        }


def measure_pairs(
    ours: Callable[[], float], baseline: Callable[[], float], count: int = LEAST_PAIRS, *, warm: bool = True
) -> PairedFigures:
    """Measure this library and a reference implementation (the baseline) alternately, `count` times each.

    The order within a pair changes from pair to pair.

    Args:
        ours: Function that makes one measurement of this library and returns the figure.
        baseline: Function that makes one measurement of the baseline and returns the figure.
        count: Number of pairs.
        warm: True to call each function once before, without using the figure.
    """
    if warm:
        ours()
        baseline()
    figures = []
    for number in range(count):
        if number % 2:
            theirs = baseline()
            figures.append((ours(), theirs))
        else:
            mine = ours()
            figures.append((mine, baseline()))
    return PairedFigures(tuple(f[0] for f in figures), tuple(f[1] for f in figures))
