"""Comparison of a trained scheduler with the classic ones, as a table and box plots.

Run it in the folder ``examples``::

    python -m job_scheduling.evaluate runs/schedule --plot schedule.png
    python -m job_scheduling.evaluate runs/schedule --trace lublin_256.swf --windows 5 6 7 8

All schedulers get the same windows of jobs: those of the trace, and of freshly generated workloads of two loads. The trained one
takes the most probable job at each decision.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from job_scheduling.environment import Scheduling
from job_scheduling.features import WINDOW, FeatureReader
from job_scheduling.heuristics import HEURISTICS, schedule
from job_scheduling.lublin import generate
from job_scheduling.planning import planned_schedule
from job_scheduling.policy import KIND
from job_scheduling.simulator import OBJECTIVES, Schedule, Simulator
from job_scheduling.trace import Jobs, Trace, read_swf
from job_scheduling.train import CLIENT
from rl4sys_zmq.actor import FrozenAgent
from rl4sys_zmq.errors import ConfigError, RL4SysError
from rl4sys_zmq.learner.run.stored_policies import BestPolicyFolder, newest_policy
from rl4sys_zmq.policies import require_policy

POLICY, PLANNED = "policy", "planned"
"""The names of the trained scheduler, and of the one that always takes the job with the best plan. The others are classic."""
EVALUATION_SEED = 77_000_000
"""The seed of the generated workloads. Training uses other ones."""


@dataclass(frozen=True)
class TestSet:
    """Windows of jobs on which schedulers are compared.

    Attributes:
        name: The name, for the table.
        trace: The jobs.
        windows: The numbers of the windows.
    """

    name: str
    trace: Trace
    windows: Sequence[int]


def objectives(test: TestSet, rules: Scheduling, agent: FrozenAgent | None, *, classic: bool = True) -> dict[str, list[float]]:
    """Return the objective of each scheduler on each window.

    Args:
        test: The windows.
        rules: The number of jobs of a window, backfilling, and the objective.
        agent: The trained scheduler, which is called `POLICY`; None for the classic ones alone.
        classic: False to leave out the classic ones and `PLANNED`.

    Raises:
        ConfigError: If a window is outside its trace.
    """
    found = {}
    for name, heuristic in HEURISTICS.items() if classic else ():
        done = [
            schedule(test.trace.window(window, rules.length), test.trace.processors, heuristic, backfilling=rules.backfilling)
            for window in test.windows
        ]
        found[name] = [each.objective(rules.objective) for each in done]
    if classic:
        found[PLANNED] = [
            planned_schedule(
                test.trace.window(window, rules.length), test.trace.processors, backfilling=rules.backfilling
            ).objective(rules.objective)
            for window in test.windows
        ]
    if agent is not None:
        found[POLICY] = [
            scheduled_by(agent, test.trace.window(window, rules.length), test.trace.processors, rules).objective(rules.objective)
            for window in test.windows
        ]
    return found


def scheduled_by(agent: FrozenAgent, jobs: Jobs, machine: int, rules: Scheduling) -> Schedule:
    """Return the schedule of a trained scheduler.

    Args:
        agent: The scheduler.
        jobs: The jobs.
        machine: The number of processors of the cluster.
        rules: Only `Scheduling.backfilling` counts.

    Raises:
        ConfigError: If the jobs cannot run on this cluster.
    """
    simulator = Simulator(jobs, machine, backfilling=rules.backfilling)
    features, traj = FeatureReader(simulator), None
    while not simulator.finished:
        if len(simulator.waiting) == 1:
            simulator.start(simulator.waiting[0])
            continue
        waiting, observation = features.read()
        traj, action = agent.request_for_action(traj, observation, np.arange(WINDOW) < len(waiting))
        agent.add_to_trajectory(traj, action)
        simulator.start(int(waiting[action.act]))
    return simulator.schedule()


def policy_folder(run_dir: Path) -> Path:
    """Return the folder of the version with the best evaluation during the training, or else of the newest one.

    Raises:
        ConfigError: If there is no policy.
    """
    best = BestPolicyFolder(run_dir, CLIENT).policy
    return best if best.exists() else newest_policy(run_dir)[0]


def best_classic(means: Mapping[str, float]) -> str:
    """Return the classic scheduler with the lowest mean."""
    return min((name for name in means if name not in (POLICY, PLANNED)), key=means.__getitem__)


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """Return the mean objectives as Markdown: a row for each test set, a column for each scheduler.

    The last column is the distance of the policy's mean from that of the best classic scheduler, in percent of the latter.
    """
    names = list(next(iter(results.values())))
    lines = ["| windows | " + " | ".join(names) + " | below the best |", "|---" * (len(names) + 2) + "|"]
    for test, found in results.items():
        means = {name: float(np.mean(values)) for name, values in found.items()}
        best = best_classic(means)
        below = f"{100 * (means[best] - means[POLICY]) / abs(means[best]):.1f} % ({best})" if POLICY in means else best
        lines.append(f"| {test} | " + " | ".join(f"{means[name]:.1f}" for name in names) + f" | {below} |")
    return "\n".join(lines)


def plot(results: dict[str, dict[str, list[float]]], objective: str, path: Path) -> None:
    """Write box plots as PNG: a panel for each test set, a box over the windows for each scheduler."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(results), figsize=(5.0 * len(results), 4.2), squeeze=False, layout="constrained")
    for panel, (test, found) in zip(panels[0], results.items(), strict=True):
        boxes = panel.boxplot(list(found.values()), widths=0.6, patch_artist=True, showmeans=True, medianprops={"color": "black"})
        for name, box in zip(found, boxes["boxes"], strict=True):
            box.set_facecolor({POLICY: "tab:orange", PLANNED: "tab:blue"}.get(name, "lightgray"))
        panel.set_xticks(range(1, len(found) + 1), list(found), rotation=45)
        if objective != "utilisation":
            panel.set_yscale("log")
        panel.set_title(f"{test} ({len(next(iter(found.values())))} windows)")
        panel.grid(axis="y", alpha=0.3)
    panels[0][0].set_ylabel(objective.replace("_", " ") + ", mean of a window")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def test_sets(args: argparse.Namespace) -> list[TestSet]:
    """Return the test sets that the command line asks for."""
    tests = []
    if args.trace is not None:
        name = f"{args.trace.stem} {args.windows[0]} to {args.windows[-1]}"
        tests.append(TestSet(name, read_swf(args.trace), args.windows))
    for load in args.loads:
        trace = generate(args.generated * args.length, args.machine, EVALUATION_SEED + round(100 * load), load)
        tests.append(TestSet(f"load {load:g}", trace, range(args.generated)))
    if not tests:
        raise ConfigError("nothing to compare on: give --loads or --trace")
    return tests


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare a trained scheduler with the classic ones.")
    parser.add_argument("run_dir", type=Path, nargs="?", help="run directory of a training; without it, the classic ones alone")
    parser.add_argument("--trace", type=Path, help="trace in the Standard Workload Format")
    parser.add_argument("--windows", type=int, nargs="+", default=[5, 6, 7, 8], help="windows of the trace (default: 5 6 7 8)")
    parser.add_argument("--loads", type=float, nargs="*", default=[0.9, 1.1], help="generated loads (default: 0.9 1.1)")
    parser.add_argument("--generated", type=int, default=8, help="windows of each generated load (default: 8)")
    parser.add_argument("--machine", type=int, default=256, help="processors for generated workloads (default: 256)")
    parser.add_argument("--length", type=int, default=1024, help="jobs of a window (default: 1024)")
    parser.add_argument("--backfilling", action="store_true", help="start other jobs while the chosen one cannot start")
    parser.add_argument("--objective", default="bounded_slowdown", choices=OBJECTIVES, help="(default: bounded_slowdown)")
    parser.add_argument("--plot", type=Path, help="PNG file for box plots")
    parser.add_argument("--json", type=Path, help="file for all figures")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
    try:
        rules = Scheduling(
            length=args.length, backfilling=args.backfilling, objective=args.objective, rewards="end", reference=None
        )
        require_policy(KIND)
        if args.run_dir is None:
            results = {test.name: objectives(test, rules, None) for test in test_sets(args)}
        else:
            folder = policy_folder(args.run_dir)
            with FrozenAgent(folder) as agent:
                results = {test.name: objectives(test, rules, agent) for test in test_sets(args)}
        print(table(results))
        if args.json is not None:
            args.json.write_text(json.dumps(results, indent=1))
        if args.plot is not None:
            plot(results, args.objective, args.plot)
            print(f"box plots: {args.plot}")
    except RL4SysError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
