"""Shared parts of the commands: exit codes, one-line error messages, options, logging, and checks for optional packages."""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import click
from click.core import ParameterSource

from rl4sys_zmq.child_process import reset_signals
from rl4sys_zmq.cli.signals import INTERRUPTED, SignalHandlers, StopSignalReceived
from rl4sys_zmq.config.addresses import connect_uri
from rl4sys_zmq.errors import (
    CheckpointError,
    ConfigError,
    JournalError,
    PolicyFolderError,
    RL4SysError,
    RunDirectoryError,
    SpoolError,
    TransportError,
)
from rl4sys_zmq.logs import printable, replace_streams
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.version import package_version

FAILED, USAGE, ALARMS = 1, 2, 3
_UNUSABLE = ConfigError, TransportError, RunDirectoryError, JournalError, CheckpointError, PolicyFolderError, SpoolError
"""The errors for which the exit code is `USAGE`."""

FILE = click.Path(path_type=Path)
"""The path of a file or a folder, which need not exist."""

option = functools.partial(click.option, show_envvar=True)
"""`click.option` that shows the environment variable of the option in ``--help``."""


def _import(_context: click.Context, _parameter: click.Parameter, modules: tuple[str, ...]) -> tuple[str, ...]:
    if modules and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a console script does not have it on its path
    import_plugins(modules)
    return modules


plugin_option = functools.partial(
    option,
    "--plugin",
    multiple=True,
    metavar="MODULE",
    callback=_import,
    help="Import this module first, for example to register algorithms and policies; repeatable.",
)
"""The option ``--plugin``. The command gets the imported modules' names as ``plugin``, unless ``expose_value=False``."""


class FiniteRange(click.FloatRange):
    """The type of an option that is a finite number in a range. `click.FloatRange` also accepts ``nan`` and ``inf``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


SECONDS = FiniteRange(0, 86_400, min_open=True)
"""A time to wait: seconds above 0, at most a day."""


class _Address(click.types.StringParamType):
    """The type of an argument that is the address of a running learner or relay."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            connect_uri(value)
        except ValueError as exc:
            if value and Path(value).is_dir():
                remedy = "is a folder; give the address from the first line of the learner's output, such as localhost:50051"
                self.fail(f"{value!r} {remedy}", param, ctx)
            self.fail(f"expected {exc}, not {value!r}", param, ctx)
        return value


ADDRESS = _Address()

MIN_SIZE = 1 << 20
_UNITS: dict[str, int] = {
    "": 1,
    **{f"{letter}{tail}": 1000**power for power, letter in enumerate("KMGT", 1) for tail in ("", "B")},
    **{f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)},
}


def amount(value: str) -> int:
    """Convert a text such as 0, 800MB, 8GiB or 1.5T to a number. K, M, G and T are powers of 1000, Ki and so on of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", value.strip())
    unit = _UNITS.get(match.group(2).upper()) if match else None
    if match is None or unit is None:
        raise click.BadParameter(f"{value!r} is not a size such as 800MB or 8GiB")
    return round(float(match[1]) * unit)


def size(value: str) -> int:
    """Convert the text of an option, such as 8GiB, to a number of bytes: 0, or at least 1 MiB."""
    count = amount(value)
    if 0 < count < MIN_SIZE:
        raise click.BadParameter(f"{value!r} is less than 1 MiB; give at least 1MiB, or 0")
    return count


def print_line(text: str = "", *, err: bool = False) -> None:
    """Print a line and flush, so that it appears at once even in a pipe."""
    stream = sys.stderr if err else sys.stdout
    text = printable(text, keep="\n\t")  # names and texts of peers could control the terminal
    click.echo(_fitted(text, stream), err=err)
    stream.flush()


def _fitted(text: str, stream: TextIO) -> str:
    """Break the lines of a text between words, if the stream is a terminal that is too narrow. JSON stays as it is."""
    width = shutil.get_terminal_size().columns
    if not stream.isatty() or text.startswith(("{", "[")) or all(len(line) <= width for line in text.splitlines()):
        return text
    return "\n".join(_filled(line, width) for line in text.splitlines())


def _filled(line: str, width: int) -> str:
    """Break a line of text into lines of at most `width` characters, if its words permit, and return them as one string.

    All but the first are indented. In a line of a table, they begin below the last table column of its left half.
    """
    columns = [gap.end() for gap in re.finditer(r"(?<=\S) {2,}", line) if gap.end() <= width // 2]
    indent = columns[-1] if columns else len(line) - len(line.lstrip()) + 4
    return textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _fitted(super().format(record), sys.stderr)


class _Command(click.Command):
    """A command whose errors name the environment variable that has set the option."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as exc:
            exc.add_note(_of_environment(ctx, next((p for p in self.params if p.name == exc.key), None)))
            raise


