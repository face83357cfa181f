"""The process behind a `Relay`, and the socketpair to it: how it starts, what is said, and how it ends.

What was in it when it died is lost, as with a connection; the protocol above sends it again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from rl4sys_zmq.errors import ProtocolError, TransportError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports.frames import Frames
from rl4sys_zmq.transports.relay_pipe import InputBuffer, OutputBuffer, RelayCommand, RelayMessage

__all__ = ["Sidecar"]

log = logging.getLogger(__name__)

CLOSE_WAIT_S = 0.5
"""How long a sidecar may take to end when it is told to."""
TERMINATE_WAIT_S = 0.25
KILL_WAIT_S = 0.5

PING_S = 5.0
"""After so long without a word from the sidecar it is asked for one."""
START_S = 60.0
SILENCE_S = 20.0
"""A sidecar that does not answer for so long (`START_S` for its first word) is taken for dead."""

_MODULE = "rl4sys_zmq.transports.relay_process"
_LOWEST_FD = 3


class Sidecar(Resource):
    """One process that holds zmq sockets, seen from its host.

    Attributes:
        pid: its process id.
    """

    def __init__(self) -> None:
        """Starts it. It may be spoken to at once: what is said waits until it listens.

        Raises:
            TransportError: when no process can be started.
        """
        self._inlet, self._outlet = InputBuffer(), OutputBuffer()
        self._death: str | None = None
        self._closed = False
        self._pair, self._process = _start()
        self.pid = self._process.pid
        self._heard_at = time.monotonic()
        self._answer_by: float | None = self._heard_at + START_S

    def fileno(self) -> int:
        """The descriptor to wait for before `pump`."""
        return self._pair.fileno()

    @property
    def unsent_bytes(self) -> int:
        """How much the pair had no room for yet."""
        return self._outlet.nbytes

    @property
    def dead(self) -> bool:
        """True when it has been found dead."""
        return self._death is not None

    def check(self) -> None:
        """Raises TransportError when it has been found dead."""
        if self._death is not None:
            raise TransportError(self._death)

    def say(self, command: RelayCommand, line: int, frames: Frames = ()) -> None:
        """Queues one command, with copies of the frames, and writes what there is room for.

        Raises:
            TransportError: when it is dead.
        """
        self.check()
        self._outlet.put(command, line, frames)
        try:
            self._outlet.flush(self._pair)
        except ConnectionError:
            self._die()

    def pump(self) -> list[RelayMessage]:
        """Writes and reads what goes without waiting, and returns what was read.

        Raises:
            TransportError: when it is dead.
        """
        self.check()
        heard: list[RelayMessage] = []
        progress = False
        try:
            self._outlet.flush(self._pair)
            while (done := self._inlet.read(self._pair)) is not None:
                progress = True
                heard += done
        except (EOFError, ConnectionError):
            self._die()
        except ProtocolError as exc:
            self._die(f"it said what makes no sense ({exc.detail})")
        self._watch(time.monotonic(), progress)
        return heard

    def _watch(self, now: float, progress: bool) -> None:
        """Notices one that is stopped or stuck. Time counts from the question, since this thread may have been away itself."""
        if progress:
            self._heard_at, self._answer_by = now, None
        elif self._answer_by is None and now - self._heard_at >= PING_S:
            self._answer_by = now + SILENCE_S
            self.say(RelayCommand.PING, 0)
        elif self._answer_by is not None and now >= self._answer_by:
            self._die("it did not answer, and was killed")

    def _die(self, reason: str = "") -> NoReturn:
        self._pair.close()
        if reason:
            self._process.kill()
        self._reap(time.monotonic() + CLOSE_WAIT_S)
        self._death = f"the sidecar (pid {self.pid}) ended: {reason or _how_it_ended(self._process.returncode)}"
        raise TransportError(self._death)

    def close(self) -> None:
        """Ends it, by force if need be, within `CLOSE_WAIT_S` and a little; what it still had to send is discarded."""
        if self._closed:
            return
        self._closed = True
        try:
            deadline = time.monotonic() + CLOSE_WAIT_S
            if self._death is None:
                self._close_sessions(deadline)
                self._reap(deadline)
                self._death = "the sidecar is closed"
        finally:
            self._pair.close()

    def disown(self) -> None:
        """Lets go of it in a forked child, whose copy of the pair would hide the host's death from the sidecar."""
        self._closed = True
        self._pair.close()
        self._process.returncode = 0  # it is the parent's to wait for

    def _close_sessions(self, deadline: float) -> None:
        """The pair stays open while it ends: the end of file would end it before its last message has left."""
        room = select.poll()
        room.register(self._pair, select.POLLOUT)
        self._outlet.put(RelayCommand.QUIT, 0)
        with contextlib.suppress(ConnectionError):
            while self._outlet.nbytes and (left_s := deadline - time.monotonic()) > 0:
                room.poll(math.ceil(left_s * 1000))
                self._outlet.flush(self._pair)

    def _reap(self, deadline: float) -> None:
        """Waits for its end, and brings it about after the deadline."""
        if _ended(self._process, max(0.0, deadline - time.monotonic())):
            return
        self._process.terminate()
        if _ended(self._process, TERMINATE_WAIT_S):
            return
        self._process.kill()
        if not _ended(self._process, KILL_WAIT_S):
            log.warning("the sidecar (pid %d) was killed and has not ended yet", self.pid)


def _start() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    if not sys.executable:
        raise TransportError("cannot start a sidecar: this program does not know its Python interpreter (sys.executable)")
    try:
        ours, theirs = socket.socketpair()
    except OSError as exc:
        raise TransportError(f"cannot start a sidecar: {exc.strerror}") from exc
    try:
        ours.setblocking(False)
        # In a host without standard streams the pair could have one of their numbers, which the child's replace.
        theirs_fd = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs_fd)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs_fd,),
                close_fds=True,
                start_new_session=True,
                env=_environment(),
            )
        finally:
            os.close(theirs_fd)
    except (OSError, subprocess.SubprocessError) as exc:
        ours.close()
        raise TransportError(f"cannot start a sidecar: {exc}") from exc
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours, process


def _environment() -> dict[str, str]:
    """The host's, in which this package is found even when the host has put it on its path itself."""
    root = str(Path(__file__).resolve().parents[2])
    environment = dict(os.environ)
    if not root.endswith(("site-packages", "dist-packages")):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), root]))
    return environment


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "it closed its end"
    if code >= 0:
        return f"exit status {code}"
    with contextlib.suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"
