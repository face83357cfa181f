"""Comparison of this simulator with the results of another one.

Run it in the folder ``examples``::

    python -m job_scheduling.check_golden lublin_256.swf lublin_256_golden.json

The second file has the mean bounded slowdown of some heuristics on windows of the trace, one after another from its beginning.
With ``--backfilling``, two rules of RLScheduler's simulator are not those of this one (docs/howto/job_scheduling.md).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from job_scheduling.heuristics import HEURISTICS, schedule
from job_scheduling.trace import read_swf
from rl4sys_zmq.errors import RL4SysError

WINDOW = 1024
DECIMALS = 4


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare mean bounded slowdowns with those of another simulator.")
    parser.add_argument("trace", type=Path, help="the trace, in the Standard Workload Format")
    parser.add_argument("golden", type=Path, help='JSON with "mean_bounded_slowdown": a list of {heuristic: figure}')
    parser.add_argument("--backfilling", action="store_true", help="other jobs start while the chosen one cannot")
    args = parser.parse_args()
    try:
        trace = read_swf(args.trace)
        expected = json.loads(args.golden.read_text())["mean_bounded_slowdown"]
        print(f"{len(trace.jobs)} jobs, {trace.processors} processors, repairs: {trace.repairs}")
        differences = 0
        for index, figures in enumerate(expected):
            jobs = trace.window(index, WINDOW)
            found = {
                name: schedule(jobs, trace.processors, HEURISTICS[name], backfilling=args.backfilling).objective(
                    "bounded_slowdown"
                )
                for name in figures
            }
            differs = [name for name, figure in figures.items() if round(found[name], DECIMALS) != figure]
            differences += len(differs)
            print(
                f"window {index}:",
                *(f"{name} {figure:.{DECIMALS}f}" for name, figure in found.items()),
                *differs and ["!!", *differs],
            )
    except (RL4SysError, OSError, ValueError, KeyError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(f"{differences} figures differ")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
