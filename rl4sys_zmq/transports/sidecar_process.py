"""The program of a sidecar: ``python -m rl4sys_zmq.transports.sidecar_process FD``, with the descriptor of the socketpair.

It has one Python thread and does not interpret messages. It ends when the host sends `QUIT`, when the host's end of the
socketpair is closed, or (on Linux) when the thread of the host that started the process ends.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import deque
from dataclasses import dataclass, field

from rl4sys_zmq.child_process import begin_child
from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.limits import SIDECAR_MESSAGE_FRAMES
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.transports.context import context
from rl4sys_zmq.transports.frames import Frame, TooManyFrames
from rl4sys_zmq.transports.network import connecting_socket
from rl4sys_zmq.transports.poller import Poller
from rl4sys_zmq.transports.sidecar_pipe import (
    LIMITS,
    RECEIVE_WINDOW_BYTES,
    SEND_WINDOW_BYTES,
    TOTAL,
    SidecarCommand,
    SidecarCommandKind,
    SidecarPipe,
    cost_bytes,
    size_fault,
)
from rl4sys_zmq.transports.sockets import Socket

log = get_logger(__name__)

_OUTLET_BYTES = 1024 * 1024  # no ZeroMQ socket is read while more bytes than this wait to be written to the socketpair
_MESSAGES_PER_TURN = 64
_READS_PER_TURN = 16


@dataclass(slots=True, eq=False)
class _SidecarSocket:
    """A ZeroMQ socket of the sidecar, with the data of its flow control."""

    number: int
    socket: Socket
    held: deque[list[Frame]] = field(default_factory=deque)  # messages of the host that the socket has not accepted so far
    taken_bytes: int = 0  # of messages from the host that the socket has accepted
    reported_bytes: int = 0  # value of `taken_bytes` that was last reported to the host
    sent_bytes: int = 0  # of received messages that were sent to the host
    confirmed_bytes: int = 0  # part of `sent_bytes` that the host has reported as processed
    interest: tuple[bool, bool] = (False, False)  # the poller watches the socket for reading, and for writing


class _SidecarLoop:
    def __init__(self, pair: socket.socket) -> None:
        self._pipe = SidecarPipe(pair)
        self._connections: dict[int, _SidecarSocket] = {}
        self._done = False

    def serve(self) -> None:
        """Pass messages until the host sends `QUIT`. Raise EOFError or ConnectionError if the host has closed the socketpair."""
        with Poller() as poller:
            self._poller = poller
            self._pipe.put(SidecarCommandKind.PONG, 0)
            while not self._done:
                self._pipe.flush()
                self._update_interest()
                ready = poller.poll(None)
                if self._pipe in ready:
                    self._read_pipe()
                for line in list(self._connections.values()):
                    if line.socket in ready:
                        self._serve_connection(line)
            for line in list(self._connections.values()):
                self._close(line)

    def _update_interest(self) -> None:
        """Set which sockets the poller watches. It does not watch a socket for messages while the host has no room for them."""
        self._poller.register(self._pipe, read=True, write=bool(self._pipe.unsent_bytes))
        for line in self._connections.values():
            interest = (self._may_receive(line), bool(line.held))
            if interest == line.interest:
                continue
            line.interest = interest
            if any(interest):
                self._poller.register(line.socket, read=interest[0], write=interest[1])
            else:
                self._poller.unregister(line.socket)

    def _may_receive(self, line: _SidecarSocket) -> bool:
        return self._pipe.unsent_bytes < _OUTLET_BYTES and line.sent_bytes - line.confirmed_bytes < RECEIVE_WINDOW_BYTES

    def _read_pipe(self) -> None:
        for _ in range(_READS_PER_TURN):
            done = self._pipe.read()
            if done is None:
                return
            for command in done:
                self._do(command)

    def _do(self, command: SidecarCommand) -> None:
        if command.kind == SidecarCommandKind.OPEN:
            self._open(command)
        elif command.kind == SidecarCommandKind.QUIT:
            self._done = True
        elif command.kind == SidecarCommandKind.PING:
            self._pipe.put(SidecarCommandKind.PONG, 0)
        elif (line := self._connections.get(command.line)) is not None:  # otherwise it has failed, which was reported to the host
            try:
                self._do_on_line(line, command)
            except TransportError as exc:
                self._fail(line, exc)

    def _do_on_line(self, line: _SidecarSocket, command: SidecarCommand) -> None:
        if command.kind == SidecarCommandKind.MESSAGE:
            if line.held or not line.socket.send(command.frames):
                line.held.append(command.frames)
            else:
                self._count_accepted(line, command.frames)
        elif command.kind == SidecarCommandKind.TAKEN:
            (line.confirmed_bytes,) = TOTAL.unpack(command.frames[0])
        elif command.kind == SidecarCommandKind.SUBSCRIBE:
            line.socket.subscribe(bytes(command.frames[0]))
        elif command.kind == SidecarCommandKind.UNSUBSCRIBE:
            line.socket.unsubscribe(bytes(command.frames[0]))
        elif command.kind == SidecarCommandKind.CLOSE:
            self._close(line)

    def _open(self, command: SidecarCommand) -> None:
        role, address, limits, *keys = (bytes(frame) for frame in command.frames)
        three = (keys[0].decode(), keys[1].decode(), keys[2].decode()) if keys else None
        try:
            made = connecting_socket(role.decode(), address.decode(), LIMITS.unpack(limits), three)
        except TransportError as exc:
            self._pipe.put(SidecarCommandKind.FAILED, command.line, [str(exc).encode()])
            return
        self._connections[command.line] = _SidecarSocket(command.line, made)

    def _count_accepted(self, line: _SidecarSocket, frames: list[Frame]) -> None:
        """Add the bytes of a message that the ZeroMQ socket has accepted. Report the sum to the host each half of a window."""
        line.taken_bytes += cost_bytes(frames)
        if line.taken_bytes - line.reported_bytes >= SEND_WINDOW_BYTES // 2:
            line.reported_bytes = line.taken_bytes
            self._pipe.put(SidecarCommandKind.TAKEN, line.number, [TOTAL.pack(line.taken_bytes)])

    def _serve_connection(self, line: _SidecarSocket) -> None:
        try:
            while line.held and line.socket.send(line.held[0]):
                self._count_accepted(line, line.held.popleft())
            for _ in range(_MESSAGES_PER_TURN):
                if not (self._may_receive(line) and self._receive(line)):
                    return
        except TransportError as exc:
            self._fail(line, exc)

    def _receive(self, line: _SidecarSocket) -> bool:
        try:
            frames = line.socket.recv(SIDECAR_MESSAGE_FRAMES)
        except TooManyFrames as exc:  # the host gets only a lower bound on the number of frames
            self._refuse(line, SIDECAR_MESSAGE_FRAMES + 1, exc.first)
            return True
        if frames is None:
            return False
        if size_fault([len(frame) for frame in frames]):
            self._refuse(line, 0, bytes(frames[0][:64]))
            return True
        line.sent_bytes += cost_bytes(frames)
        self._pipe.put(SidecarCommandKind.MESSAGE, line.number, frames)
        return True

    def _refuse(self, line: _SidecarSocket, count: int, first: bytes) -> None:
        frames = [TOTAL.pack(count), first[:64]]
        line.sent_bytes += cost_bytes(frames)
        self._pipe.put(SidecarCommandKind.REFUSED, line.number, frames)

    def _fail(self, line: _SidecarSocket, error: TransportError) -> None:
        self._pipe.put(SidecarCommandKind.FAILED, line.number, [str(error).encode()])
        self._close(line)

    def _close(self, line: _SidecarSocket) -> None:
        self._poller.unregister(line.socket)
        line.socket.close()
        del self._connections[line.number]


def main() -> None:
    """Run the sidecar, and then end this process."""
    begin_child(signal.SIGINT)
    pair = socket.socket(fileno=int(sys.argv[1]))
    pair.setblocking(False)
    try:
        _SidecarLoop(pair).serve()
        context().term()  # no socket lingers; this sends the last message
    except (EOFError, ConnectionError):
        os._exit(0)  # the host has ended; there is nothing to report to
    except Exception:
        log.exception("the sidecar of process %d ends with an error", os.getppid())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
