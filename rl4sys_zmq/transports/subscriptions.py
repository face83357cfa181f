"""The subscription messages that an XPUB socket receives from its subscribers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.transports.frames import Frames, TooManyFrames
from rl4sys_zmq.transports.sockets import Socket


def read_subscription(frames: Frames) -> tuple[bool, bytes] | None:
    """Decode a subscription message: True for a subscription or False for an unsubscription, and the topic prefix; else None."""
    if len(frames) != 1 or bytes(frames[0][:1]) not in (b"\0", b"\1"):
        return None
    notice = bytes(frames[0])
    return notice[0] == 1, notice[1:]


def subscribed_topics(xpub: Socket, counters: Counters, most: int | None = None) -> Iterator[bytes]:
    """Receive at most `most` messages that wait in an XPUB socket, and yield the topic prefix of each new subscription.

    All other messages are discarded. A subscriber can send anything, so a message with too many frames is only counted
    (``refused.frames``). With ``grants=True``, call `Socket.grant` before the next topic is taken.
    """
    for _ in itertools.count() if most is None else range(most):
        try:
            frames = xpub.recv()
        except TooManyFrames as exc:
            counters.add(f"refused.{exc.code.value}")
            continue
        if frames is None:
            return
        subscription = read_subscription(frames)
        if subscription is not None and subscription[0]:
            yield subscription[1]
