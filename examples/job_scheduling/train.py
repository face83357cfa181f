"""Training of a scheduler: a learner in this process, and actors in processes of their own.

Run it in the folder ``examples``::

    python -m job_scheduling.train runs/schedule --steps 400000
    python -m job_scheduling.train runs/schedule --steps 400000 --backfilling --trace lublin_256.swf --train-windows 5

The workloads are generated (loads 0.8 to 1.2), so nothing has to be downloaded. With ``--trace``, half of the episodes are taken
from the beginning of that trace. The run directory has the learner's files. `evaluate` reads the policy from it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from job_scheduling.environment import Scheduling, SchedulingEnv, best_reference
from job_scheduling.held_out import HELD_OUT
from job_scheduling.lublin import generate
from job_scheduling.policy import ACTION_SPACE, OBSERVATION_SPACE
from job_scheduling.trace import Trace, read_swf
from rl4sys_zmq import AgentConfig, RL4SysAgent, RL4SysError
from rl4sys_zmq.config import ClientConfig, EvaluationConfig
from rl4sys_zmq.learner import Learner, LearnerConfig

CLIENT = "scheduler"
MACHINE = 256
LOADS = (0.8, 0.9, 1.0, 1.1, 1.2)
GENERATED_JOBS = 10_000
REPORT_S = 10.0
CLIP, HORIZON = 0.003, 64
"""The largest reward of a decision, and the number of later jobs that count for it.

A decision changes the schedule of all later jobs. A few change the slowdown of a window by half, most of them by chance.
"""
LOSSES = ("entropy", "approx_kl")
JOIN_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a training.

    Attributes:
        steps: The number of decisions to train on.
        seed: The seed of the learner, the actors and the workloads.
        rules: The rules of the environment.
        trace: A trace in the Standard Workload Format, or None for generated workloads alone.
        train_windows: The number of windows of `rules.length` jobs at the beginning of the trace to train on.
        machine: The number of processors for generated workloads.
        actors: The number of actor processes.
        max_seconds: The longest time to train, from the first update of the policy.
        every_versions: The number of versions from one evaluation to the next.
        episodes: The number of episodes of an evaluation.
        parameters: Changes of the parameters of PPO.
    """

    steps: int
    seed: int = 1
    rules: Scheduling = Scheduling()
    trace: Path | None = None
    train_windows: int = 5
    machine: int = MACHINE
    actors: int = 2
    max_seconds: float = 3600.0
    every_versions: int = 4
    episodes: int = 100
    parameters: tuple[tuple[str, Any], ...] = ()

    def algorithm_parameters(self) -> dict[str, Any]:
        """Return the parameters of PPO. Without backfilling, the training begins with the choices of the best plan."""
        backfilling = self.rules.backfilling
        preference = {} if backfilling else {"preferred": "outlook", "preference": 100.0}
        return {
            "like": "rl4sys_zmq",
            "network": {"kind": "job_scorer", **preference},
            "normalise_observations": False,
            "normalise_rewards": False,
            "critic": False,
            "steps_per_update": 4096,
            "rollout_length": 128,
            "minibatch_size": 512,
            "update_epochs": 3,
            "learning_rate": 5e-3 if backfilling else 2e-3,
            "anneal_lr": True,
            "total_steps": self.steps,
            "gamma": 1.0,
            "gae_lambda": 0.95,
            "ent_coef": 0.0,
            "target_kl": 0.03,
            "seed": self.seed,
            **dict(self.parameters),
        }


def workloads(settings: Settings) -> list[Trace]:
    """Return the traces to train on.

    Raises:
        ConfigError: If the trace cannot be read, or is too short.
    """
    seeds = range(1000 * settings.seed, 1000 * settings.seed + len(LOADS))
    jobs = max(GENERATED_JOBS, settings.rules.length)
    generated = [generate(jobs, settings.machine, seed, load) for seed, load in zip(seeds, LOADS, strict=True)]
    if settings.trace is None:
        return generated
    trace = read_swf(settings.trace)
    beginning = trace.window(0, settings.train_windows * settings.rules.length)
    return [*generated, *[Trace(beginning, trace.processors)] * len(generated)]


def learner_config(settings: Settings, run_dir: Path) -> LearnerConfig:
    """Return the configuration of the learner. It evaluates versions on generated workloads, and keeps the best one."""
    rules = settings.rules
    env = {
        "id": HELD_OUT,
        "length": rules.length,
        "machine": settings.machine,
        "backfilling": rules.backfilling,
        "objective": rules.objective,
    }
    client = ClientConfig(
        evaluation=EvaluationConfig(env=env, every_versions=settings.every_versions, episodes=settings.episodes)
    )
    return LearnerConfig(
        bind="tcp://127.0.0.1:0",
        run_dir=run_dir,
        resume="never",
        torch_threads=1,
        plugins=("job_scheduling.plugin",),
        clients={CLIENT: client},
    )


class StopEvent(Protocol):
    """The event of `threading` or of `multiprocessing` that ends an actor."""

    def is_set(self) -> bool:
        """Return True if the actor has to end."""


def act(address: str, settings: Settings, number: int, stop: StopEvent) -> None:
    """Schedule episodes as an actor of the learner, until `stop` is set.

    Args:
        address: The address of the learner.
        settings: The settings of the training.
        number: The number of this actor, from 0.
        stop: Set to end the actor.
    """
    env = SchedulingEnv(workloads(settings), settings.rules)
    config = AgentConfig(
        client_id=CLIENT,
        algorithm_name="PPO",
        algorithm_parameters=settings.algorithm_parameters(),
        observation_space=OBSERVATION_SPACE,
        action_space=ACTION_SPACE,
        train_server_address=address,
        connect_timeout_s=60.0,
        overflow="wait",
        seed=1000 * settings.seed + number,
    )
    with RL4SysAgent(config=config) as agent:
        observation, info = env.reset(seed=1000 * settings.seed + number)
        traj = None
        while not stop.is_set():
            traj, action = agent.request_for_action(traj, observation, info["action_mask"])
            agent.add_to_trajectory(traj, action)
            observation, reward, ended, _, info = env.step(action.act)
            action.update_reward(reward)
            if ended:
                agent.mark_end_of_trajectory(traj, action)
                observation, info = env.reset()


