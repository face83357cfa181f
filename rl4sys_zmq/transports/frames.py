"""What the transport carries and what it says about it: frames, messages, and what became of one."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from rl4sys_zmq.errors import ProtocolError, Refusal

__all__ = ["LARGE_FRAME_BYTES", "MAX_FRAMES", "Frame", "Frames", "SendResult", "TooManyFrames", "read_subscription"]

Frame = bytes | memoryview
Frames = Sequence[Frame]
"""A message: at least one frame. The transport never looks inside."""

MAX_FRAMES = 32
"""The most frames of one message that `Socket.recv` keeps, unless told otherwise."""

LARGE_FRAME_BYTES = 64 * 1024
"""From this size on a received frame is a read-only view of libzmq's buffer; below it, copying costs less."""


class SendResult(Enum):
    """What became of a message. Only `OK` is true, so ``if not socket.send(frames)`` reads as it should."""

    OK = "ok"  # it is in libzmq's queue; whether it arrives is for the protocol above to learn
    FULL = "full"  # nothing was queued: the peer reads too slowly, or there is none yet
    GONE = "gone"  # nothing was queued: the router knows no such peer

    def __bool__(self) -> bool:
        return self is SendResult.OK


class TooManyFrames(ProtocolError):
    """A message had more frames than allowed and was thrown away.

    Attributes:
        count: of its frames.
        first: its first frame; on a router, the routing id of the peer that sent it.
    """

    def __init__(self, count: int, limit: int, first: bytes) -> None:
        self.count, self.first = count, first
        super().__init__(Refusal.FRAMES, f"a message of {count} frames; the limit is {limit}")


def read_subscription(frames: Frames) -> tuple[bool, bytes] | None:
    """What an xpub's message says: (came rather than went, topic prefix); None for anything that is no such notice."""
    if len(frames) != 1 or bytes(frames[0][:1]) not in (b"\0", b"\1"):
        return None
    notice = bytes(frames[0])
    return notice[0] == 1, notice[1:]
