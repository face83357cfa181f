"""The schedulers on the same arrivals, each with a daemon of its own: slowdowns, and the times of decisions.

Run it in the folder ``examples``, after a training for machines of this size (some minutes)::

    python -m job_scheduling.train runs/live --machine 8 --length 256 --reference SJF --steps 40000
    python -m live_scheduler.compare runs/live --kill-learner --speed 6000

The jobs are real processes that sleep for their run times, so the daemons of several seeds run at the same time. A learner with
the trained policy runs beside them. With ``--kill-learner`` there is one more run, in which it is killed after half of the jobs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from job_scheduling.lublin import generate
from job_scheduling.trace import Jobs
from live_scheduler.client import Client, play
from live_scheduler.jobs import Job, bounded_slowdown
from live_scheduler.schedulers import SCHEDULERS
from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.learner import Learner, LearnerConfig

LEARNER_START_S = 60.0
EXAMPLES = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a daemon.

    Attributes:
        name: The name of the scheduler.
        slowdowns: The bounded slowdown of each job, with the run time for which it sleeps.
        decisions: The number of decisions with at least two waiting jobs.
        decision_us: The median (``p50``) and the 99th percentile (``p99``) of their times, in microseconds.
        state: The scheduler's own figures at the end.
    """

    name: str
    slowdowns: list[float]
    decisions: int
    decision_us: dict[str, float]
    state: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of all daemons.

    Attributes:
        slots: The number of slots.
        speed: The seconds of the jobs in a real one.
    """

    slots: int
    speed: float

    @contextmanager
    def daemon(self, scheduler: str, learner: str | None) -> Iterator[Client]:
        """Run a daemon in a process and a new folder, and yield a client."""
        with tempfile.TemporaryDirectory(prefix="live-") as folder:
            words = [folder, "--slots", str(self.slots), "--speed", str(self.speed), "--scheduler", scheduler]
            if learner is not None:
                words += ["--learner", learner, "--learner-timeout-s", str(LEARNER_START_S)]
            command = [sys.executable, "-m", "live_scheduler.daemon", *words]
            with subprocess.Popen(command, cwd=EXAMPLES, stdout=subprocess.PIPE, text=True) as process:
                try:
                    assert process.stdout is not None
                    if not process.stdout.readline().startswith("ready"):
                        raise RL4SysError(f"the daemon with {scheduler} has not started; it has said why")
                    with Client(Path(folder)) as client:
                        yield client
                finally:
                    process.terminate()


def run(
    machine: Machine, scheduler: str, jobs: Jobs, learner: str | None = None, half_way: Callable[[], None] | None = None
) -> Result:
    """Play jobs to a daemon, and wait for them.

    Args:
        machine: The machine.
        scheduler: The name of the scheduler.
        jobs: The jobs.
        learner: The address of the learner, for ``policy``.
        half_way: Called when half of the jobs have been submitted.

    Raises:
        RL4SysError: If the daemon does not start, has no policy at the start, or a job has failed.
    """

    def on_submitted(count: int) -> None:
        if half_way is not None and count == len(jobs) // 2:
            half_way()

    with machine.daemon(scheduler, learner) as client:
        if client.ask("status")["scheduler"].get("version") == -1:
            raise RL4SysError("the learner has no policy for the daemon; train one in this run directory")
        names = play(client, jobs, machine.speed, on_submitted=on_submitted)
        client.ask("wait")
        ended = [Job(command=(), **each) for each in client.ask("jobs")["jobs"]]
        status = client.ask("status")
    failed = [job.id for job in ended if job.exit_code != 0]
    if failed or len(ended) != len(jobs):
        raise RL4SysError(f"{len(ended)} of {len(jobs)} jobs have ended, and {len(failed)} of them failed: {failed[:5]}")
    run_s = dict(zip(names, jobs.run_s.tolist(), strict=True))
    slowdowns = [bounded_slowdown(job, run_s[job.id]) for job in ended]
    return Result(scheduler, slowdowns, status["decisions"], status["decision_us"], status["scheduler"])


def serve(run_dir: Path, connection: Connection) -> None:
    """Run a learner that continues the training of `run_dir`, until the other end of the connection is closed."""
    import job_scheduling.plugin  # noqa: F401  registers the network

    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=run_dir, torch_threads=1)) as learner:
        connection.send(learner.address)
        connection.poll(None)


@contextmanager
def learner_process(run_dir: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Run a learner in a process. Yield its address, and a function that kills it.

    Raises:
        RL4SysError: If the learner does not start.
    """
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=serve, args=(run_dir, its), daemon=True)
    process.start()
    its.close()
    try:
        if not mine.poll(LEARNER_START_S):
            raise RL4SysError(f"the learner has not started within {LEARNER_START_S:g} s")
        yield mine.recv(), process.kill
    except EOFError:
        raise RL4SysError(f"the learner of {run_dir} has not started; it has said why") from None
    finally:
        mine.close()
        process.join()


