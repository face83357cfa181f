"""Decoding of the messages between the threads of a learner, and of those between a learner and its remote workers."""

from __future__ import annotations

from collections.abc import Sequence

from rl4sys_zmq.wire.codec import decode_as, kinds_of
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.thread_messages import ThreadMessage
from rl4sys_zmq.wire.values import HEADER, HeaderLimits

_KINDS: dict[int, type[ThreadMessage]] = kinds_of(ThreadMessage)


def decode_thread_message(frames: Sequence[Frame], *, header: HeaderLimits = HEADER) -> ThreadMessage:
    """Decode and check a message between the gateway (the learner's network thread) and a learner thread."""
    return decode_as(_KINDS, frames, 1 << 32, True, header)
