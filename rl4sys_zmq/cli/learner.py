"""``rl4sys-learner``: the commands of the learner and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rl4sys_zmq.cli.app import (
    ADDRESS,
    FILE,
    SECONDS,
    CommandGroup,
    FiniteRange,
    amount,
    option,
    plugin_option,
    settings,
    size,
    version_option,
)
from rl4sys_zmq.cli.client_commands import client_commands


@click.group(name="rl4sys-learner", cls=CommandGroup, context_settings=settings("RL4SYS_LEARNER"))
@version_option
def main() -> None:
    """Central learner for RL4Sys actors: it trains policies on their data and sends them the weights.

    Exit codes: 0, 1 (failed), 2 (usage, configuration, or an address or directory that cannot be used), 130 (Ctrl-C).
    """


@main.command()
@option("--port", type=click.IntRange(0, 65535), help="Listen on this port of 127.0.0.1; 0 picks a free one.  [default: 50051]")
@option("--bind", metavar="ADDRESS", help="Listen at this address instead: host:port, tcp://, ipc:// or inproc://.")
@option("--pub", metavar="ADDRESS", help="Publish weights at this address.  [default: a free port of the same host]")
@option("--inference", metavar="ADDRESS|auto", help="Serve actions to actors at this address.  [default: no such service]")
@option("--advertise", metavar="HOST", help="Send actors this host for the weights.  [default: the host they connected to]")
@option("--config", type=FILE, metavar="FILE", help="A learner's configuration, or RL4Sys's config.json.")
@option("--run-dir", type=FILE, help="The run directory. A run in it continues.  [default: runs/learner]")
@option(
    "--resume",
    metavar="auto|never|accept-loss|PATH",
    help="auto: continue the run in the run directory. never: begin a new run. accept-loss: continue although a part of the "
    "journal is lost. PATH: return to the checkpoint in this folder.  [default: auto]",
)
@option("--init", type=FILE, metavar="PATH", help="A policy folder or .safetensors file: a new client starts with its weights.")
@option("--client", metavar="ID", help="With --init: the client.  [default: the one that the policy folder names]")
@option("--keys", type=FILE, metavar="DIR", help="The keys from `rl4sys-learner keys DIR`, for encryption and access control.")
@option("--users", type=FILE, metavar="FILE", help="The access list, with each user's rights.  [default: users.toml in --keys]")
@option(
    "--max-memory",
    type=size,
    metavar="SIZE",
    help="Memory limit, such as 8GiB. Above it the learner ends connections, then itself. 0: no limit.  [default: 80% of all]",
)
@option(
    "--engine",
    metavar="thread|process|ray",
    help="Train each client in a thread, in a process of its own, or on a node of a Ray cluster.  [default: thread]",
)
@option(
    "--ray-address",
    metavar="auto|local|HOST:PORT",
    help="The Ray cluster for --engine ray. auto: that of this machine. local: a Ray of the learner's own.  "
    "[default: RAY_ADDRESS, or else local]",
)
@option("--web", metavar="HOST:PORT", help="Serve the page of `rl4sys-learner web` there, in a process that ends with this one.")
@option("--web-keys", type=FILE, metavar="FILE", help="With --web and --keys: NAME.keys with the role admin, for the page.")
@plugin_option(expose_value=False)
@option("--debug", is_flag=True, help="Log everything.")
@option("--insecure", is_flag=True, help="Let other machines connect without keys.")
def serve(
    *,
    port: int | None,
    bind: str | None,
    config: Path | None,
    init: Path | None,
    client: str | None,
    users: Path | None,
    max_memory: int | None,
    web: str | None,
    web_keys: Path | None,
    debug: bool,
    insecure: bool,
    **options: Any,
) -> None:
    """Serve actors until Ctrl-C or SIGTERM.

    The first line of output has the address. If a client fails, its error is shown and the other clients continue. The run
    directory holds all acknowledged data and checkpoints of each client, so that a learner that was killed can continue.
    """
    from rl4sys_zmq.cli.serve import serve as run

    if port is not None and bind is not None:
        raise click.UsageError("give either --port or --bind")
    if client is not None and init is None:
        raise click.UsageError("--client applies to --init")
    if web_keys is not None and web is None:
        raise click.UsageError("--web-keys applies to --web")
    options |= {"users_file": users, "insecure": insecure or None}
    options["bind"] = bind if port is None else f"tcp://127.0.0.1:{port}"
    options = {key: value for key, value in options.items() if value is not None}
    run(config, options, debug=debug, max_memory_bytes=max_memory, init=init, client=client, web=web, web_keys=web_keys)


@main.command()
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS...", type=ADDRESS)
@option("--bind", default="127.0.0.1:8080", metavar="HOST:PORT", help="Serve the page there; port 0 picks a free one.")
@option("--keys", type=FILE, metavar="FILE", help="NAME.keys with the role admin, for learners with keys.")
@option(
    "--token-file",
    type=FILE,
    metavar="FILE",
    help="Only who has the token in this file can read.  [default: a new token, if other machines reach --bind]",
)
@option("--exit-with-stdin", is_flag=True, help="Exit when stdin is closed, so that a child process ends with its parent.")
@option("--debug", is_flag=True, help="Log everything.")
def web(addresses: tuple[str, ...], **options: Any) -> None:
    """Serve a page about the learners at ADDRESS... (host:port or a URI), until Ctrl-C or SIGTERM.

    It shows clients, curves, actors, machines and problems, and changes nothing. The first line of output has its address. The
    same address has /metrics for Prometheus, /healthz, /readyz and /api/status.
    """
    from rl4sys_zmq.cli.web import web as run

    run(addresses, **options)


@main.command()
@click.argument("upstream", type=ADDRESS)
@option("--bind", metavar="ADDRESS", help="Listen at this address: host:port, tcp://, ipc://.  [default: 127.0.0.1:50061]")
@option("--pub", metavar="ADDRESS", help="Publish weights at this address.  [default: a free port of the same host]")
@option("--advertise", metavar="HOST", help="Send children this host for the weights.  [default: the host they connected to]")
@option("--upstream-keys", type=FILE, metavar="FILE", help="NAME.keys with the role relay, for an upstream with keys.")
@option("--keys", type=FILE, metavar="DIR", help="The relay's own keys from `rl4sys-learner keys DIR`.")
@option("--users", type=FILE, metavar="FILE", help="The access list of the children.  [default: users.toml in --keys]")
@option("--max-clients", type=click.IntRange(1), help="Largest number of clients whose weights it holds.  [default: 64]")
@option("--max-children", type=click.IntRange(1), help="Largest number of actors and relays behind it.  [default: 4096]")
@option("--messages-per-s", type=float, help="Limit on the requests per second of each child.  [default: 50]")
@option(
    "--max-memory",
    type=size,
    metavar="SIZE",
    help="Memory limit, such as 1GiB. Above it the relay ends connections, then itself. 0: no limit.  [default: 80% of all]",
)
@option("--debug", is_flag=True, help="Log everything.")
@option("--insecure", is_flag=True, help="Let other machines connect without keys.")
def relay(*, users: Path | None, max_memory: int | None, debug: bool, insecure: bool, **options: Any) -> None:
    """Pass the weights of the learner or relay at UPSTREAM on to actors and further relays, until Ctrl-C or SIGTERM.

    The first line of output has the address. Name the relay in the learner's configuration (relays), or in an actor's. Actors
    send their data to the learner all the same.
    """
    from rl4sys_zmq.cli.servers import relay as run
    from rl4sys_zmq.memory_watch import memory_limit

    options |= {"users_file": users, "max_memory_bytes": memory_limit(max_memory), "insecure": insecure or None}
    run({key: value for key, value in options.items() if value is not None}, debug=debug)


@main.command()
@option("--env", default="CartPole-v1", metavar="ID", help="A Gymnasium environment.")
@option("--algorithm", metavar="NAME", default="PPO", help="The algorithm, from the list of `rl4sys-learner algorithms`.")
@option("--seed", type=click.IntRange(0), default=1, help="The seed of all random numbers.")
@option("--actors", type=click.IntRange(1, 64), help="Number of actor processes.  [default: the task's, usually 2]")
@option("--max-seconds", type=SECONDS, default=300.0, help="Stop after this time, in seconds.")
@option("--target", type=float, help="The mean return of 100 episodes to reach.  [default: the task's]")
@option("--hold", is_flag=True, help="Continue to twice the steps, to check that the return stays high.")
@option("--run-dir", type=FILE, help="The run directory.  [default: runs/demo-ENV-ALGORITHM-SEED, then -2, -3, ...]")
@plugin_option()
@option("--debug", is_flag=True, help="Log everything.")
def demo(env: str, **options: Any) -> int:
    """Train a task on this machine, with a learner in this process and actors in separate processes.

    The results are a summary, a PNG learning curve and a TensorBoard directory. The exit code is 0 if the target was reached,
    or if the environment has no known target and --max-seconds are over, else 1.
    """
    from rl4sys_zmq.cli.demo import DemoOptions
    from rl4sys_zmq.cli.demo import demo as run

    return run(DemoOptions(env_id=env, **options))


@main.command()
@click.argument("address", type=ADDRESS)
@option("--json", is_flag=True, help="Print the whole report as JSON.")
@option("--watch", is_flag=True, help="Repeat every second, until Ctrl-C.")
@option("--check", is_flag=True, help="End with 1 if a client has failed, else with 3 if there is a line with !!, else with 0.")
@option("--keys", type=FILE, metavar="FILE", help="NAME.keys with the role admin, for a learner with keys.")
@option("--timeout", type=SECONDS, default=3.0, help="Seconds to wait for the learner.")
def status(address: str, json: bool, watch: bool, check: bool, keys: Path | None, timeout: float) -> int:
    """Show the learner at ADDRESS (host:port or a URI): its clients (policies), their actors, its journal, and refusals.

    ADDRESS can also be that of a relay.

    Problems are marked with !!. The column "saved" counts the segments that a checkpoint covers.
    """
    from rl4sys_zmq.cli.status import check_code, show_status

    if watch and check:
        raise click.UsageError("give either --watch or --check")
    report = show_status(address, timeout, keys=keys, as_json=json, watch=watch)
    return check_code(report) if check else 0


main.add_command(client_commands)


@main.command()
@click.argument("address", type=ADDRESS)
@option("--keys", type=FILE, metavar="FILE", help="NAME.keys, for a learner with keys.  [default: the configuration's]")
@option("--config", type=FILE, metavar="FILE", help="An actor's configuration, to compare with the learner's.")
@option("--timeout", type=SECONDS, default=3.0, help="Time limit of each stage, in seconds.")
def doctor(address: str, keys: Path | None, config: Path | None, timeout: float) -> int:
    """Find out why an actor on this machine does not reach the learner at ADDRESS (host:port or a URI).

    The output has a line for each stage. At the first stage that fails it has the cause and the remedy. The exit code is 0 if no
    stage fails, else 1.
    """
    from rl4sys_zmq.cli.status import doctor as run

    return run(address, keys, config, timeout)


@main.command()
@click.argument("folder", metavar="DIR", type=FILE)
@option("--user", metavar="NAME", help="Create NAME.keys for an actor, a caller or a person, and list it in users.toml.")
@option("--client-id", multiple=True, metavar="ID", help="A client that the user may act for; repeatable.  [default: all]")
@option(
    "--role",
    type=click.Choice(["submit", "read_weights", "admin", "call", "relay"]),
    multiple=True,
    help="A role of the user; admin: status and commands; call: services; relay: pass weights on; repeatable.  "
    "[default: submit and read_weights]",
)
@option("--expires", metavar="DATE", help="The end of the key's validity (UTC), such as 2027-01-01.  [default: never]")
@option("--revoke", metavar="NAME", help="Remove NAME from the list; takes effect on a running learner within a second.")
def keys(
    folder: Path,
    user: str | None,
    client_id: tuple[str, ...],
    role: tuple[str, ...],
    expires: str | None,
    revoke: str | None,
) -> None:
    """Create a learner's keys in DIR, and keys for the users that can connect to it.

    Without options, create learner.secret, learner.public and an empty list of users. Existing files are not changed.
    """
    from rl4sys_zmq.cli.keys import add_user, make_keys, revoke_user

    if user is not None and revoke is not None:
        raise click.UsageError("give either --user or --revoke")
    if user is None and (client_id or role or expires):
        raise click.UsageError("--client-id, --role and --expires apply to a new user; give --user NAME")
    if user is not None:
        add_user(folder, user, client_id or ("*",), role or ("submit", "read_weights"), expires)
    elif revoke is not None:
        revoke_user(folder, revoke)
    else:
        make_keys(folder)


@main.command()
@click.argument("run", type=FILE)
@option("--show", metavar="N|PATH", help="Show one dead letter, given by its number in the list or its file.")
@option("--client", metavar="ID", help="Only the dead letters of this client.")
@option("--json", is_flag=True, help="Print JSON.")
@option("--clear", is_flag=True, help="Remove the dead letters that would be listed.")
def deadletter(run: Path, show: str | None, client: str | None, json: bool, clear: bool) -> None:
    """List the segments that the learner of the run directory RUN could not train on, with the reasons."""
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
@option(
    "-o",
    "--output",
    type=FILE,
    help="The picture, which is replaced; its suffix determines the format.  [default: the first free name of curve.png, "
    "curve-2.png, ...]",
)
@option("--what", type=click.Choice(["returns", "system"]), default="returns", help="system: processors, memory, disk, network.")
@option(
    "--group",
    type=click.Choice(["client", "seed"]),
    help="client: one line for the runs of a client that differ in the seed only. seed: a line for each run.  [default: client]",
)
@option("--window", type=click.IntRange(1), help="Number of episodes in the moving mean.  [default: 100]")
@option("--x", type=click.Choice(["steps", "time", "updates"]), help="The axis.  [default: steps and time, side by side]")
@option("--target", type=float, help="Draw a line at this return.")
@option("--csv", type=FILE, metavar="FILE", help="Also write the curve of each run as a table, which replaces the file.")
def plot(runs: tuple[Path, ...], output: Path | None, what: str, csv: Path | None, **options: Any) -> None:
    """Draw the learning curves of run directories into one picture.

    Training that was undone is left out, and so is the time during which no learner ran.

    Runs of one client become one line: the mean of their moving means, in a band from the lowest to the highest. Values between
    two episodes are interpolated. Where some runs have ended, mean and band are those of the others, and the line is dotted.
    """
    from rl4sys_zmq.cli.plot import plot_returns, plot_system

    if what == "returns":
        plot_returns(runs, output, csv, **options)
        return
    if given := [name for name, value in options.items() if value is not None]:
        raise click.UsageError(f"--{given[0]} applies to --what returns")
    plot_system(runs, output, csv)


@main.command()
@click.argument("run", type=FILE)
@option("--client", metavar="ID", help="The client whose policy is exported.  [default: the only one]")
@option("-o", "--output", type=FILE, default=Path("policy"), metavar="DIR", help="The folder to write.")
@option("--force", is_flag=True, help="Replace the folder if it is a policy folder.")
def export(run: Path, client: str | None, output: Path, force: bool) -> None:
    """Write the policy in the newest checkpoint of the run directory RUN to a folder, for use without a learner.

    The folder gets the weights as named tensors (safetensors), the description of the policy, and an ONNX file if the policy
    has that form. RUN can also be the folder of one checkpoint. A running learner is not disturbed.
    """
    from rl4sys_zmq.cli.stored_policies import export as run_export

    run_export(run, client, output, force=force)


@main.command("alarm-test")
@click.argument("file", type=FILE)
def alarm_test(file: Path) -> int:
    """Send a test message to the webhook and the command of `alarms` in FILE, a learner's configuration.

    The output has a line for each receiver. The exit code is 0 if each took the message, else 1.
    """
    from rl4sys_zmq.cli.check import alarm_test as run

    return run(file)


@main.group("config")
def configuration() -> None:
    """Check configuration files."""


@configuration.command()
@click.argument("file", type=FILE)
@plugin_option(expose_value=False)
def check(file: Path) -> None:
    """Validate FILE, an actor's or a learner's configuration in any accepted form, and print the resulting values."""
    from rl4sys_zmq.cli.check import check_file

    check_file(file)


@main.command()
@option("--actors", type=click.IntRange(1), help="Number of actors of all clients together.")
@option("--steps-per-s", type=FiniteRange(0), help="Environment steps per second of each actor.")
@option("--model-bytes", type=amount, metavar="SIZE", help="Size of the weights of a policy in float32, such as 300kB.")
@option("--obs-bytes", type=amount, metavar="SIZE", default="32", help="Size of an observation.")
@option("--action-bytes", type=amount, metavar="SIZE", default="8", help="Size of an action.")
@option("--segment-steps", type=click.IntRange(1), default=128, help="Steps of a segment, the option rollout_length.")
@option("--segments-per-message", type=click.IntRange(1, 64), default=1, help="Segments in a message, the option send_frequency.")
@option("--publish-per-s", type=FiniteRange(0), default=1.0, help="Versions of the weights per second of each client.")
@option("--weights-level", type=click.IntRange(0, 1), default=1, help="The option weights.level: 0 sends all weights.")
@option("--clients", type=click.IntRange(1), default=1, help="Number of clients, each a policy with its own learner thread.")
@option("--journal", type=click.Choice(["memory", "sqlite"]), default="sqlite", help="Storage of the journal of accepted data.")
@option("--fsync", type=click.Choice(["normal", "always"]), default="normal", help="The option fsync of the journal.")
@option("--journal-max", type=amount, metavar="SIZE", default="4GiB", help="The option journal_max_bytes.")
@option("--checkpoint-every-s", type=FiniteRange(0, min_open=True), default=10.0, help="The option of this name, in seconds.")
@option("--keys", is_flag=True, help="Connections are encrypted.")
@option("--algorithm", type=click.Choice(["PPO", "DQN"]), help="Include the training of this algorithm.  [default: no training]")
@option("--minibatch", type=click.IntRange(1), help="Rows of a gradient step.  [default: the algorithm's]")
@option("--epochs", type=click.IntRange(1), help="Passes of PPO over its data.  [default: the algorithm's]")
@option("--cores", type=click.IntRange(1), help="Processor cores of the learner's machine.  [default: those of this machine]")
@option("--memory", type=amount, metavar="SIZE", help="Memory of the learner.  [default: 80% of this machine's]")
@option("--bandwidth", type=amount, metavar="BITS", help="Speed of the learner's network in bits per second, such as 1G.")
@option("--measure", is_flag=True, help="Measure the constants on this machine, in about a minute, and keep them.")
@option("--constants", type=FILE, metavar="FILE", help="The file of the constants.  [default: in the user's folder for caches]")
@option("--json", is_flag=True, help="Print JSON.")
def capacity(**options: Any) -> None:
    """Predict the load of a learner, and name the first limit.

    The prediction needs --actors, --steps-per-s and --model-bytes. It uses constants that --measure has measured on this machine,
    or else constants that are recorded in this package. For loads above 70 % it proposes a change.
    """
    from rl4sys_zmq.cli.capacity import capacity as run

    needed = [options[name] is not None for name in ("actors", "steps_per_s", "model_bytes")]
    if not all(needed) and (any(needed) or not options["measure"]):
        raise click.UsageError("give --actors, --steps-per-s and --model-bytes, or --measure")
    run(**options)


@main.command()
@plugin_option(expose_value=False)
def algorithms() -> None:
    """List the algorithms, each with a summary, its parameters (default, meaning, synonyms) and its presets.

    The list has the algorithms of this package, of installed distributions and of --plugin. Those that cannot be loaded are
    marked with !!, and parameters that can change in a running client (`rl4sys-learner client ... set`) with *.
    """
    from rl4sys_zmq.cli.check import list_algorithms

    list_algorithms()


if __name__ == "__main__":
    main()
