"""The comparison on real sockets: its table and its picture."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from adaptive_zstd.bandwidth import MB, Profile
from adaptive_zstd.data import LEVELS

Table = dict[str, dict[str, float]]
"""Goodput in bytes/s by profile and method."""

_OTHERS = [
    ("rule", "queue rule", "s", "tab:orange"),
    ("--adapt", "zstd --adapt", "^", "tab:green"),
    ("policy", "policy", "o", "tab:blue"),
]
"""Methods that are no fixed level: key, name, mark and colour."""


def compare(methods: dict[str, Callable[[Profile], float]], profiles: dict[str, Profile], rounds: int) -> Table:
    """Run all methods in turn on each profile, and print one row per profile. Of several rounds, the median counts."""
    print("goodput in MB/s      " + "".join(f"{name:>8}" for name in methods) + "  policy / best fixed", flush=True)
    table: Table = {}
    for name, bandwidth in profiles.items():
        found = [{method: run(bandwidth) for method, run in methods.items()} for _ in range(rounds)]
        table[name] = {method: float(np.median([each[method] for each in found])) for method in methods}
        _print_row(name, table[name])
    changing = [row for name, row in table.items() if not name.startswith("constant")]
    if changing:
        _print_row("mean of changing", {method: sum(row[method] for row in changing) / len(changing) for method in methods})
    return table


def best_fixed(row: dict[str, float]) -> float:
    """Return the goodput of the best fixed level in bytes/s."""
    return max(row[str(level)] for level in LEVELS)


def _print_row(name: str, row: dict[str, float]) -> None:
    best = best_fixed(row)
    cells = "".join(f"{value / MB:8.2f}" for value in row.values())
    share = f"{row['policy'] / best:.3f}" if best else "nothing arrived"
    print(f"{name:21}{cells}  {share}", flush=True)


def plot(table: Table, path: Path) -> None:
    """Draw each method's goodput relative to the best fixed level of the profile."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
    for x, row in enumerate(table.values()):
        best = best_fixed(row) or 1.0
        axes.plot([x] * len(LEVELS), [row[str(level)] / best for level in LEVELS], "_", color="0.6", markersize=14)
        for shift, (method, _, mark, colour) in enumerate(_OTHERS):
            if method in row:
                axes.plot(x + 0.12 * (shift - 1), row[method] / best, mark, color=colour)
    for _, label, mark, colour in _OTHERS:
        axes.plot([], [], mark, color=colour, label=label)
    axes.plot([], [], "_", color="0.6", markersize=14, label="a fixed level")
    axes.axhline(1.0, color="0.8", linewidth=0.8, zorder=0)
    axes.set_xticks(range(len(table)), list(table), rotation=25, ha="right")
    axes.set_ylabel("goodput / best fixed level")
    axes.set_ylim(bottom=0)
    axes.legend(ncols=4, loc="lower center")
    figure.savefig(path, dpi=120)