def table(results: Sequence[Result]) -> str:
    """Return the results as Markdown, with a row for all runs of a scheduler.

    The slowdowns are those of the jobs of all runs. The times of decisions are the largest of the runs.
    """
    lines = [
        "| scheduler | mean slowdown | median | 90th percentile | decisions | decision, median | 99th percentile |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(result.name for result in results):
        runs = [result for result in results if result.name == name]
        slowdowns = np.concatenate([result.slowdowns for result in runs])
        p50, p99 = (max(result.decision_us[key] for result in runs) for key in ("p50", "p99"))
        lines.append(
            f"| {name} | {slowdowns.mean():.1f} | {np.median(slowdowns):.1f} | {np.percentile(slowdowns, 90):.1f} "
            f"| {sum(result.decisions for result in runs)} | {p50:.0f} µs | {p99:.0f} µs |"
        )
    return "\n".join(lines)


def compare(args: argparse.Namespace) -> list[Result]:
    """Run all schedulers, each on the jobs of all seeds at the same time, with a daemon for each.

    Raises:
        RL4SysError: If there is no training in the run directory, or as `run` and `learner_process`.
    """
    if "policy" in args.schedulers and not args.run_dir.is_dir():
        raise RL4SysError(f"{args.run_dir} is not the run directory of a training; train a policy first")
    machine, results = Machine(slots=args.slots, speed=args.speed), []
    workloads = [generate(args.jobs, args.slots, seed, args.load).jobs for seed in args.seeds]

    def run_all(name: str, scheduler: str, learner: str | None = None, half_way: Callable[[], None] | None = None) -> None:
        with ThreadPoolExecutor(len(workloads)) as pool:
            found = pool.map(lambda jobs: run(machine, scheduler, jobs, learner, half_way), workloads)
            for result in found:
                results.append(replace(result, name=name))
                print(f"{name}: mean slowdown {np.mean(result.slowdowns):.1f}  {result.state or ''}", flush=True)

    for scheduler in args.schedulers:
        if scheduler != "policy":
            run_all(scheduler, scheduler)
            continue
        with learner_process(args.run_dir) as (address, kill):
            run_all("policy", scheduler, address)
            if args.kill_learner:
                run_all("policy, learner killed", scheduler, address, kill)
    return results


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare schedulers on the same arrivals.")
    parser.add_argument("run_dir", type=Path, help="run directory of a training of job_scheduling.train")
    parser.add_argument("--schedulers", nargs="+", choices=SCHEDULERS, default=["FCFS", "SJF", "WFP3", "random", "policy"])
    parser.add_argument("--kill-learner", action="store_true", help="one more run, with the learner killed in the middle")
    parser.add_argument("--jobs", type=int, default=300, help="number of jobs (default: 300)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=list(range(101, 109)), help="seeds of the jobs (default: 101 to 108)"
    )
    parser.add_argument("--load", type=float, default=0.9, help="offered load, as a share of the slots (default: 0.9)")
    parser.add_argument("--slots", type=int, default=8, help="slots of the machine (default: 8)")
    parser.add_argument("--speed", type=float, default=4000.0, help="seconds of the jobs in a real one (default: 4000)")
    parser.add_argument("--json", type=Path, help="file for all figures")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
    try:
        results = compare(args)
        print(table(results))
        if args.json is not None:
            args.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    except (RL4SysError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
