"""The predictions of ``rl4sys-learner capacity`` beside five set-ups that are run.

    python benchmarks/capacity.py
    python benchmarks/capacity.py --rounds 5 --seconds 3 --json benchmarks/results/capacity.json

Each round first measures the constants, then runs the set-ups: small segments, large observations, many actors with few steps, a
large model with frequent publication, and a journal with ``fsync: always``. For each it prints the predicted rate at which the
first limit is reached, the rate that was reached, and the quotient. The last lines have the median of the rounds, with the least
and the greatest. The goal is a median within 25 %.

The speed of a shared machine changes by a third within minutes. So constants and set-ups are measured in the same round.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.capacity import SETUPS, measure_setup
from bench.pairs import spread
from rl4sys_zmq.capacity.machine import machine_record
from rl4sys_zmq.capacity.measure import measure_constants

GOAL = 1.25


def main() -> None:
    """Parse the command line, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of constants and set-ups")
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each measured loop")
    parser.add_argument("--versions", type=int, default=40, help="versions of each measured publication")
    parser.add_argument("--folder", type=Path, help="folder of journals (default: the temporary folder)")
    parser.add_argument("--json", type=Path, help="write the result here")
    given = parser.parse_args()
    results: dict[str, list[dict[str, float]]] = {setup.name: [] for setup in SETUPS}
    for number in range(1, given.rounds + 1):
        print(f"round {number}: constants")
        constants = measure_constants(lambda line: None, seconds=given.seconds / 2, versions=given.versions // 2).constants
        for setup in SETUPS:
            found = measure_setup(setup, constants, seconds=given.seconds, versions=given.versions, folder=given.folder)
            results[setup.name].append({"predicted": found.predicted, "measured": found.measured, "ratio": found.ratio})
            print(f"  {setup.name:66} {found.predicted:14,.1f} {found.measured:14,.1f} {found.ratio:6.2f}", flush=True)
    print(f"\n{'predicted / measured':68} median [lowest, highest]")
    for name, rows in results.items():
        ratio = spread([row["ratio"] for row in rows])
        reached = 1 / GOAL <= ratio.median <= GOAL
        print(f"{name:68} {ratio.text()}  {'within' if reached else 'NOT within'} 25 %")
    if given.json is not None:
        given.json.write_text(json.dumps({**machine_record(), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
