"""What both commands share: exit codes, one line for each failure, and the extras that a command needs."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from rl4sys_zmq.cli.signals import INTERRUPTED, Signals, Stopping
from rl4sys_zmq.errors import (
    CheckpointError,
    ConfigError,
    JournalError,
    RL4SysError,
    RunDirectoryError,
    SpoolError,
    TransportError,
)
from rl4sys_zmq.plugins import import_plugins

__all__ = ["FAILED", "USAGE", "Commands", "configure_logging", "fold_usage", "option", "plugin_option", "require", "say", "size"]

FAILED, USAGE = 1, 2

option = functools.partial(click.option, show_envvar=True)
"""An option that shows its environment variable in ``--help``."""


def _import(_context: click.Context, _parameter: click.Parameter, modules: tuple[str, ...]) -> tuple[str, ...]:
    if modules and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a console script does not look there
    import_plugins(modules)
    return modules


plugin_option = functools.partial(
    option,
    "--plugin",
    multiple=True,
    metavar="MODULE",
    callback=_import,
    help="Import this module first, repeatable: it may register algorithms and policies.",
)
"""``--plugin MODULE``: imports modules, also of the working directory, before the command runs. It passes their names on as
``plugin``, unless it is made with ``expose_value=False``."""


MIN_SIZE = 1 << 20
_UNITS: dict[str, int] = {
    "": 1,
    **{f"{letter}{tail}": 1000**power for power, letter in enumerate("KMGT", 1) for tail in ("", "B")},
    **{f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)},
}


def size(value: str) -> int:
    """A number of bytes, as an option's type: 0, 800MB, 8GiB, 1.5T.

    Raises:
        click.BadParameter: for anything else, and for less than 1 MiB.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", value.strip())
    unit = _UNITS.get(found.group(2).upper()) if found else None
    if found is None or unit is None:
        raise click.BadParameter(f"{value!r} is not a size such as 800MB or 8GiB")
    count = round(float(found[1]) * unit)
    if 0 < count < MIN_SIZE:
        raise click.BadParameter(f"{value!r} is less than 1 MiB")
    return count


def say(text: str = "", *, err: bool = False) -> None:
    """Prints a line, now: whoever reads a pipe wants it too."""
    click.echo(text, err=err)
    (sys.stderr if err else sys.stdout).flush()


class Commands(click.Group):
    """A group whose exit codes are 0, 1 (failed), 2 (usage, configuration, or a place that can't be had) and 130 (Ctrl-C).

    A failure of ours is one line on stderr. A command may return its exit code.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs the command; in standalone mode it ends the process."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        name = prog_name or self.name
        with Signals() as signals:
            code = _exit_code(
                name or "", lambda: super(Commands, self).main(args, name, complete_var, standalone_mode=False, **extra)
            )
            if args is None:  # this process is the command's own, not a test's
                _leave(code, at_once=signals.came)
        sys.exit(code)


def _exit_code(name: str, run: Any) -> int:
    try:
        result = run()
    except Stopping as stopping:
        return stopping.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.ClickException as exc:
        message = exc.format_message()
        if "\n" in message:  # a group without a command shows its help
            exc.show()
        else:
            context = getattr(exc, "ctx", None)
            path = context.command_path if context is not None else name
            hint = f" (see {path} --help)" if isinstance(exc, click.UsageError) else ""
            say(f"{path}: {message.rstrip('.')}{hint}", err=True)
        return exc.exit_code
    except (ConfigError, TransportError, RunDirectoryError, JournalError, CheckpointError, SpoolError) as exc:
        say(f"{name}: {_one_line(exc)}", err=True)
        return USAGE
    except RL4SysError as exc:
        say(f"{name}: {_one_line(exc)}", err=True)
        return FAILED
    return result if isinstance(result, int) else 0


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _leave(code: int, *, at_once: bool) -> None:
    """Ends the process without the second that taking torch apart costs, or waiting for a thread that did not end in time.

    And after a signal at once: while an interpreter ends, a second signal would find no handler, and spoil the exit code.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if at_once or "torch" in sys.modules or any(t.name.startswith("rl4sys") for t in threading.enumerate()):
        os._exit(code)


@contextmanager
def fold_usage(*kinds: type[Exception]) -> Iterator[None]:
    """Turns foreign exceptions that a user's input causes into a `ConfigError` of one line."""
    try:
        yield
    except kinds as exc:
        raise ConfigError(_one_line(exc) or type(exc).__name__) from exc


def require(extra: str, *modules: str) -> None:
    """Checks that an extra is installed, without importing it.

    Raises:
        ConfigError: naming the extra and how to install it.
    """
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if missing:
        raise ConfigError(f"this needs {', '.join(missing)}, which is not installed: pip install 'rl4sys-zmq[{extra}]'")


def configure_logging(debug: bool, handler: logging.Handler | None = None) -> None:
    """Sends the library's log to stderr (or to `handler`): warnings, or everything."""
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, handlers=[handler] if handler is not None else None)
    if debug:
        logging.getLogger("rl4sys_zmq").setLevel(logging.DEBUG)


def settings(prefix: str) -> dict[str, Any]:
    """Of a group of commands: every option also from ``PREFIX_COMMAND_OPTION``, defaults shown."""
    return {"auto_envvar_prefix": prefix, "help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110}


# The package itself stands above this floor; it is loaded, since this module is one of its own.
version_option = click.version_option(sys.modules["rl4sys_zmq"].__version__, prog_name="rl4sys_zmq")
