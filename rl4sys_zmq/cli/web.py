"""The command ``rl4sys-learner web``, and the same page as a child process of ``serve --web``."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rl4sys_zmq.child_process import ChildProcess, child_environment
from rl4sys_zmq.cli.app import configure_logging, print_line, require
from rl4sys_zmq.cli.signals import SignalHandlers, end_with_stdin
from rl4sys_zmq.config.addresses import bind_uri
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.logs import outlive_output
from rl4sys_zmq.loopback import is_local
from rl4sys_zmq.security.keys import read_user_keys

PATIENCE_S = 4.0
"""The time for the end of the page: a watcher can wait for an answer for 3 s."""


def web(
    addresses: Sequence[str], *, bind: str, keys: Path | None, token_file: Path | None, exit_with_stdin: bool, debug: bool
) -> None:
    """Serve the page of the learners at `addresses` until a signal. The help of the command describes the arguments."""
    require_page()
    from rl4sys_zmq.web.server import WebServer
    from rl4sys_zmq.web.watcher import Watcher

    configure_logging(debug)
    outlive_output()
    if exit_with_stdin:
        end_with_stdin()
    bind = host_and_port(bind)
    token = _token(token_file, bind)
    ours = read_user_keys(keys)[1] if keys is not None else None
    signals = SignalHandlers.current
    if signals is not None:
        signals.patience_s = PATIENCE_S
        signals.defers = True  # the exception would be raised inside the event loop, which stores it
    with contextlib.ExitStack() as stack:
        watchers = [Watcher(address, ours) for address in dict.fromkeys(addresses)]
        server = WebServer(watchers, bind, token)
        stack.callback(server.close)
        for watcher in watchers:
            watcher.start()
            stack.callback(watcher.join)
        for watcher in watchers:
            stack.callback(watcher.stop)  # all are told before one is awaited
        secret = f", token {token}" if token is not None and token_file is None else ""
        print_line(f"page at http://{server.address}{secret}; Ctrl-C ends it")
        server.serve(lambda: signals is not None and signals.received)
    if signals is not None:
        signals.check()


def require_page() -> None:
    """Refuse to run without the packages of the page."""
    require("web", "starlette", "uvicorn", "prometheus_client", "plotly")


def host_and_port(bind: str) -> str:
    """Return the address of a page as ``host:port``."""
    try:
        scheme, _, rest = bind_uri(bind).partition("://")
    except ValueError as exc:
        raise ConfigError(f"expected host:port such as 127.0.0.1:8080, not {bind!r}", key="bind") from exc
    if scheme != "tcp":
        raise ConfigError(f"a page has an address such as 127.0.0.1:8080, not {bind!r}", key="bind")
    return rest


def _token(file: Path | None, bind: str) -> str | None:
    """Return the token of a file, a new one if other machines reach the address, or None."""
    if file is None:
        return None if is_local(bind) else secrets.token_urlsafe(24)
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"the token file {file} cannot be read: {exc}; it holds one line, the token", key="token_file") from exc


@contextmanager
def page_of(address: str, bind: str | None, keys: Path | None) -> Iterator[None]:
    """Run the page of the learner at `address` in a child process, which ends with this block, and print where it is.

    If the page ends earlier, the learner continues without it.

    Raises:
        ConfigError: If the page does not start.
    """
    if bind is None:
        yield
        return
    command = [sys.executable, "-m", "rl4sys_zmq.cli.learner", "web", address, "--bind", bind, "--exit-with-stdin"]
    command += ["--keys", str(keys)] if keys is not None else []
    child = ChildProcess(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(), start_new_session=True)
    try:
        assert child.stdin is not None and child.stdout is not None
        line = child.stdout.readline().decode(errors="replace").strip()
        if not line:
            raise ConfigError(f"the page at {bind} has not started; its error is above", key="web")
        print_line(line.partition(";")[0])
        yield
    finally:
        child.stdin.close()  # type: ignore[union-attr]
        child.stdout.close()  # type: ignore[union-attr]
        child.end(0.0)  # it has nothing to save, and the learner's time to close is short
