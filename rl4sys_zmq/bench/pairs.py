"""Pairs of measurements. On a machine that others use too, only a ratio from one run means something.

Ours and the baseline run in turn (A B, B A, A B, ...); of the ratios of the pairs, the median counts, and the lowest and the
highest say how far to trust it.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rl4sys_zmq.bench.machine import machine

__all__ = ["PAIRS", "Ratio", "Result", "compare", "save", "table"]

PAIRS = 5


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of the pairs' ratios (ours over the baseline), the median and the range."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g}-{self.high:.3g})"


@dataclass(frozen=True, slots=True)
class Result:
    """One question's figures.

    Attributes:
        question: in a few words.
        unit: of `ours` and `baseline`.
        ours: the median.
        baseline: the median; None where nothing is beside it.
        ratio: None without a baseline.
        against: what the baseline is.
        goal: in words; empty for none.
        more: further figures.
    """

    question: str
    unit: str
    ours: float
    baseline: float | None = None
    ratio: Ratio | None = None
    against: str = ""
    goal: str = ""
    more: dict[str, Any] = field(default_factory=dict)


def compare(
    question: str,
    unit: str,
    ours: Callable[[], float],
    baseline: Callable[[], float],
    *,
    against: str,
    goal: str = "",
    pairs: int = PAIRS,
    **more: Any,
) -> Result:
    """Runs both in turn, `pairs` times.

    Args:
        question: in a few words.
        unit: of what both return.
        ours: measures once; and
        baseline: likewise.
        against: what the baseline is.
        goal: in words.
        pairs: how many.
        **more: goes into the result.
    """
    found = []
    for number in range(pairs):
        if number % 2:
            theirs, mine = baseline(), ours()
        else:
            mine, theirs = ours(), baseline()
        found.append((mine, theirs))
    ratios = [mine / theirs for mine, theirs in found]
    return Result(
        question,
        unit,
        statistics.median(mine for mine, _ in found),
        statistics.median(theirs for _, theirs in found),
        Ratio(statistics.median(ratios), min(ratios), max(ratios)),
        against,
        goal,
        {"pairs": [[float(f"{a:.6g}"), float(f"{b:.6g}")] for a, b in found], **more},
    )


def table(results: Sequence[Result]) -> str:
    """A table for people."""
    head = ("question", "ours", "baseline", "ratio (range)", "unit", "against", "goal")
    rows = [head, *(_row(r) for r in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def save(path: Path, results: Sequence[Result]) -> None:
    """Writes the results as JSON, with the command and the machine."""
    document = {"command": " ".join(["python", *sys.argv]), "machine": machine(), "results": [asdict(r) for r in results]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def _row(result: Result) -> tuple[str, ...]:
    baseline = f"{result.baseline:.4g}" if result.baseline is not None else "-"
    ratio = str(result.ratio) if result.ratio is not None else "-"
    return result.question, f"{result.ours:.4g}", baseline, ratio, result.unit, result.against or "-", result.goal or "-"
