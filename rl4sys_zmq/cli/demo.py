"""The command ``rl4sys-learner demo``: trains a task on this machine and draws the learning curve.

To start fast, the learner binds its sockets first, which does not need torch. Then the actor processes start. This process
imports torch while the actor processes import Gymnasium.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl4sys_zmq.algorithms import ALGORITHMS, TaskPreset, planned_policy
from rl4sys_zmq.cli.app import FAILED, print_line, require
from rl4sys_zmq.cli.progress import ReturnTrend, make_progress
from rl4sys_zmq.cli.serve import fresh_run_dir, print_saved_at_stop, warm_up
from rl4sys_zmq.cli.signals import check_signals
from rl4sys_zmq.config import ClientConfig, LearnerConfig
from rl4sys_zmq.errors import ClientFailed
from rl4sys_zmq.learner import Learner
from rl4sys_zmq.logs import outlive_output
from rl4sys_zmq.names import algorithm_key
from rl4sys_zmq.ops.curves import WINDOW, LearningCurve, draw_curves, read_curves
from rl4sys_zmq.ops.local_actors import ActorProcesses, EnvironmentSource, LocalActors, await_status, client_id_of

POLL_S = 0.1
LINES_S = 1.0
SHUTDOWN_S = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    env_id: str
    algorithm: str
    seed: int
    actors: int | None
    max_seconds: float
    target: float | None
    hold: bool
    run_dir: Path | None
    debug: bool
    plugin: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DemoTask:
    env_id: str
    algorithm: str
    preset: TaskPreset
    target: float | None  # the mean return to reach. None: unknown. The demo then runs until its time limit

    @property
    def client_id(self) -> str:
        return client_id_of(self.env_id)


def demo(options: DemoOptions) -> int:
    """Train until the target is reached or the time limit is over, and return the exit code."""
    outlive_output()
    ALGORITHMS.require(options.algorithm)
    require("learner", "torch", "tensorboard", "rich", "matplotlib")
    require("gym", "gymnasium")
    task = find_task(options)
    limit = f"{options.max_seconds:g} s"
    goal = (
        f"to a mean return of {task.target:g}, for at most {limit}"
        if task.target is not None
        else f"for {limit}, without a known target"
    )
    print_line(
        f"training {task.env_id} with {task.algorithm} {goal} (seed {options.seed}): starting a learner and {_actors(task)} ..."
    )
    preferred = (
        options.run_dir or Path("runs") / f"demo-{task.client_id}-{options.algorithm.lower().replace(':', '-')}-{options.seed}"
    )
    with fresh_run_dir(preferred) as run_dir:
        learner = Learner(learner_config(task, options, run_dir)).start()
    outcome = DemoProgress()
    saved = print_saved_at_stop(run_dir, f"rl4sys-learner plot {run_dir} draws the curve so far")
    plan = LocalActors(
        client_id=task.client_id,
        source=EnvironmentSource(task.env_id),
        actors=task.preset.actors,
        num_envs=task.preset.num_envs,
        seed=options.seed,
        plugins=options.plugin,
    )
    with saved, learner, ActorProcesses(learner.address, plan, run_dir) as actors:
        print_line(f"learner at {learner.address}, files in {run_dir}; loading torch and Gymnasium ...")
        with make_progress(debug=options.debug, every_s=LINES_S) as progress:
            if learner.config.engine == "thread":  # a worker process imports the algorithm itself
                warm_up(task.algorithm)
            for report, elapsed_s in _reports(learner, actors, task.client_id):
                outcome.update(report, task)
                progress.show(report, _note(elapsed_s, task, options, outcome.left(task, elapsed_s)))
                if outcome.done(options) or elapsed_s >= options.max_seconds:
                    break
        actors.stop()
    return summarise(task, options, run_dir, outcome)


def find_task(options: DemoOptions) -> DemoTask:
    """Return the task that the options name. If the algorithm has no preset for the environment, defaults apply."""
    name = algorithm_key(options.algorithm)
    preset = ALGORITHMS.get(name).presets.get(options.env_id)
    target = options.target
    if preset is None:
        threshold = _probe(options.env_id, name)
        preset = TaskPreset(parameters={}, num_envs=8, actors=2, pacing_lag=1, target_return=threshold or 0.0)
        target = target if target is not None else threshold
    elif target is None:
        target = preset.target_return
    if options.actors is not None:
        preset = replace(preset, actors=options.actors)
    return DemoTask(options.env_id, name, preset, target)


def _probe(env_id: str, algorithm: str) -> float | None:
    """Create the environment once to check it. Return the mean return at which the task counts as solved, or None."""
    from rl4sys_zmq.ops.episodes import make_environment
    from rl4sys_zmq.ops.playing import environment_spaces

    env = make_environment({"id": env_id})
    try:
        spaces = environment_spaces(env, env_id)
        planned_policy(algorithm, spaces["observation_space"], spaces["action_space"], {})
        return env.spec.reward_threshold if env.spec is not None else None
    finally:
        env.close()


def learner_config(task: DemoTask, options: DemoOptions, run_dir: Path) -> LearnerConfig:
    """Return the configuration of a learner on a free port that trains the policy of the task."""
    client = ClientConfig(
        algorithm_name=task.algorithm,
        algorithm_parameters=dict(task.preset.parameters),
        pacing_lag=task.preset.pacing_lag,
    )
    return LearnerConfig(
        bind="tcp://127.0.0.1:0",
        run_dir=run_dir,
        clients={task.client_id: client},
        seed=options.seed,
        shutdown_timeout_s=SHUTDOWN_S,
        torch_threads=1,
        engine="process" if ALGORITHMS.get(task.algorithm).isolated else "thread",
    )


class DemoProgress:
    def __init__(self) -> None:
        self.reached_steps: int | None = None  # the number of steps at which the target was reached, or None before that
        # the entry of the trained policy in the newest status report. Empty before the report has one
        self.client: Mapping[str, Any] = {}
        self.trend: ReturnTrend | None = None

    def left(self, task: DemoTask, now: float) -> str:
        """Return the estimated time until the target, as text; empty if it is unknown."""
        if task.target is None or not self.client or self.reached_steps is not None:
            return ""
        self.trend = self.trend or ReturnTrend(task.target)
        return self.trend.left(self.client["mean_return"], now)

    def update(self, report: Mapping[str, Any], task: DemoTask) -> None:
        """Update the progress. Raise `ClientFailed` if the training has failed."""
        self.client = report["clients"].get(task.client_id, {})
        if self.client and self.client["state"] == "failed":
            raise ClientFailed(task.client_id, self.client["error"])
        enough = self.client and self.client["episodes"] >= WINDOW and task.target is not None
        if self.reached_steps is None and enough and self.client["mean_return"] >= task.target:
            self.reached_steps = self.client["steps"]

    def done(self, options: DemoOptions) -> bool:
        """Return True if the target was reached. With ``--hold``, return True after twice the steps that this took."""
        return self.reached_steps is not None and (not options.hold or self.client["steps"] >= 2 * self.reached_steps)


def _reports(learner: Learner, actors: ActorProcesses, client_id: str) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield status reports, each with the seconds since the first actor joined (0 before that)."""
    began: float | None = None
    while True:
        actors.running()
        report = await_status(learner)
        if report is not None:
            client = report["clients"].get(client_id)
            if began is None and client is not None and client["actors"]:
                began = time.monotonic()
            yield report, time.monotonic() - began if began is not None else 0.0
        time.sleep(POLL_S)
        check_signals()


