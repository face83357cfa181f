"""Helpers for a program that starts modules of this package as child processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["child_environment", "end_text", "end_with_parent", "module_path", "start_error_text", "start_with_socket"]

_LOWEST_FD = 3
_PR_SET_PDEATHSIG = 1
_MORE_PROCESSES = "raise the limit of processes and threads (ulimit -u, or the pids limit of the container)"
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of the whole system (sysctl fs.file-max)",
    errno.EAGAIN: _MORE_PROCESSES,
    errno.ENOMEM: "the system has no memory for it; stop other programs, or use a machine with more memory",
}


def child_environment() -> dict[str, str]:
    """Return the environment variables for a child: those of this process, with this package's folder first in ``PYTHONPATH``.

    This program can have found the package by a change of `sys.path`, which the child does not inherit.
    """
    root = str(Path(__file__).resolve().parents[1])
    environment = dict(os.environ)
    if not root.endswith(("site-packages", "dist-packages")):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    return environment


def module_path() -> list[str]:
    """Return the folders in which this process finds modules, for a child.

    An empty entry of `sys.path` stands for the working directory. It is left out if that folder was removed.
    """
    path = list(sys.path)
    if "" in path:
        with contextlib.suppress(FileNotFoundError):
            here = os.getcwd()
            path = [entry or here for entry in path]
    return [entry for entry in path if entry]


def start_with_socket(
    end: socket.socket,
    *command: str,
    stdout: int | None = None,
    stderr: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a Python process that inherits a socket. It is in a session of its own, and its standard input is empty.

    Args:
        end: The socket, for example one end of a socketpair. The caller closes it afterwards.
        *command: The arguments of the interpreter. The file descriptor of the socket follows as the last argument.
        stdout: As for `subprocess.Popen`.
        stderr: As for `subprocess.Popen`.
        environment: Default values of environment variables, in addition to those of this process.

    Raises:
        OSError, subprocess.SubprocessError: If no process can be started.
    """
    # In a program without standard streams, the socket could have one of their numbers, which the child replaces.
    number = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", *command, str(number)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(number,),
            close_fds=True,
            start_new_session=True,
            env={**(environment or {}), **child_environment()},
        )
    finally:
        os.close(number)


def end_with_parent() -> None:
    """Let the kernel kill this process at the end of the thread that has started it. This has an effect on Linux only.

    A socketpair alone does not always show the end of the parent: a forked process can hold a copy of the parent's end.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start_error_text(error: BaseException) -> str:
    """Return the text of an error that a start of a process or a thread has raised, with a remedy if there is a known one.

    Args:
        error: The error. A thread that cannot be started raises `RuntimeError`.
    """
    text = str(error) or type(error).__name__
    remedy = _MORE_PROCESSES if isinstance(error, RuntimeError) else _REMEDIES.get(getattr(error, "errno", None) or 0)
    return f"{text}; {remedy}" if remedy else text


def end_text(code: int) -> str:
    """Return the end of a process as text, such as ``signal 6 (SIGABRT)``.

    Args:
        code: The exit status; the negative number of the signal if a signal ended the process.
    """
    if code >= 0:
        return f"exit status {code}"
    with contextlib.suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"
