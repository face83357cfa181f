"""A limit on the connections of a process, so that file descriptors are left for its files.

libzmq accepts connections until no descriptor is left. The code of this module works also in that situation.
"""

from __future__ import annotations

import os
import resource
import time

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports.context import tracked
from rl4sys_zmq.transports.open_socket import OpenSocket
from rl4sys_zmq.transports.peers import open_descriptors

log = get_logger(__name__)

# Descriptors that connections leave free; a quarter of the limit if that is less.
RESERVE = 256

# The time from one look to the next, and the same while descriptors are scarce. Each look interrupts the other threads: at 50
# a second, a busy learner received several percent less.
LOOK_S, SCARCE_LOOK_S = 0.1, 0.005

WARN_S = 60.0


class ConnectionLimitThread(Worker):
    """A thread that closes connections to this process's sockets while few file descriptors are free (fewer than 256, or a
    quarter of the limit if that is less).

    It first closes connections that have completed no message, those that were silent for longest first. It closes connections
    that have completed one only while all connections together use half of the limit on descriptors. The peers reconnect, and
    lose nothing. The counter ``connections.shed`` counts the closed connections.
    """

    def __init__(self, counters: Counters) -> None:
        super().__init__("rl4sys-connections")
        self._counters = counters
        self._is_scarce, self._warn_at = False, 0.0

    def run(self) -> None:
        """Check the descriptors until `stop` is called."""
        while not self._stop_asked.wait(SCARCE_LOOK_S if self._is_scarce else LOOK_S):
            self.look(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def look(self, limit: int) -> None:
        """Close connections if too few descriptors below `limit` are free."""
        reserve = min(RESERVE, limit // 4)
        if limit < 0 or (not self._is_scarce and _lowest_free(limit) < limit - 2 * reserve):
            return  # there is no limit; or descriptors with low numbers, which are used first, are free
        used = len(open_descriptors())
        self._is_scarce = used >= limit - 2 * reserve
        if used <= limit - reserve:
            return
        closed = _shed(used - limit + reserve, reserve, limit // 2)
        self._counters.add("connections.shed", closed)
        if time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + WARN_S
            done = f"{closed} silent connections were closed" if closed else "this program has opened them as files"
            log.warning("%d of %d file descriptors are in use; %s; raise the limit with ulimit -n", used, limit, done)


def _lowest_free(limit: int) -> int:
    """Return the lowest free descriptor, or the limit if there is none."""
    try:
        free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return limit
    os.close(free)
    return free


def _shed(count: int, more: int, keep: int) -> int:
    # Close up to `count` connections of this process, but none that has completed a message while there are at most `keep`. Close
    # up to `more` further ones that have completed no message, since each search is expensive beside a flood.
    sockets = [socket for socket in tracked() if isinstance(socket, OpenSocket)]
    candidates = [(*socket.activity(fd), fd, socket) for socket in sockets for fd in socket.connections()]
    candidates.sort(key=lambda entry: entry[:2])
    silent = sum(not heard for heard, _, _, _ in candidates)
    most = max(min(silent, count + more), min(count, len(candidates) - keep))
    return sum(socket.cut(fd) for _, _, fd, socket in candidates[:most])
