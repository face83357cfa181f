"""Detection of segments and calls that arrive more than once.

The segments of an actor are numbered and accepted in order. So one number is enough to detect duplicates: the next number that
the receiver expects, also called the *mark*. `count_received` counts the segments with lower numbers.

The calls of a session can run in any order, and the reply to a repeated call must be sent again. A `SessionCalls` therefore
keeps the calls that wait or run, and the replies that the caller possibly did not receive. `CallDeduplicator` limits the memory
for all sessions of a server.
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
"""The limit on the kept replies of all sessions of a server, in bytes.

Above this limit, the replies of the session that has been silent for longest are discarded first.
"""

Request = TypeVar("Request")
Reply = TypeVar("Reply", bound=Sequence[Sized])


def count_received(mark: int, first: int, count: int) -> int:
    """Return how many of `count` items were received before. The items have the numbers `first`, `first` + 1, and so on.

    An item was received before if its number is below `mark`, the next number that the receiver expects.
    """
    return min(max(mark - first, 0), count)


@dataclass(slots=True)
class SessionCalls(Generic[Request, Reply]):
    """The calls and replies of one session, kept to answer a call that arrives again.

    Attributes:
        since: The number of the call that opened the session. The session has no record of calls with lower numbers.
        last_message_s: The monotonic time of the last call, in seconds.
        acked: The lowest call number whose reply can still be sent again. The replies to lower numbers were discarded.
        waiting: The calls that wait or run, by call number.
        replies: The kept replies, by call number.
    """

    since: int
    last_message_s: float
    acked: int = 0
    waiting: dict[int, Request] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)


class CallDeduplicator(Generic[Request, Reply]):
    """The calls and kept replies of all sessions of one server, so that it runs no call twice.

    The object limits the number of sessions and the memory for kept replies.
    """

    def __init__(self) -> None:
        self._windows: OrderedDict[int, SessionCalls[Request, Reply]] = OrderedDict()
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._windows)

    def heard(self, now: float) -> int:
        """Return the number of sessions that sent a call within the last ten minutes. Any thread can call this."""
        return sum(not is_silent(now, window.last_message_s, SESSION_S) for window in list(self._windows.values()))

    def open(self, session: int, number: int, now: float) -> int:
        """Open the session of a caller, unless it is open already. Return the number of the call that opened it.

        Before it opens a new session, this method discards the sessions that have been silent for more than ten minutes. If
        there are still 4096 sessions, it discards the one that has been silent for longest.
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
        self._windows[session] = SessionCalls(number, now)
        return number

    def find(self, session: int, acked: int, now: float) -> SessionCalls[Request, Reply] | None:
        """Note a new call of a session, and return the session's calls and replies; None if the session is not open.

        `acked` is from the new call: the caller has the replies to all calls with lower numbers. These replies are discarded.
        """
        window = self._windows.get(session)
        if window is not None:
            window.last_message_s = now
            self._windows.move_to_end(session)
            if acked > window.acked:
                self._discard(window, acked)
        return window

    def finish(self, session: int, number: int, reply: Reply | None) -> None:
        """Record that call `number` of a session has ended.

        Keep `reply`, to send it again if the call arrives again. None keeps no reply.
        """
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

    def _discard(self, window: SessionCalls[Request, Reply], below: int) -> None:
        """Discard the kept replies of one session to calls with numbers below `below`."""
        window.acked = below
        for number in [n for n in window.replies if n < below]:
            self._kept_bytes -= sum([len(frame) for frame in window.replies.pop(number)])
