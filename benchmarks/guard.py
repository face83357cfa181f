"""Measures again what ``benchmarks/results`` holds, and fails if a ratio to its baseline has become clearly worse.

    make guard                                   (all records; some minutes, on a quiet machine)
    python benchmarks/guard.py benchmarks/results/ingress.json --pairs 9

A record is measured in the form, compiled or pure, that it names.

Absolute times are never compared. A ratio counts as worse beyond the worst of its earlier pairs and a tolerance.
A ratio also depends on the processor. The script names records of another processor: to tell a regression there, measure
the commit of the record on this machine too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from bench.guard import TOLERANCE, regressions
from bench.measurements import QUESTIONS, BenchOptions, measure
from rl4sys_zmq import native

RESULTS = Path(__file__).parent / "results"
BOTH_FORMS = ("step", "ingress", "fanout")
GUARDED = [f"{name}{form}.json" for name in BOTH_FORMS for form in ("", "_pure")]
GUARDED += ["durable.json", "weights.json", "infer.json"]


def main() -> None:
    """Measures and compares; exit status 1 when something is worse."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*", default=[RESULTS / name for name in GUARDED])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    options = parser.parse_args()
    worse = []
    for path in options.records:
        earlier = json.loads(path.read_text())
        names = [name for name in earlier["results"] if name in QUESTIONS]
        os.environ[native.VARIABLE] = {"pure": "never", "compiled": "always"}.get(earlier.get("form", ""), "auto")
        now = measure(names, BenchOptions(pairs=options.pairs, seconds=options.seconds), print)
        words = regressions(earlier["results"], now["results"], options.tolerance)
        if words and earlier["machine"]["cpu"] != now["machine"]["cpu"]:
            words.append(f"measured on {earlier['machine']['cpu']} at commit {earlier['commit'][:10]}; this is another processor")
        worse += [f"{path.stem}: {line}" for line in words]
    print("\n".join(worse) or "no ratio is worse")
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
