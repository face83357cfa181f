"""The types of frames and messages, their limits, and the results of sending."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from rl4sys_zmq.errors import ProtocolError, RefusalReason

Frame = bytes | memoryview
Frames = Sequence[Frame]
"""A message: a sequence of at least one frame. The package `transports` never interprets its contents."""

# It limits what an actor can send to a learner.
ROUTER_MAX_FRAME_BYTES = 4 * 1024 * 1024

# All weights of a large policy fit.
MAX_FRAME_BYTES = 256 * 1024 * 1024

# What `Socket.recv` returns by default, at most.
MAX_FRAMES = 32

# The smallest frame that `recv` returns as a view of libzmq's buffer. `recv` copies smaller frames.
LARGE_FRAME_BYTES = 64 * 1024


def frame_bytes(frame: Frame) -> int:
    """Return the size of a frame in bytes. The ``len`` of a memoryview counts items, which can be larger than a byte."""
    return frame.nbytes if isinstance(frame, memoryview) else len(frame)


class SendResult(Enum):
    """The result of `send`. In a condition only `OK` is true, so ``if not socket.send(frames)`` finds failures."""

    OK = "ok"  # the message is in libzmq's queue; libzmq does not report if it arrives
    FULL = "full"  # nothing was queued: the peer reads too slowly, or no peer is connected
    GONE = "gone"  # nothing was queued: the router has no connection with this routing id

    def __bool__(self) -> bool:
        return self is SendResult.OK


class TooManyFrames(ProtocolError):
    """Raised if a received message has more frames than allowed. The message is discarded."""

    def __init__(self, count: int, limit: int, first: bytes) -> None:
        # count: number of frames of the message. If a sidecar holds the socket, this can be a lower bound.
        # first: first frame of the message. On a router this is the routing id of the sender.
        self.count, self.first = count, first
        super().__init__(RefusalReason.FRAMES, f"a message of {count} frames; the limit is {limit}")
