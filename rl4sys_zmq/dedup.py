"""The recognition of repeated messages, for two kinds of numbering.

The items of a *stream*, such as the segments of an actor, are accepted in order. One number is enough to recognise those that
were received before: the *mark*, the next number (`count_received`).

The calls of a *session* of a caller run in any order, and a repeated call needs its reply again. A `CallWindow` therefore keeps
the calls that wait or run, and the replies that the caller can lack. Calls below its mark are too old: the caller has their
replies, or does not get them again. `CallWindows` limits the memory for all sessions of a server.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rl4sys_zmq.liveness import SESSION_S, is_silent

MAX_SESSIONS = 4096
MAX_KEPT_REPLIES = 256
"""The largest number of replies that are kept for one session."""
MAX_KEPT_BYTES = 256 * 1024 * 1024
"""The limit on all kept replies together, in bytes. Further ones replace those of the longest silent session."""

Request = TypeVar("Request")
Reply = TypeVar("Reply", bound=Sequence[Sized])


def count_received(mark: int, first: int, count: int) -> int:
    """Return how many of `count` items, numbered from `first`, were received before: those below the mark."""
    return min(max(mark - first, 0), count)


@dataclass(slots=True)
class CallWindow(Generic[Request, Reply]):
    """The calls of one session that are recognised if they arrive again.

    Attributes:
        since: The number of the call that opened the session.
        last_message_s: The time of the last call.
        acked: The mark. Calls below it are too old.
        waiting: The calls that wait or run, by number.
        replies: The kept replies, by number.
    """

    since: int
    last_message_s: float
    acked: int = 0
    waiting: dict[int, Request] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)


class CallWindows(Generic[Request, Reply]):
    """The windows of all sessions of one server, in the order of their last calls."""

    def __init__(self) -> None:
        self._windows: OrderedDict[int, CallWindow[Request, Reply]] = OrderedDict()
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._windows)

    def open(self, session: int, number: int, now: float) -> int:
        """Create the window of a session, unless it exists, and return the number of the call that created it.

        Discard sessions that have been silent for `SESSION_S`, and the longest silent one of `MAX_SESSIONS`.
        """
        known = self._windows.get(session)
        if known is not None:
            return known.since
        while self._windows:
            oldest = next(iter(self._windows.values()))
            if len(self._windows) < MAX_SESSIONS and not is_silent(now, oldest.last_message_s, SESSION_S):
                break
            self._windows.popitem(last=False)
            self._discard(oldest, 1 << 64)
        self._windows[session] = CallWindow(number, now)
        return number

    def find(self, session: int, acked: int, now: float) -> CallWindow[Request, Reply] | None:
        """Return the window for an arriving call, or None. The caller of the service has all replies below `acked`."""
        window = self._windows.get(session)
        if window is not None:
            window.last_message_s = now
            self._windows.move_to_end(session)
            if acked > window.acked:
                self._discard(window, acked)
        return window

    def finish(self, session: int, number: int, reply: Reply | None) -> None:
        """Record that a call is over, and keep its reply, unless that is None."""
        window = self._windows.get(session)
        if window is None:
            return
        window.waiting.pop(number, None)
        if reply is None or number < window.acked:
            return
        if window.replies.setdefault(number, reply) is reply:
            self._kept_bytes += sum([len(frame) for frame in reply])
        if len(window.replies) > MAX_KEPT_REPLIES:  # the caller never acknowledges
            self._discard(window, min(window.replies) + 1)
        for oldest in self._windows.values() if self._kept_bytes > MAX_KEPT_BYTES else ():
            while oldest.replies and self._kept_bytes > MAX_KEPT_BYTES:
                self._discard(oldest, min(oldest.replies) + 1)

    def _discard(self, window: CallWindow[Request, Reply], below: int) -> None:
        """Move the mark of a window, and discard the replies below it."""
        window.acked = below
        for number in [n for n in window.replies if n < below]:
            self._kept_bytes -= sum([len(frame) for frame in window.replies.pop(number)])
