"""``rl4sys-learner``: the commands of the learner's side, and their options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rl4sys_zmq.cli.app import Commands, option, plugin_option, settings, size, version_option

if TYPE_CHECKING:
    from rl4sys_zmq.cli.client import Target

__all__ = ["main"]

FILE = click.Path(path_type=Path)


@click.group(name="rl4sys-learner", cls=Commands, context_settings=settings("RL4SYS_LEARNER"))
@version_option
def main() -> None:
    """Central learner for RL4Sys actors: it trains policies from what they send, and sends them the weights.

    Exit codes: 0, 1 (failed), 2 (usage, configuration, or an address or directory that can't be had), 130 (Ctrl-C).
    """


@main.command()
@option("--port", type=click.IntRange(0, 65535), help="Listen on this port of 127.0.0.1; 0 picks a free one.  [default: 50051]")
@option("--bind", metavar="ADDRESS", help="Listen here instead: host:port, tcp://, ipc:// or inproc://.")
@option("--pub", metavar="ADDRESS", help="Publish weights here.  [default: a free port of the same host]")
@option("--inference", metavar="ADDRESS|auto", help="Choose actions for actors that ask here.  [default: nowhere]")
@option("--advertise", metavar="HOST", help="Tell actors this host for the weights.  [default: the one they dialled]")
@option("--config", type=FILE, metavar="FILE", help="Our learner configuration or RL4Sys's config.json.")
@option("--run-dir", type=FILE, help="Files go here, and a run that is here goes on.  [default: runs/learner]")
@option(
    "--resume",
    metavar="auto|never|accept-loss|PATH",
    help="Go on with what the run directory holds; begin another run; go on though a part of the journal is gone; or go back to "
    "a checkpoint's folder.  [default: auto]",
)
@option(
    "--keys", type=FILE, metavar="DIR", help="The learner's keys, from `rl4sys-learner keys DIR`: encrypt, and know everyone."
)
@option("--users", type=FILE, metavar="FILE", help="What the user of each key may do.  [default: users.toml in the keys' DIR]")
@option(
    "--max-memory",
    type=size,
    metavar="SIZE",
    help="Beyond this resident size, such as 8GiB, end connections, and at last the learner; 0: never.  [default: 80% of all]",
)
@plugin_option(expose_value=False)
@option("--debug", is_flag=True, help="Log everything.")
@option("--insecure", is_flag=True, help="Let other machines connect without keys.")
def serve(
    *,
    port: int | None,
    bind: str | None,
    pub: str | None,
    inference: str | None,
    advertise: str | None,
    config: Path | None,
    run_dir: Path | None,
    resume: str | None,
    keys: Path | None,
    users: Path | None,
    max_memory: int | None,
    debug: bool,
    insecure: bool,
) -> None:
    """Serve actors until Ctrl-C or SIGTERM.

    The first line says the address. A client that fails is shown, and the others go on. What was acknowledged to an actor is in
    the run directory, with checkpoints of every client: killed and started again, the learner goes on.
    """
    from rl4sys_zmq.cli.serve import serve as run

    if port is not None and bind is not None:
        raise click.UsageError("give either --port or --bind")
    given: dict[str, Any] = {
        "bind": bind,
        "pub": pub,
        "inference": inference,
        "advertise": advertise,
        "run_dir": run_dir,
        "resume": resume,
        "keys": keys,
        "users_file": users,
        "insecure": insecure or None,
    }
    if port is not None:
        given["bind"] = f"tcp://127.0.0.1:{port}"
    run(config, {k: v for k, v in given.items() if v is not None}, debug=debug, max_memory_bytes=max_memory)


@main.command()
@option("--env", default="CartPole-v1", metavar="ID", help="A Gymnasium environment.")
@option("--algorithm", metavar="NAME", default="PPO", help="What learns: a name that `rl4sys-learner algorithms` lists.")
@option("--seed", type=click.IntRange(0), default=1, help="Of everything that is random.")
@option("--actors", type=click.IntRange(1, 64), help="Actor processes.  [default: the task's, mostly 2]")
@option("--max-seconds", type=click.FloatRange(0, min_open=True), default=300.0, help="Give up after this long.")
@option("--target", type=float, help="The mean return of 100 episodes to reach.  [default: the task's]")
@option("--hold", is_flag=True, help="Go on to twice the steps, to see whether the return stays.")
@option("--run-dir", type=FILE, help="Files go here.  [default: runs/demo-ENV-ALGORITHM-SEED, then -2, -3, ...]")
@plugin_option()
@option("--debug", is_flag=True, help="Log everything.")
def demo(env: str, **options: Any) -> int:
    """Train a task on this machine: a learner in this process, and actors in processes of their own.

    Ends with a summary, a PNG learning curve and a TensorBoard directory. Exits 0 when the target was reached, 1 otherwise.
    """
    from rl4sys_zmq.cli.demo import Demo
    from rl4sys_zmq.cli.demo import demo as run

    return run(Demo(env_id=env, **options))


@main.command()
@click.argument("address")
@option("--json", is_flag=True, help="The whole report, as JSON.")
@option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@option("--keys", type=FILE, metavar="FILE", help="NAME.keys with the role admin, for a learner with keys.")
@option("--timeout", type=click.FloatRange(0, min_open=True), default=3.0, help="Seconds to wait for the learner.")
def status(address: str, json: bool, watch: bool, keys: Path | None, timeout: float) -> None:
    """Show the learner at ADDRESS (host:port or a URI): its clients and their actors, the journal, who was refused.

    What is wrong stands behind !!. "saved" is what a checkpoint covers.
    """
    from rl4sys_zmq.cli.look import show_status

    show_status(address, timeout, keys=keys, as_json=json, watch=watch)


class _OfClient(click.Group):
    """A group with arguments of its own; the help of a command is there without them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the names of the arguments where they would stand, if only help is asked for."""
        asks = args[1:] and args[0] in self.commands and set(args[1:]) & set(ctx.help_option_names)
        return super().parse_args(ctx, ["ADDRESS", "ID", *args] if asks else args)


@main.group(cls=_OfClient)
@click.argument("address")
@click.argument("client_id", metavar="ID")
@click.pass_context
def client(context: click.Context, address: str, client_id: str) -> None:
    """Do something to the client ID of the learner at ADDRESS (host:port or a URI), or in a run directory.

    ADDRESS may also be the run directory of a learner that is down. What is said to be done outlasts kill -9.
    """
    from rl4sys_zmq.cli.client import Target

    context.obj = Target(address, client_id)


def _client_options(command: Callable[..., None]) -> Callable[..., None]:
    for decorate in (
        option("--json", is_flag=True, help="The figures, as JSON."),
        option("--keys", type=FILE, metavar="FILE", help="NAME.keys with the role admin, for a learner with keys."),
        option("--timeout", type=click.FloatRange(0, min_open=True), default=30.0, help="Seconds to wait for the learner."),
        click.pass_obj,
    ):
        command = decorate(command)
    return command


def _run_on_client(target: Target, command: str, actor_id: str, options: dict[str, Any]) -> None:
    from rl4sys_zmq.cli.client import run_command

    keys, timeout_s, as_json = options["keys"], options["timeout"], options["json"]
    run_command(target, command, actor_id, keys=keys, timeout_s=timeout_s, as_json=as_json)


@client.command()
@_client_options
def restart(target: Target, **options: Any) -> None:
    """Give it a new learner thread, which goes on from its newest checkpoint and is fed again what came since.

    A failed client runs again that way. Needs a running learner: a start does the same.
    """
    _run_on_client(target, "restart", "", options)


@client.command("give-up-pending")
@_client_options
def give_up_pending(target: Target, **options: Any) -> None:
    """Roll back what it accepted since its newest checkpoint: the way out when it fails on just that, again and again."""
    _run_on_client(target, "give-up-pending", "", options)


@client.command()
@_client_options
def forget(target: Target, **options: Any) -> None:
    """Remove it: its learner thread, its rows in the journal. Checkpoints are put aside (NUMBER.abandoned), none is deleted.

    Its actors are sent away; the next that joins founds it anew.
    """
    _run_on_client(target, "forget", "", options)


@client.command("drop-actor")
@click.argument("actor_id")
@_client_options
def drop_actor(target: Target, actor_id: str, **options: Any) -> None:
    """Drop the record of an actor that is fenced, belongs to a lost key or holds a place; then it may join again.

    What was accepted of it stays; what is pending will be trained on.
    """
    _run_on_client(target, "drop-actor", actor_id, options)


@main.command()
@click.argument("address")
@option("--keys", type=FILE, metavar="FILE", help="NAME.keys, for a learner with keys.  [default: the configuration's]")
@option("--config", type=FILE, metavar="FILE", help="An actor's configuration, to be compared with the learner's.")
@option("--timeout", type=click.FloatRange(0, min_open=True), default=3.0, help="Seconds for each stage.")
def doctor(address: str, keys: Path | None, config: Path | None, timeout: float) -> int:
    """Find out why an actor on this machine does not reach the learner at ADDRESS (host:port or a URI).

    A line for each stage, up to the first that fails, with the cause and the remedy. Exits 0 when none fails, 1 otherwise.
    """
    from rl4sys_zmq.cli.doctor import doctor as run

    return run(address, keys, config, timeout)


@main.command()
@click.argument("folder", metavar="DIR", type=FILE)
@option("--user", metavar="NAME", help="Make NAME.keys for an actor, a caller or a person, and list it in users.toml.")
@option("--client-id", multiple=True, metavar="ID", help="A policy that the user may act for, repeatable.  [default: all]")
@option(
    "--role",
    type=click.Choice(["submit", "read_weights", "admin", "call"]),
    multiple=True,
    help="What the user may do, repeatable; admin: status and commands; call: services.  [default: submit and read_weights]",
)
@option("--expires", metavar="DATE", help="The key is valid until then (UTC), such as 2027-01-01.  [default: for ever]")
@option("--revoke", metavar="NAME", help="Take NAME off the list; a running learner notices within a second.")
def keys(
    folder: Path,
    user: str | None,
    client_id: tuple[str, ...],
    role: tuple[str, ...],
    expires: str | None,
    revoke: str | None,
) -> None:
    """Make a learner's keys in DIR, and keys for the users that may reach it.

    Without options: learner.secret, learner.public and an empty list of users; existing files are left alone.
    """
    from rl4sys_zmq.cli.keys import add_user, make_keys, revoke_user

    if user is not None and revoke is not None:
        raise click.UsageError("give either --user or --revoke")
    if user is None and (client_id or role or expires):
        raise click.UsageError("--client-id, --role and --expires say what a --user may do; give --user NAME")
    if user is not None:
        add_user(folder, user, client_id or ("*",), role or ("submit", "read_weights"), expires)
    elif revoke is not None:
        revoke_user(folder, revoke)
    else:
        make_keys(folder)


@main.command()
@click.argument("run", type=FILE)
@option("--show", metavar="N|PATH", help="What is in one letter: its number in the list, or its file.")
@option("--client", metavar="ID", help="Only those of this client.")
@option("--json", is_flag=True, help="As JSON.")
@option("--clear", is_flag=True, help="Remove the letters that would be listed.")
def deadletter(run: Path, show: str | None, client: str | None, json: bool, clear: bool) -> None:
    """List the segments that the learner of the run directory RUN could not train on, and why."""
    from rl4sys_zmq.cli.deadletter import clear_letters, print_letters, show_letter

    if clear and show is not None:
        raise click.UsageError("give either --show or --clear")
    if show is not None:
        show_letter(run, show, client, as_json=json)
    elif clear:
        clear_letters(run, client)
    else:
        print_letters(run, client, as_json=json)


@main.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=FILE)
@option("-o", "--output", type=FILE, default=Path("curve.png"), help="The picture; its suffix chooses the format.")
@option("--target", type=float, help="Draw a line at this return.")
def plot(runs: tuple[Path, ...], output: Path, target: float | None) -> None:
    """Draw the learning curves of run directories into one picture."""
    from rl4sys_zmq.cli.look import plot as run

    run(runs, output, target)


@main.group("config")
def configuration() -> None:
    """Look at configuration files."""


@configuration.command()
@click.argument("file", type=FILE)
@plugin_option(expose_value=False)
def check(file: Path) -> None:
    """Validate FILE, an actor's or a learner's configuration in any accepted form, and say what will be used."""
    from rl4sys_zmq.cli.check import check_file

    check_file(file)


@main.command()
@option(
    "--what",
    type=click.Choice(["step", "ingress", "weights", "fanout", "infer", "train"]),
    multiple=True,
    help="Only this, repeatable.  [default: all]",
)
@option("--pairs", type=click.IntRange(1), default=5, help="Of ours and the baseline, in turn.")
@option("--seconds", type=click.FloatRange(0, min_open=True), default=5.0, help="Of each measurement of a loop.")
@option("--peers", is_flag=True, help="Other people's ways too: gRPC, pickle and lz4, Stable-Baselines3, RLlib (`make peers`).")
@option("--json", type=FILE, metavar="FILE", help="Write all figures here too.")
def bench(what: tuple[str, ...], pairs: int, seconds: float, peers: bool, json: Path | None) -> None:
    """Measure the published figures on this machine, each beside a baseline that runs in turn with it.

    step: what acting costs, import, memory, a control loop, collected steps. ingress: trajectories in, also to disk.
    weights: the bytes of diffs. fanout: an update's way to the actors.
    infer: remote inference, beside REQ and REP. train: CartPole to 475.
    """
    from rl4sys_zmq.cli.app import require
    from rl4sys_zmq.cli.bench import bench as run

    require("gym", "gymnasium")
    run(what, pairs, seconds, peers=peers, path=json)


@main.command()
@plugin_option(expose_value=False)
def algorithms() -> None:
    """List the algorithms, with one line on each, its parameters (default, meaning, synonyms) and its presets.

    Those that ship, those of installed distributions, and those of --plugin. What cannot be loaded stands behind !!.
    """
    from rl4sys_zmq.cli.check import list_algorithms

    list_algorithms()


if __name__ == "__main__":
    main()
