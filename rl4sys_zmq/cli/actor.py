"""``rl4sys-actor``: the commands of the actor and their options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # numpy reads this at its import; small products are slower with two threads

from rl4sys_zmq.cli.app import (  # noqa: E402 - this imports numpy
    ADDRESS,
    FILE,
    CommandGroup,
    FiniteRange,
    option,
    plugin_option,
    settings,
    version_option,
)


def _require_defaults(*names: str, problem: str) -> None:
    """Raise `click.UsageError` with the text `problem` if one of these options of the current command was given."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} {problem}")


@click.group(name="rl4sys-actor", cls=CommandGroup, context_settings=settings("RL4SYS_ACTOR"))
@version_option
def main() -> None:
    """Actors for RL4Sys learners: they act with the learner's policy and send it their experience.

    Exit codes: 0, 1 (failed), 2 (usage or configuration), 130 (Ctrl-C).
    """


@main.command()
@option("--env", required=True, metavar="ID", help="A Gymnasium environment.")
@option("--learner", type=ADDRESS, metavar="ADDRESS", help="host:port or a URI.  [default: from the file, else localhost:50051]")
@option("--client-id", metavar="NAME", help="The client: the policy to act with and to train. Required unless in the file.")
@option("--config", type=FILE, metavar="FILE", help="The configuration file of an actor.")
@option("--num-envs", type=click.IntRange(1, 4096), default=4, help="Number of environments in this process, in one batch.")
@option(
    "--episodes", type=click.IntRange(1), help="Stop after this number of episodes; in a fleet, of each actor.  [default: never]"
)
@option("--steps", type=click.IntRange(1), help="Stop after this number of steps; in a fleet, of each actor.  [default: never]")
@option("--seed", type=click.IntRange(0), help="Seed of the environments and the actor.  [default: from the OS]")
@option("--algorithm", metavar="NAME", help="The algorithm, if neither the file nor the learner names one.")
@option("--keys", type=FILE, metavar="FILE", help="NAME.keys, for a learner with keys.")
@plugin_option()
@option(
    "--spool",
    type=FILE,
    metavar="DIR",
    help="Store finished segments here until the learner has them; in a fleet, in a folder for each actor.",
)
@option("--sidecar", is_flag=True, help="Keep the sockets in a separate process.")
@option(
    "--masks/--no-masks",
    default=True,
    help="Choose only actions that `action_mask` in an environment's info allows, or ignore it, for an algorithm without masks.",
)
@option("--connect-timeout", type=FiniteRange(0), help="Seconds to wait for the learner.  [default: 10]")
@option("--actor-id", metavar="NAME", help="The name of the actor; in a fleet, its beginning.  [default: random]")
@option("--num-actors", type=click.IntRange(1, 10_000), help="Keep this number of actor processes alive, as a fleet.")
@option("--min-actors", type=click.IntRange(1, 10_000), help="Shrink the fleet to this number while actors wait a lot.")
@option("--max-actors", type=click.IntRange(1, 10_000), help="Grow the fleet to this number while the learner lacks data.")
@option(
    "--engine",
    type=click.Choice(["process", "ray"]),
    default="process",
    help="Run the actors of a fleet as processes of this machine, or on the nodes of a Ray cluster.",
)
@option(
    "--ray-address",
    metavar="auto|local|HOST:PORT",
    help="The Ray cluster for --engine ray. auto: that of this machine. local: a Ray of the fleet's own.  "
    "[default: RAY_ADDRESS, or else local]",
)
@option("--grace", type=FiniteRange(0, 3600), default=10.0, help="Seconds that actors of a fleet have to end their episodes.")
@option("--json", is_flag=True, help="Print the figures as a line of JSON each second.")
@option(
    "--exit-with-stdin",
    is_flag=True,
    help="Exit when stdin is closed, so that a child process ends with its parent; a line `drain` ends the episodes first.",
)
@option("-v", "--verbose", is_flag=True, help="Print a line every few seconds.")
@option("--debug", is_flag=True, help="Log everything.")
def run(env: str, config: Path | None, connect_timeout: float | None, **options: Any) -> None:
    """Run environments with a learner, until --episodes have ended or --steps were taken, Ctrl-C or SIGTERM.

    With --num-actors, or --min-actors and --max-actors, the command keeps a fleet of such actors alive. Each is a process with
    its own name, seed and folder in --spool. An actor that fails is started again.
    """
    from rl4sys_zmq.cli.act import RunOptions, act

    fleet = {name: options.pop(name) for name in ("engine", "ray_address", "num_actors", "min_actors", "max_actors")}
    grace_s = options.pop("grace")
    run_options = RunOptions(env_id=env, config_path=config, connect_timeout_s=connect_timeout, **options)
    if all(fleet[name] is None for name in ("num_actors", "min_actors", "max_actors")):
        problem = "applies to a fleet: give --num-actors, or --min-actors and --max-actors"
        _require_defaults("engine", "ray_address", "grace", problem=problem)
        act(run_options)
        return
    if fleet["ray_address"] is not None and fleet["engine"] != "ray":
        raise click.UsageError("--ray-address applies to --engine ray")
    from rl4sys_zmq.cli.fleet import FleetOptions, run_fleet

    run_fleet(FleetOptions(run=run_options, grace_s=grace_s, **fleet))