class CommandGroup(click.Group):
    """A group of commands with common exit codes and error messages.

    The exit codes are 0, 1 (failed), 2 (usage, configuration, or an address, file or directory that cannot be used) and 130
    (Ctrl-C). A command can return its exit code. An exception of this library is printed as one line on stderr.
    """

    command_class = _Command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command. In click's standalone mode, which is the default, this ends the process."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        name = prog_name or self.name
        if args is None:  # not called from a test: this process belongs to the command
            reset_signals()
            replace_streams(stdout_required=True)
        with SignalHandlers() as signals:
            code = _exit_code(
                name or "", lambda: super(CommandGroup, self).main(args, name, complete_var, standalone_mode=False, **extra)
            )
            if args is None:
                _exit_process(code, at_once=signals.received)
        sys.exit(code)


def _exit_code(name: str, run: Callable[[], object]) -> int:
    try:
        result = run()
    except StopSignalReceived as stopping:
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
            origin = _of_environment(context, getattr(exc, "param", None))
            hint = f" (see {path} --help)" if isinstance(exc, click.UsageError) else ""
            print_line(f"{path}: {message.rstrip('.')}{origin}{hint}", err=True)
        return exc.exit_code
    except RL4SysError as exc:
        print_line(f"{name}: {one_line(exc)}", err=True)
        return USAGE if isinstance(exc, _UNUSABLE) else FAILED
    except OSError as exc:
        if exc.filename != "stdout":
            raise
        print_line(f"{name}: stdout cannot be written: {exc.strerror}", err=True)
        return FAILED
    return result if isinstance(result, int) else 0


def _of_environment(context: click.Context | None, parameter: click.Parameter | None) -> str:
    """Return the words that name the environment variable which has set an invalid value, or ""."""
    if context is None or parameter is None or context.get_parameter_source(parameter.name) is not ParameterSource.ENVIRONMENT:
        return ""
    name = f"{context.auto_envvar_prefix}_{parameter.name.upper()}"
    return f"; it comes from the environment variable {name}: unset it, or give {parameter.opts[0]}"


def one_line(error: Exception) -> str:
    """Return the text of an error and its notes without line breaks."""
    return " ".join("".join([str(error), *getattr(error, "__notes__", ())]).split())


def _exit_process(code: int, *, at_once: bool) -> None:
    """End the process by `os._exit` if torch is loaded, a thread of this library still runs, or `at_once` is True.

    Otherwise return, and the process ends normally. `at_once` is True if the process has received a signal. A normal
    exit takes a second with torch, and waits for threads. A second signal during that time would find no handler and change
    the exit code.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if at_once or "torch" in sys.modules or any(t.name.startswith("rl4sys") for t in threading.enumerate()):
        os._exit(code)


def require(extra: str, *modules: str) -> None:
    """Refuse to run without the modules that a pip extra of this package installs. They are not imported."""
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if missing:
        raise ConfigError(f"this needs {', '.join(missing)}, which is not installed: pip install 'rl4sys-zmq[{extra}]'")


def configure_logging(debug: bool, handler: logging.Handler | None = None) -> None:
    """Send the log to stderr or to `handler`: warnings, or with `debug` everything of this library."""
    if handler is None:
        handler = logging.StreamHandler()
        handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if debug:
        logging.getLogger("rl4sys_zmq").setLevel(logging.DEBUG)


def settings(prefix: str) -> dict[str, Any]:
    """Return click's settings: ``PREFIX_COMMAND_OPTION`` in the environment sets an option, and the help shows defaults."""
    return {"auto_envvar_prefix": prefix, "help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110}


# The package itself is above this layer and must not be imported. It is already loaded, because this module is part of it.
version_option = click.version_option(package_version(), prog_name="rl4sys_zmq")
