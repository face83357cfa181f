"""Helpers for a program that starts modules of this package as child processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl4sys_zmq.logs import get_logger, replace_streams

log = get_logger(__name__)

_LOWEST_FD = 3
_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.01
_KILLED_S = 5.0
_UNKNOWN_STATUS = 256
"""The exit status of a process that was collected by the kernel or by another part of the program. It counts as a failure."""
_MORE_PROCESSES = "raise the limit of processes and threads (ulimit -u, or the pids limit of the container)"
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of the whole system (sysctl fs.file-max)",
    errno.EAGAIN: _MORE_PROCESSES,
    errno.ENOMEM: "the system has no memory for it; stop other programs, or use a machine with more memory",
}


def child_environment() -> dict[str, str]:
    """Return the environment variables for a child: those of this process, with this package's folder first in ``PYTHONPATH``.

    The child does not inherit changes of `sys.path`, by which this program can have found the package.
    """
    root = str(Path(__file__).resolve().parents[1])
    environment = dict(os.environ)
    if not root.endswith(("site-packages", "dist-packages")):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    return environment


def module_path() -> list[str]:
    """Return the folders in which this process finds modules, so that a child process finds the same ones.

    An empty entry of `sys.path` means the working directory. It is left out if that folder was removed.
    """
    path = list(sys.path)
    if "" in path:
        with contextlib.suppress(FileNotFoundError):
            here = os.getcwd()
            path = [entry or here for entry in path]
    return [entry for entry in path if entry]


class ChildProcess(subprocess.Popen[bytes]):
    """A child process in a process group of its own. If its exit status was lost, the process counts as failed.

    The status is lost if the program ignores SIGCHLD, or if another part of the program has read the status first. Then
    `subprocess.Popen` would report the status 0.
    """

    def look(self, options: int = os.WNOHANG) -> int | None:
        """Return the exit status, or None while the process runs. A later call of `poll` or `wait` can still read the status.

        `options` are those of `os.waitid`. With 0, the method waits for the end of the process.
        """
        if self.returncode is not None:
            return self.returncode
        try:
            end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | options)
        except ChildProcessError:
            return _UNKNOWN_STATUS
        if end is None:
            return None
        return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs. Free its process id if it has ended."""
        code = self.look()
        if code is not None and self.returncode is None:
            super().poll()
            self.returncode = code
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, free its process id, and return its exit status."""
        if not self.ends_within(math.inf if timeout is None else timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.poll() or 0

    def end(self, patience_s: float) -> int:
        """Wait for the end of the process, kill it after `patience_s` seconds, and return its exit status.

        Then kill the rest of its process group.
        """
        self.ends_within(patience_s)
        self.kill_group()
        try:
            return self.wait(_KILLED_S)
        except subprocess.TimeoutExpired:
            log.error("process %d did not end within %g s after SIGKILL; the kernel holds it", self.pid, _KILLED_S)
            return -signal.SIGKILL

    def ends_within(self, seconds: float) -> bool:
        """Wait for the end of the process. Return False if it still runs after so many `seconds`."""
        deadline = time.monotonic() + seconds
        while self.look() is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)
        return True

    def kill_group(self) -> None:
        """Kill the process and its process group. Do nothing if `poll` or `wait` has already returned the exit status."""
        if self.returncode is None:  # until then, no other group has its number
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def start_with_socket(
    end: socket.socket,
    *command: str,
    stdout: int | None = None,
    stderr: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> ChildProcess:
    """Start a Python process that inherits the socket `end`. It leads a session of its own, and its input is empty."""
    # In a program without standard streams, the socket could have one of their numbers, which the child replaces.
    number = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    try:
        return ChildProcess(
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


def start_with_socketpair(
    *command: str, kind: socket.SocketKind = socket.SOCK_STREAM, **options: Any
) -> tuple[socket.socket, ChildProcess]:
    """Start a process, as `start_with_socket` does, that inherits one end of a new socketpair. Return the other end too."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with theirs:
        try:
            return ours, start_with_socket(theirs, *command, **options)
        except BaseException:
            ours.close()
            raise


def reset_signals() -> None:
    """Undo inherited signal settings: an ignored SIGCHLD, and blocked signals. Call this in a process of this library only."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def begin_child(*ignored: signal.Signals) -> None:
    """Prepare the current process, which `start_with_socket` has started. Call this at the beginning of its program.

    On Linux, the kernel then kills the child when the parent's thread that started it ends. A closed socketpair alone does not
    always show the end of the parent: another forked process can hold a copy of the parent's descriptor.
    """
    reset_signals()
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    replace_streams()


_GUARD = f"""
import ctypes, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGTERM)
group = int(sys.argv[1])
if os.getppid() == group:
    signal.sigwait([signal.SIGTERM])
os.killpg(group, signal.SIGKILL)
"""


def end_group_with_process() -> subprocess.Popen[bytes] | None:
    """Make the processes that this process starts in its process group end with it, even if it is killed. Linux only.

    Call this in the main thread of the leader of the process group, and keep the result: a small process that waits for the end
    of the leader.
    """
    if sys.platform != "linux":
        return None
    null, command = subprocess.DEVNULL, [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())]
    return subprocess.Popen(command, stdin=null, stdout=null, stderr=null, process_group=0)


def start_error_text(error: BaseException) -> str:
    """Return the text of an exception from the start of a process or thread, with a remedy if one is known."""
    text = str(error) or type(error).__name__
    remedy = _MORE_PROCESSES if isinstance(error, RuntimeError) else _REMEDIES.get(getattr(error, "errno", None) or 0)
    return f"{text}; {remedy}" if remedy else text


def end_text(code: int) -> str:
    """Return the exit status of a process as text, such as ``signal 6 (SIGABRT)``."""
    if code == _UNKNOWN_STATUS:
        return "an unknown exit status: this program ignores SIGCHLD, or collects processes that it did not start"
    if code >= 0:
        return f"exit status {code}"
    with contextlib.suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"