def train(settings: Settings, run_dir: Path) -> int:
    """Train a scheduler. Return the number of decisions that the learner has trained on.

    Args:
        settings: The settings.
        run_dir: The learner's run directory.

    Raises:
        RL4SysError: If the learner cannot start, or the training fails.
    """
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with Learner(learner_config(settings, run_dir)) as learner:
        actors = [
            context.Process(target=act, args=(learner.address, settings, number, stop), daemon=True)
            for number in range(settings.actors)
        ]
        for actor in actors:
            actor.start()
        try:
            return _watch(learner, settings, actors)
        finally:
            stop.set()
            learner.save(timeout_s=JOIN_S)
            for actor in actors:
                actor.join(JOIN_S)
                if actor.is_alive():
                    actor.terminate()


def _watch(learner: Learner, settings: Settings, actors: Sequence[Any]) -> int:
    """Print a line every few seconds, until the training is over. Return the number of steps."""
    started = time.monotonic()
    report_at = steps = 0.0
    end = math.inf
    while steps < settings.steps and time.monotonic() < end:
        time.sleep(0.2)
        learner.raise_if_dead()
        if any(actor.exitcode for actor in actors):
            raise RL4SysError(f"an actor has ended with exit code {[actor.exitcode for actor in actors]}")
        client = learner.status()["clients"].get(CLIENT)
        if client is None:
            continue
        steps = client["steps"]
        if client["updates"] and end == math.inf:
            end = time.monotonic() + settings.max_seconds
        if time.monotonic() - started >= report_at:
            report_at = time.monotonic() - started + REPORT_S
            print(report_line(time.monotonic() - started, client), flush=True)
    return int(steps)


def report_line(seconds: float, client: Mapping[str, Any]) -> str:
    """Return a line about a client of the learner, with the parts of the reference's objective that the scheduler saves.

    While it explores on workloads of the training, each reward clipped; and without exploration on held-out workloads.
    """
    mean, scalars = client["mean_return"], client["scalars"]
    held_out = scalars.get("eval/mean_return")
    losses = ", ".join(f"{name} {scalars[f'losses/{name}']:.3g}" for name in LOSSES if f"losses/{name}" in scalars)
    saved = "-" if mean is None else f"{100 * mean:.1f} %"
    losses += f", held out {100 * held_out:.1f} %" if held_out is not None else ""
    return f"{seconds:6.0f} s  decisions {client['steps']:7d}  version {client['version']:4d}  saved {saved:>8}  {losses}"


def parse_arguments() -> tuple[Settings, Path]:
    parser = argparse.ArgumentParser(description="Train a scheduler.")
    parser.add_argument("run_dir", type=Path, help="the run directory; an earlier run in it is put aside")
    parser.add_argument("--steps", type=int, default=400_000, help="number of decisions (default: 400000)")
    parser.add_argument(
        "--max-seconds", type=float, default=3600.0, help="longest time to train, from the first update (default: 3600)"
    )
    parser.add_argument("--length", type=int, default=1024, help="number of jobs of an episode (default: 1024)")
    parser.add_argument("--machine", type=int, default=MACHINE, help=f"processors for generated workloads (default: {MACHINE})")
    parser.add_argument("--actors", type=int, default=2, help="number of actor processes (default: 2)")
    parser.add_argument("--seed", type=int, default=1, help="seed of everything (default: 1)")
    parser.add_argument("--backfilling", action="store_true", help="start other jobs while the chosen one cannot start")
    parser.add_argument("--objective", default="bounded_slowdown", help="measure of a schedule (default: bounded_slowdown)")
    parser.add_argument("--reference", help="classic scheduler of the rollouts (default: F2 with backfilling, else F1)")
    parser.add_argument("--clip", type=float, default=CLIP, help=f"largest reward of a decision (default: {CLIP})")
    parser.add_argument("--horizon", type=int, default=HORIZON, help=f"later jobs that count for a reward (default: {HORIZON})")
    parser.add_argument("--trace", type=Path, help="trace from whose beginning half of the episodes are taken")
    parser.add_argument("--train-windows", type=int, default=5, help="number of windows of the trace to train on (default: 5)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="parameter of PPO, with a value in JSON; repeatable"
    )
    args = parser.parse_args()
    parameters = []
    for word in args.set:
        name, _, value = word.partition("=")
        try:
            parameters.append((name, json.loads(value)))
        except ValueError:
            parser.error(f"--set {word}: expected NAME=VALUE with a value in JSON, such as gamma=0.99")
    rules = Scheduling(
        length=args.length,
        backfilling=args.backfilling,
        objective=args.objective,
        horizon=args.horizon,
        clip=args.clip,
        reference=args.reference or best_reference(args.backfilling),
    )
    settings = Settings(
        steps=args.steps,
        seed=args.seed,
        rules=rules,
        trace=args.trace,
        train_windows=args.train_windows,
        machine=args.machine,
        actors=args.actors,
        max_seconds=args.max_seconds,
        parameters=tuple(parameters),
    )
    return settings, args.run_dir


def main() -> int:
    try:
        settings, run_dir = parse_arguments()
        print(f"trained on {train(settings, run_dir)} decisions; the policy is in {run_dir}")
    except KeyboardInterrupt:
        return 130
    except RL4SysError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
