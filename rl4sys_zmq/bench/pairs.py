"""Paired measurements, taken in turn. On a machine that drifts, only their ratios are meaningful."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

__all__ = ["PairedFigures", "Spread", "measure_pairs", "spread"]

LEAST_PAIRS = 5


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some figures, with the lowest and the highest."""

    median: float
    least: float
    greatest: float

    def text(self, digits: int = 2) -> str:
        """Return the text for a table: ``median [lowest, highest]``."""
        return f"{self.median:.{digits}f} [{self.least:.{digits}f}, {self.greatest:.{digits}f}]"


def spread(figures: Sequence[float]) -> Spread:
    """Return the spread of at least one figure."""
    return Spread(median(figures), min(figures), max(figures))


@dataclass(frozen=True, slots=True)
class PairedFigures:
    """Our figures and those of a baseline. ``ours[i]`` and ``baseline[i]`` were measured one after the other."""

    ours: tuple[float, ...]
    baseline: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours divided by the baseline, pair by pair."""
        return tuple(a / b for a, b in zip(self.ours, self.baseline, strict=True))

    @property
    def differences(self) -> tuple[float, ...]:
        """Ours minus the baseline, pair by pair."""
        return tuple(a - b for a, b in zip(self.ours, self.baseline, strict=True))

    def record(self) -> dict[str, Any]:
        """Return all figures as JSON values."""
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
    """Measure both `count` times in turn. The order alternates, so that neither always follows the other.

    Args:
        ours: One measurement of ours.
        baseline: One measurement of the baseline.
        count: Number of pairs.
        warm: True to run each once before, without counting it.
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