def _note(elapsed_s: float, task: DemoTask, options: DemoOptions, left: str) -> str:
    goal = f"target {task.target:g}" if task.target is not None else "no known target"
    if not elapsed_s:
        return "waiting for the actors to join"
    return ", ".join(filter(None, (f"{elapsed_s:.1f} of {options.max_seconds:g} s", goal, left)))


def summarise(task: DemoTask, options: DemoOptions, run_dir: Path, outcome: DemoProgress) -> int:
    """Draw the learning curve, print a summary from the run's log, and return the exit code."""
    curves = [curve for curve in read_curves(run_dir) if curve.client_id == task.client_id]
    print_line()
    for name, value in _facts(task, curves[0] if curves else None, outcome):
        print_line(f"  {name:<18}{value}")
    picture = run_dir / "curve.png"
    draw_curves([replace(c, label=f"{task.env_id}, {task.algorithm}") for c in curves], picture, target=task.target)
    print_line(f"  {'curve':<18}{picture}")
    print_line(f"  {'TensorBoard':<18}tensorboard --logdir {run_dir}{os.sep}tensorboard")
    print_line(f"  {'everything else':<18}{run_dir}{os.sep} (config.json, log.jsonl, actor-*.log)")
    print_line()
    if task.target is None:
        print_line(f"{task.env_id} has no known target (--target sets one); the {options.max_seconds:g} s are over")
        return 0
    if outcome.reached_steps is not None:
        return 0
    print_line(f"the target of {task.target:g} was not reached within {options.max_seconds:g} s")
    return FAILED


def _facts(task: DemoTask, curve: LearningCurve | None, outcome: DemoProgress) -> Iterator[tuple[str, str]]:
    client = outcome.client
    if curve is None or not client:
        yield "episodes", "none ended"
        return
    reached = curve.reached(task.target) if task.target is not None else None
    if reached is not None:
        rate = reached[1] / max(reached[0], 1e-9)
        yield "target reached", f"{reached[0]:.1f} s after the first actor joined, {reached[1]:,} steps ({rate:,.0f} steps/s)"
    last = curve.returns[-WINDOW:]
    yield f"mean of last {len(last)}", f"{last.mean():.1f}  (episodes: {len(curve.returns):,}, best {curve.returns.max():.1f})"
    yield "steps", f"{client['steps']:,}"
    lag = "" if curve.policy_lag is None else f"; its data was {curve.policy_lag:.2f} versions old on average"
    yield "policy", f"version {client['version']:,} after {client['updates']:,} updates{lag}"
    verdicts = {k: v for k, v in {**client["verdicts"], "pending": client["pending"]}.items() if v}
    yield (
        "segments",
        f"{client['accepted']:,} accepted: " + (", ".join(f"{v:,} {k}" for k, v in verdicts.items()) or "none used yet"),
    )


def _actors(task: DemoTask) -> str:
    count, envs = task.preset.actors, task.preset.num_envs
    return f"{count} actor process{'es' if count != 1 else ''} with {envs} environment{'s' if envs != 1 else ''} each"
