"""``rl4sys-actor``: the commands of the actor's side, and their options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # read when numpy is loaded; its small products are slower with two threads

from rl4sys_zmq.cli.app import Commands, option, plugin_option, settings, version_option  # noqa: E402 - numpy comes with this

__all__ = ["main"]


@click.group(name="rl4sys-actor", cls=Commands, context_settings=settings("RL4SYS_ACTOR"))
@version_option
def main() -> None:
    """Actors for RL4Sys learners: they act with the learner's policy and send back what happened.

    Exit codes: 0, 1 (failed), 2 (usage or configuration), 130 (Ctrl-C).
    """


@main.command()
@option("--env", required=True, metavar="ID", help="A Gymnasium environment.")
@option("--learner", metavar="ADDRESS", help="host:port or a URI.  [default: the file's, else localhost:50051]")
@option("--client-id", metavar="NAME", help="The policy to act with and to train; required unless the file names it.")
@option("--config", type=click.Path(path_type=Path), metavar="FILE", help="An agent's configuration.")
@option("--num-envs", type=click.IntRange(1, 4096), default=4, help="Environments in this process, one batch for all.")
@option("--episodes", type=click.IntRange(1), help="End after so many episodes.  [default: never]")
@option("--seed", type=click.IntRange(0), help="Of the environments and of the actor.  [default: from the OS]")
@option("--algorithm", metavar="NAME", help="What shall learn, if neither the file nor the learner says it.")
@option("--keys", type=click.Path(path_type=Path), metavar="FILE", help="NAME.keys, for a learner with keys.")
@plugin_option(expose_value=False)
@option("--spool", type=click.Path(path_type=Path), metavar="DIR", help="Keep finished segments here until the learner has them.")
@option("--sidecar", is_flag=True, help="Sockets in a process of their own.")
@option("--connect-timeout", type=click.FloatRange(0), help="Seconds to wait for the learner.  [default: 10]")
@option("--exit-with-stdin", is_flag=True, help="End when stdin is closed: a child then never outlives its parent.")
@option("-v", "--verbose", is_flag=True, help="A line every few seconds.")
@option("--debug", is_flag=True, help="Log everything.")
def run(env: str, config: Path | None, connect_timeout: float | None, **options: Any) -> None:
    """Run environments against a learner, until --episodes, Ctrl-C or SIGTERM."""
    from rl4sys_zmq.cli.act import Run, act

    act(Run(env_id=env, config_path=config, connect_timeout_s=connect_timeout, **options))


@main.command(name="serve-env")
@option("--env", required=True, metavar="ID", help="A Gymnasium environment.")
@option("--count", type=click.IntRange(1, 1024), default=1, help="So many of it, each for one client at a time.")
@option("--port", type=click.IntRange(0, 65535), help="On 127.0.0.1; 0 takes a free one.  [default: 5546]")
@option("--bind", metavar="ADDRESS", help="host:port or a URI, instead of --port.")
@option("--render-mode", metavar="MODE", help="What clients can render: rgb_array, ansi, ...")
@option(
    "--lease", type=click.FloatRange(0, 86_400, min_open=True), default=60.0, help="Seconds of silence, then others may take it."
)
@option("--no-check", is_flag=True, help="Let observations outside their space pass.")
@option("--keys", type=click.Path(path_type=Path), metavar="DIR", help="The server's keys, as `rl4sys-learner keys` makes them.")
@option("--insecure", is_flag=True, help="Let other machines in without keys.")
@option("--exit-with-stdin", is_flag=True, help="End when stdin is closed: a child then never outlives its parent.")
@option("-v", "--verbose", is_flag=True, help="A line every few seconds.")
@option("--debug", is_flag=True, help="Log everything.")
def serve_env(**options: Any) -> None:
    """Serve environments that run here to clients elsewhere, until Ctrl-C or SIGTERM.

    The first line says the address; rl4sys_zmq.serving.RemoteEnv(ADDRESS) is one of them.
    """
    from rl4sys_zmq.cli.serve_env import ServeEnv
    from rl4sys_zmq.cli.serve_env import serve_env as run

    run(ServeEnv(**options))


if __name__ == "__main__":
    main()
