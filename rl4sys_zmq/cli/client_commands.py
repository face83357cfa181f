"""``rl4sys-learner client ADDRESS ID``: an operator's commands for one client, and their options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from rl4sys_zmq.cli.app import ADDRESS, FILE, SECONDS, option

if TYPE_CHECKING:
    from rl4sys_zmq.cli.client import CommandTarget
    from rl4sys_zmq.wire.messages import OperatorCommand


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
    """Send a command for the client ID (a policy with its learner) to the learner at ADDRESS (host:port or a URI).

    ADDRESS can also be the run directory of a learner that is not running. The effect of a command that has returned survives
    kill -9.
    """
    from rl4sys_zmq.cli.client import CommandTarget

    context.obj = CommandTarget(address, client_id)
    if context.obj.run_dir is None:
        ADDRESS.convert(address, None, context)


class ClientCommandOptions(TypedDict):
    json: bool
    keys: Path | None
    timeout: float


def _client_options(command: Callable[..., None]) -> Callable[..., None]:
    for decorate in (
        option("--json", is_flag=True, help="Print the figures as JSON."),
        option("--keys", type=FILE, metavar="FILE", help="NAME.keys with the role admin, for a learner with keys."),
        option("--timeout", type=SECONDS, default=30.0, help="Seconds to wait for the learner."),
        click.pass_obj,
    ):
        command = decorate(command)
    return command


def _run_on_client(target: CommandTarget, message: OperatorCommand, options: ClientCommandOptions) -> None:
    from rl4sys_zmq.cli.client import run_command

    run_command(target, message, keys=options["keys"], timeout_s=options["timeout"], as_json=options["json"])


@client_commands.command()
@_client_options
def restart(target: CommandTarget, **options: Unpack[ClientCommandOptions]) -> None:
    """Restart the training of the client in a new thread, from its newest checkpoint and with the data accepted since then.

    This also restarts a failed client. The command needs a running learner. A learner that is started does the same for all of
    its clients.
    """
    _run_on_client(target, target.message("restart"), options)


@client_commands.command("give-up-pending")
@_client_options
def give_up_pending(target: CommandTarget, **options: Unpack[ClientCommandOptions]) -> None:
    """Discard the data accepted since the client's newest checkpoint, for a client whose training fails on it repeatedly.

    The data is counted as rolled back.
    """
    _run_on_client(target, target.message("give-up-pending"), options)


@client_commands.command()
@_client_options
def forget(target: CommandTarget, **options: Unpack[ClientCommandOptions]) -> None:
    """Remove the client: end its training, and remove its accepted data from the journal.

    Checkpoints are renamed to NUMBER.abandoned, not deleted. The client's actors are disconnected. The next actor that joins
    creates the client anew.
    """
    _run_on_client(target, target.message("forget"), options)


@client_commands.command("drop-actor")
@click.argument("actor_id")
@_client_options
def drop_actor(target: CommandTarget, actor_id: str, **options: Unpack[ClientCommandOptions]) -> None:
    """Remove the record of an actor: one that is refused as an old start, belongs to a lost key or occupies a slot.

    The actor can then join again. Its accepted segments stay, and pending ones will be trained on.
    """
    _run_on_client(target, target.message("drop-actor", actor_id=actor_id), options)


@client_commands.command("set")
@click.argument("values", nargs=-1, required=True, metavar="NAME=VALUE...")
@_client_options
def set_(target: CommandTarget, values: tuple[str, ...], **options: Unpack[ClientCommandOptions]) -> None:
    """Change parameters of the client's algorithm, such as learning_rate=1e-3. A value is JSON, or else text.

    The new values are in force from the next update on, and survive a restart. `rl4sys-learner algorithms` marks the parameters
    that can change with *. `status --json` shows those in force.
    """
    _run_on_client(target, target.message("set", values=values), options)