@main.command()
@option("--policy", type=FILE, metavar="DIR", help="The folder of a policy, from rl4sys-learner export.")
@option("--run", type=FILE, metavar="RUN", help="A run directory: evaluate its newest checkpoint.")
@option("--client", metavar="ID", help="With --run: the client whose policy is evaluated.  [default: the only one]")
@option("--env", required=True, metavar="ID", help="A Gymnasium environment.")
@option("--episodes", type=click.IntRange(1), default=20, help="Number of episodes.")
@option("--seed", type=click.IntRange(0), default=0, help="Seed of the episodes, so that two policies meet the same ones.")
@option("--explore", is_flag=True, help="Sample actions as in training.  [default: the most probable action]")
@option("--json", is_flag=True, help="Print the figures as JSON, with the return of each episode.")
@option("--render", is_flag=True, help="Show the environment in a window.")
@option("--video", type=FILE, metavar="DIR", help="Record each episode as a video in this folder.")
@plugin_option(expose_value=False)
def evaluate(**options: Any) -> None:
    """Run episodes with a policy that does not learn, without a learner, and print the return with its 95 % interval.

    The interval is a bootstrap interval of the mean. It covers the randomness of the episodes, not of the training.
    """
    from rl4sys_zmq.cli.stored_policies import evaluate as run

    if (options["policy"] is None) == (options["run"] is None):
        raise click.UsageError("give either --policy DIR or --run RUN")
    if options["client"] is not None and options["run"] is None:
        raise click.UsageError("--client applies to --run")
    if options["render"] and options["video"] is not None:
        raise click.UsageError("give either --render or --video")
    run(**options)


@main.command()
@option("--policy", type=FILE, metavar="DIR", help="The folder of a policy, from rl4sys-learner export.")
@option("--run", type=FILE, metavar="RUN", help="A run directory: record its newest checkpoint.")
@option("--client", metavar="ID", help="With --run: the client whose policy acts.  [default: the only one]")
@option("--env", metavar="ID", help="With a policy: the Gymnasium environment.")
@option("--minari", metavar="ID", help="A Minari dataset on this machine, instead of a policy and an environment.")
@option("--out", required=True, type=FILE, metavar="FILE", help="The new file, such as pole.npz.")
@option("--episodes", type=click.IntRange(1), default=20, help="Number of episodes.")
@option("--seed", type=click.IntRange(0), default=0, help="Seed of the episodes.")
@option("--explore", is_flag=True, help="Sample actions as in training.  [default: the most probable action]")
@plugin_option(expose_value=False)
def record(**options: Any) -> None:
    """Write a file of demonstrations, from which a training can start: episodes of a stored policy or of a Minari dataset."""
    from rl4sys_zmq.cli.stored_policies import record as run

    if sum(options[name] is not None for name in ("policy", "run", "minari")) != 1:
        raise click.UsageError("give one of --policy DIR, --run RUN and --minari ID")
    if (options["env"] is None) == (options["minari"] is None):
        raise click.UsageError("--env is required with --policy and --run, and does not apply to --minari")
    if options["client"] is not None and options["run"] is None:
        raise click.UsageError("--client applies to --run")
    if options["minari"] is not None:
        _require_defaults("episodes", "seed", "explore", problem="applies to --policy and --run, not to --minari")
    run(**options)


@main.command(name="serve-env")
@option("--env", required=True, metavar="ID", help="A Gymnasium environment.")
@option("--count", type=click.IntRange(1, 1024), default=1, help="Number of environments, each for one caller at a time.")
@option("--port", type=click.IntRange(0, 65535), help="Port on 127.0.0.1; 0 picks a free one.  [default: 5546]")
@option("--bind", metavar="ADDRESS", help="host:port or a URI, instead of --port.")
@option("--render-mode", metavar="MODE", help="The render mode of the environments: rgb_array, ansi, ...")
@option("--lease", type=FiniteRange(0, 86_400, min_open=True), default=60.0, help="Seconds of silence that free an environment.")
@option("--no-check", is_flag=True, help="Do not check that observations are in their space.")
@plugin_option(expose_value=False)
@option("--keys", type=FILE, metavar="DIR", help="The folder of keys from `rl4sys-learner keys DIR`.")
@option("--insecure", is_flag=True, help="Let other machines connect without keys.")
@option("--exit-with-stdin", is_flag=True, help="Exit when stdin is closed, so that a child process ends with its parent.")
@option("-v", "--verbose", is_flag=True, help="Print a line every few seconds.")
@option("--debug", is_flag=True, help="Log everything.")
def serve_env(**options: Any) -> None:
    """Serve environments of this machine to callers elsewhere, until Ctrl-C or SIGTERM.

    The first line of output has the address. To use an environment, call rl4sys_zmq.serving.RemoteEnv(ADDRESS).
    """
    from rl4sys_zmq.cli.servers import serve_env as run

    run(**options)


if __name__ == "__main__":
    main()
