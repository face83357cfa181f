"""The protocol between a host and its sidecar, over a socketpair.

Each side sends commands: a head (command, number of the socket, number of frames), the sizes of the frames, and the frames.
Each ZeroMQ socket of the sidecar has a number from 1 on. Number 0 is the sidecar itself.

Both sides always read the socketpair, so that a slow socket does not delay the others. A window for each socket and direction
bounds the memory: the receiving side reports with `TAKEN` the bytes that it has processed, and the sending side sends messages
only while the bytes not reported so far fit the window.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.limits import SIDECAR_MESSAGE_FRAMES
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports.frames import LARGE_FRAME_BYTES, MAX_FRAME_BYTES, Frame, Frames, frame_bytes

MAX_MESSAGE_BYTES = 512 * 1024 * 1024

# The `Limits` of a socket in `OPEN`.
LIMITS = struct.Struct("<IIQ")
# A frame with one number. In `TAKEN`: the bytes that the receiver has processed since the socket was opened. In `REFUSED`: a
# lower bound on the number of frames of a message that had too many frames, or 0 for a message that had too many bytes.
TOTAL = struct.Struct("<Q")

# The limit for messages from the host that the ZeroMQ socket has not accepted so far.
SEND_WINDOW_BYTES = 64 * 1024 * 1024
# The limit for messages that the host has not received so far. When it is reached, the sidecar does not read the ZeroMQ socket.
RECEIVE_WINDOW_BYTES = 16 * 1024 * 1024

_HEAD = struct.Struct("<BII")
_STAGE_BYTES = 256 * 1024
_MESSAGE_COST_BYTES = 64
_MAX_CHUNKS = 64


class SidecarCommandKind(IntEnum):
    """The kinds of commands between a host and its sidecar, such as ``OPEN``: the host asks for a new socket."""

    OPEN = 1  # from the host: role, address, LIMITS, and with CURVE the three keys. Creates a socket
    SUBSCRIBE = 2  # from the host: prefix
    UNSUBSCRIBE = 3  # from the host: prefix
    CLOSE = 4  # from the host: no frames. Closes a socket
    QUIT = 5  # from the host: no frames. Ends the sidecar
    PING = 6  # from the host: no frames
    PONG = 7  # from the sidecar: no frames. The answer to PING, and the first command after the start
    MESSAGE = 8  # from both: the frames of a message
    TAKEN = 9  # from both: TOTAL. The sender of this command has processed so many bytes of messages
    REFUSED = 10  # from the sidecar: TOTAL, first frame. A received message was too large and was discarded
    FAILED = 11  # from the sidecar: the error that ended this socket


class SidecarCommand(NamedTuple):
    """A received command. `line` is the number of the socket; 0 for the sidecar itself."""

    kind: int
    line: int
    frames: list[Frame]


def cost_bytes(frames: Frames) -> int:
    """Return the bytes that a message takes of the window for unread messages: those of its frames, and a fixed number."""
    return _MESSAGE_COST_BYTES + sum(map(frame_bytes, frames))


def size_fault(sizes: Sequence[int]) -> str | None:
    """Return an error text if a message with frames of these sizes (in bytes) is too large, else None."""
    if len(sizes) > SIDECAR_MESSAGE_FRAMES:
        return f"a message of {len(sizes)} frames; a sidecar carries at most {SIDECAR_MESSAGE_FRAMES}"
    if sizes and max(sizes) > MAX_FRAME_BYTES:
        return f"a frame of {max(sizes)} bytes; a sidecar carries at most {MAX_FRAME_BYTES}"
    if sum(sizes) > MAX_MESSAGE_BYTES:
        return f"a message of {sum(sizes)} bytes; a sidecar carries at most {MAX_MESSAGE_BYTES}"
    return None


class SidecarPipe(Resource):
    """One end of the socketpair between a host and its sidecar: it queues, writes and reads commands.

    Received bytes wait in one shared buffer until their command is complete. A larger command gets a buffer of its own.
    """

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        self.unsent_bytes = 0  # size of the commands that wait
        self._chunks: deque[memoryview] = deque()
        self._stage = memoryview(bytearray(_STAGE_BYTES))
        self._begin = self._end = 0  # the part of the stage that is not handled
        self._large: tuple[int, int, Sequence[int], memoryview] | None = None  # command, socket, sizes, the frames so far
        self._filled = 0

    def fileno(self) -> int:
        """Return the descriptor of the socketpair."""
        return self._pair.fileno()

    def close(self) -> None:
        """Close the socketpair."""
        self._pair.close()

    def put(self, command: SidecarCommandKind, line: int, frames: Frames = ()) -> None:
        """Add one command for the socket with the number `line`, with copies of its frames."""
        sizes = list(map(frame_bytes, frames))
        head = _HEAD.pack(command, line, len(sizes)) + struct.pack(f"<{len(sizes)}I", *sizes)
        chunk = memoryview(b"".join((head, *frames)))
        self._chunks.append(chunk)
        self.unsent_bytes += len(chunk)

    def flush(self) -> None:
        """Write as many queued bytes as the socketpair accepts without blocking."""
        while self._chunks:
            try:
                # Without the flag, a host that has restored the default action of SIGPIPE would end together with its sidecar.
                written = self._pair.sendmsg(itertools.islice(self._chunks, _MAX_CHUNKS), (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            self.unsent_bytes -= written
            while written:
                chunk = self._chunks.popleft()
                if written < len(chunk):
                    self._chunks.appendleft(chunk[written:])
                    break
                written -= len(chunk)

    def read(self) -> list[SidecarCommand] | None:
        """Read once, without blocking. Return the commands that are now complete, or None if there was nothing to read.

        Raises:
            EOFError: If the other side has closed the socketpair.
            ProtocolError: If a size is above its limit.
        """
        try:
            if self._large is not None:
                got = self._pair.recv_into(self._large[3][self._filled :])
                self._filled += got
            else:
                self._compact()
                got = self._pair.recv_into(self._stage[self._end :])
                self._end += got
        except BlockingIOError:
            return None
        except OSError as exc:
            raise EOFError from exc
        if not got:
            raise EOFError
        done: list[SidecarCommand] = []
        while (command := self._next()) is not None:
            done.append(command)
        return done

    def _compact(self) -> None:
        left = self._end - self._begin
        if self._begin:
            self._stage[:left] = bytes(self._stage[self._begin : self._end])
            self._begin, self._end = 0, left

    def _next(self) -> SidecarCommand | None:
        if self._large is not None:
            kind, line, sizes, body = self._large
            if self._filled < len(body):
                return None
            self._large = None
            return SidecarCommand(kind, line, _frames(body.toreadonly(), sizes))
        if self._end - self._begin < _HEAD.size:
            return None
        kind, line, count = _HEAD.unpack_from(self._stage, self._begin)
        if count > SIDECAR_MESSAGE_FRAMES:
            raise ProtocolError(RefusalReason.TOO_LARGE, f"a command of {count} frames")
        first = self._begin + _HEAD.size + 4 * count
        if first > self._end:
            return None
        sizes = struct.unpack_from(f"<{count}I", self._stage, self._begin + _HEAD.size)
        if fault := size_fault(sizes):
            raise ProtocolError(RefusalReason.TOO_LARGE, fault)
        last = first + sum(sizes)
        if last <= self._end:
            self._begin = last
            return SidecarCommand(kind, line, _frames(memoryview(bytes(self._stage[first:last])), sizes))
        if last - self._begin > _STAGE_BYTES:
            body = memoryview(bytearray(last - first))
            self._filled = self._end - first
            body[: self._filled] = self._stage[first : self._end]
            self._begin = self._end
            self._large = kind, line, sizes, body
        return None


def _frames(body: memoryview, sizes: Sequence[int]) -> list[Frame]:
    frames: list[Frame] = []
    begin = 0
    for size in sizes:
        frame = body[begin : begin + size]
        frames.append(frame if size >= LARGE_FRAME_BYTES else bytes(frame))
        begin += size
    return frames
