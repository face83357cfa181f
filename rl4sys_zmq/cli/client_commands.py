"""``rl4sys-learner client ADDRESS ID``: an operator's commands for one client.

They are sent to a running learner, or carried out in the run directory of a stopped one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from rl4sys_zmq.cli.app import ADDRESS, FILE, SECONDS, option, print_line
from rl4sys_zmq.errors import ConfigError


class CommandTarget(NamedTuple):
    """The learner and the client to which a command applies. `address` can be the path of a run directory."""

    address: str
    client_id: str


class _ClientCommandGroup(click.Group):
    """The group of commands. The help of a command needs no ADDRESS and no ID."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks = args[1:] and args[0] in self.commands and set(args[1:]) & set(ctx.help_option_names)
        return super().parse_args(ctx, ["localhost:50051", "ID", *args] if asks else args)


@click.group("client", cls=_ClientCommandGroup)
@click.argument("address")
@click.argument("client_id", metavar="ID")
@click.pass_context
def client_commands(context: click.Context, address: str, client_id: str) -> None:
    """Send a command for the client ID to the learner at ADDRESS (host:port or a URI).

    ADDRESS can also be the run directory of a learner that is not running. The effect of a command that has returned survives
    kill -9.
    """
    context.obj = CommandTarget(address, client_id)
    if not Path(address).is_dir():
        ADDRESS.convert(address, None, context)


def _client_options(command: Callable[..., None]) -> Callable[..., None]:
    for decorate in (
        option("--json", is_flag=True, help="Print the figures as JSON."),
        option("--keys", type=FILE, metavar="FILE", help="NAME.keys with the role admin, for a learner with keys."),
        option("--timeout", type=SECONDS, default=30.0, help="Seconds to wait for the learner."),
        click.pass_obj,
    ):
        command = decorate(command)
    return command


def _run(
    target: CommandTarget, command: str, options: Mapping[str, Any], *, actor_id: str = "", values: Sequence[str] = ()
) -> None:
    from rl4sys_zmq.wire.messages import OperatorCommand

    message = OperatorCommand(command, target.client_id, actor_id, _parameters(values))
    if (run_dir := Path(target.address)).is_dir():
        from rl4sys_zmq.learner.gateway.offline import command_on_directory

        done = command_on_directory(run_dir, message)
    else:
        from rl4sys_zmq.ops.requests import request_command
        from rl4sys_zmq.security.keys import read_user_keys

        keys = read_user_keys(options["keys"])[1] if options["keys"] is not None else None
        done = request_command(target.address, message, options["timeout"], keys)
    print_line(json.dumps(done.figures, sort_keys=True) if options["json"] else done.text)


def _parameters(values: Sequence[str]) -> dict[str, Any]:
    pairs = dict[str, Any]()
    for text in values:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ConfigError(f"{text!r} is not of the form NAME=VALUE, such as learning_rate=1e-3", key="algorithm_parameters")
        if name in pairs:
            raise ConfigError(f"{name} is given twice", key=f"algorithm_parameters.{name}")
        pairs[name] = _value(name, value)
    return pairs


def _value(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError as exc:
        raise ConfigError(f"{name}: the value is nested too deeply", key=name) from exc


@client_commands.command()
@_client_options
def restart(target: CommandTarget, **options: Any) -> None:
    """Restart the training of the client in a new thread, from its newest checkpoint and with the data accepted since then.

    This also restarts a failed client. The command needs a running learner. A learner that is started does the same for all of
    its clients.
    """
    _run(target, "restart", options)


@client_commands.command("give-up-pending")
@_client_options
def give_up_pending(target: CommandTarget, **options: Any) -> None:
    """Discard the data accepted since the client's newest checkpoint, for a client whose training fails on it repeatedly.

    The data is counted as rolled back.
    """
    _run(target, "give-up-pending", options)


@client_commands.command()
@_client_options
def forget(target: CommandTarget, **options: Any) -> None:
    """Remove the client: end its training, and remove its accepted data from the journal.

    Checkpoints are renamed to NUMBER.abandoned, not deleted. The client's actors are disconnected. The next actor that joins
    creates the client anew.
    """
    _run(target, "forget", options)


@client_commands.command("drop-actor")
@click.argument("actor_id")
@_client_options
def drop_actor(target: CommandTarget, actor_id: str, **options: Any) -> None:
    """Remove the record of an actor: one that is refused as an old start, belongs to a lost key or occupies a slot.

    The actor can then join again. Its accepted segments stay, and pending ones will be trained on.
    """
    _run(target, "drop-actor", options, actor_id=actor_id)


@client_commands.command("set")
@click.argument("values", nargs=-1, required=True, metavar="NAME=VALUE...")
@_client_options
def set_(target: CommandTarget, values: tuple[str, ...], **options: Any) -> None:
    """Change parameters of the client's algorithm, such as learning_rate=1e-3. A value is JSON, or else text.

    The new values are in force from the next update on, and survive a restart. `rl4sys-learner algorithms` marks the parameters
    that can change with *. `status --json` shows those in force.
    """
    _run(target, "set", options, values=values)
