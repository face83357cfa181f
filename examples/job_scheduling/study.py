"""Trainings with several seeds, with and without backfilling, and a table of their tests. It can be stopped and started again.

Run it in the folder ``examples``::

    python -m job_scheduling.study runs/study --trace lublin_256.swf --plot curves.png

``runs/study/results.json`` has the figures of the trainings that are complete. A training that was stopped begins again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from job_scheduling.environment import Scheduling, best_reference
from job_scheduling.evaluate import PLANNED, POLICY, TestSet, best_classic, objectives, policy_folder, test_sets
from job_scheduling.train import CLIP, HORIZON, Settings, train
from rl4sys_zmq.actor import FrozenAgent
from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.ops.curves import read_curves

FORMS = {"plain": False, "backfilling": True}
RESULTS = "results.json"


def measure(settings: Settings, run_dir: Path, tests: Sequence[TestSet], classic: dict[str, Any]) -> dict[str, Any]:
    """Train and test one scheduler. Return its figures as JSON.

    Args:
        settings: The settings of the training.
        run_dir: The run directory. What is in it is deleted.
        tests: The test sets.
        classic: The objectives of the classic schedulers and the planned one by test set; filled in where they are missing.

    Raises:
        RL4SysError: If the training fails.
    """
    shutil.rmtree(run_dir, ignore_errors=True)
    started = time.monotonic()
    decisions = train(settings, run_dir)
    seconds = time.monotonic() - started
    (curve,) = read_curves(run_dir)
    rules, tested = settings.rules, {}
    with FrozenAgent(policy_folder(run_dir)) as agent:
        version = agent.version
        for test in tests:
            if test.name not in classic:
                classic[test.name] = objectives(test, rules, None)
            tested[test.name] = objectives(test, rules, agent, classic=False)[POLICY]
    return {
        "decisions": decisions,
        "seconds": round(seconds),
        "version": version,
        "curve": [[int(steps), float(mean)] for mean, steps, _ in curve.evaluations],
        POLICY: tested,
    }


def table(results: Mapping[str, Any]) -> str:
    """Return the figures as Markdown: a row for each form and test set.

    The distances are those from the classic scheduler with the lowest mean, in percent of it; positive is better.
    """
    lines = [
        "| form | test | best classic | planned | policy, by seed | below the best, by seed | mean |",
        "|---|---|---|---|---|---|---|",
    ]
    for form, found in results.items():
        runs = list(found["runs"].values())
        for test, classic in found["classic"].items():
            means = {name: float(np.mean(values)) for name, values in classic.items()}
            best = best_classic(means)
            mine = [float(np.mean(run[POLICY][test])) for run in runs]
            below = [100.0 * (1.0 - mean / means[best]) for mean in mine]
            lines.append(
                f"| {form} | {test}, {len(classic[best])} windows | {best} {means[best]:.1f} | "
                f"{means[PLANNED]:.1f} | "
                f"{', '.join(f'{mean:.1f}' for mean in mine)} | {', '.join(f'{share:.1f}' for share in below)} % | "
                f"{np.mean(below):.1f} % |"
            )
    return "\n".join(lines)


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Write the curves of the evaluations during the trainings as PNG: a panel for each form, a line for each seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(results), figsize=(5.0 * len(results), 3.8), squeeze=False, layout="constrained")
    for panel, (form, found) in zip(panels[0], results.items(), strict=True):
        for seed, run in found["runs"].items():
            steps, means = zip(*run["curve"], strict=True)
            panel.plot([step / 1000 for step in steps], [100.0 * mean for mean in means], marker=".", label=f"seed {seed}")
        panel.axhline(0.0, color="black", linewidth=0.8)
        panel.set_title(f"{form}, held-out workloads")
        panel.set_xlabel("decisions in thousands")
        panel.set_ylabel(f"below {best_reference(FORMS[form])} in %, mean of the windows")
        panel.set_ylim(bottom=max(-60.0, panel.get_ylim()[0]))
        panel.grid(alpha=0.3)
        panel.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run the trainings that are not in the file of results. Return all results.

    Raises:
        RL4SysError: If a training fails.
    """
    args.folder.mkdir(parents=True, exist_ok=True)
    file = args.folder / RESULTS
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    tests = test_sets(args)
    for form in args.forms:
        found = results.setdefault(form, {"classic": {}, "runs": {}})
        rules = Scheduling(
            length=args.length, backfilling=FORMS[form], reference=best_reference(FORMS[form]), horizon=HORIZON, clip=CLIP
        )
        settings = Settings(
            steps=args.steps, rules=rules, trace=args.trace, train_windows=args.train_windows, max_seconds=args.max_seconds
        )
        for seed in args.seeds:
            if str(seed) in found["runs"]:
                continue
            print(f"{form}, seed {seed}", flush=True)
            run_dir = args.folder / f"{form}-{seed}"
            found["runs"][str(seed)] = measure(replace(settings, seed=seed), run_dir, tests, found["classic"])
            new = file.with_suffix(".new")
            new.write_text(json.dumps(results))
            new.replace(file)
    return results


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train schedulers with several seeds, and compare them with the classic ones.")
    parser.add_argument("folder", type=Path, help="folder for the run directories and the results")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="(default: both)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="(default: 1 2 3)")
    parser.add_argument("--steps", type=int, default=400_000, help="decisions of a training (default: 400000)")
    parser.add_argument("--max-seconds", type=float, default=3600.0, help="longest time of a training (default: 3600)")
    parser.add_argument("--trace", type=Path, help="trace in the Standard Workload Format")
    parser.add_argument("--train-windows", type=int, default=5, help="windows of the trace to train on (default: 5)")
    parser.add_argument("--windows", type=int, nargs="+", default=[5, 6, 7, 8], help="windows to test on (default: 5 6 7 8)")
    parser.add_argument("--loads", type=float, nargs="*", default=[0.9, 1.1], help="generated loads (default: 0.9 1.1)")
    parser.add_argument("--generated", type=int, default=24, help="windows of each generated load (default: 24)")
    parser.add_argument("--machine", type=int, default=256, help="processors for generated workloads (default: 256)")
    parser.add_argument("--length", type=int, default=1024, help="jobs of a window (default: 1024)")
    parser.add_argument("--plot", type=Path, help="PNG file for the curves")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
    try:
        results = run(args)
    except KeyboardInterrupt:
        return 130
    except RL4SysError as error:
        print(error, file=sys.stderr)
        return 1
    print(table(results))
    if args.plot is not None:
        plot(results, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
