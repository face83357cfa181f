"""Two measurements in turn, on a machine that drifts: only the ratios of neighbours mean something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

__all__ = ["PairedFigures", "Spread", "measure_pairs", "spread"]

LEAST_PAIRS = 5


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some figures, with the least and the greatest."""

    median: float
    least: float
    greatest: float

    def text(self, digits: int = 2) -> str:
        """For a table: ``median [least, greatest]``."""
        return f"{self.median:.{digits}f} [{self.least:.{digits}f}, {self.greatest:.{digits}f}]"


def spread(figures: Sequence[float]) -> Spread:
    """Of at least one figure."""
    return Spread(median(figures), min(figures), max(figures))


@dataclass(frozen=True, slots=True)
class PairedFigures:
    """Figures of ours and of a baseline; ``ours[i]`` and ``baseline[i]`` were measured one after the other."""

    ours: tuple[float, ...]
    baseline: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours over the baseline, pair by pair."""
        return tuple(a / b for a, b in zip(self.ours, self.baseline, strict=True))

    @property
    def differences(self) -> tuple[float, ...]:
        """Ours less the baseline, pair by pair."""
        return tuple(a - b for a, b in zip(self.ours, self.baseline, strict=True))

    def record(self) -> dict[str, Any]:
        """All of it, as JSON values."""
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
    """Measures both `count` times in turn; which one begins alternates, so that neither always follows the other.

    Args:
        ours: one measurement.
        baseline: one measurement of what it is compared with.
        count: how many pairs.
        warm: do each once before, uncounted.
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
