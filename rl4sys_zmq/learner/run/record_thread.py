"""A thread that passes records to a slow place, such as a disk or a web service, from a bounded queue."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Worker

log = get_logger(__name__)

QUEUE_RECORDS = 10_000
FLUSH_S = 1.0


class RecordThread(Worker):
    """A thread that makes the calls in its queue, one after another. Subclasses can define `flush`, and `close`, its last call.

    The queue has at most `QUEUE_RECORDS` calls. If it is full, they are dropped and counted as ``records_dropped``. An expected
    error in a call is counted as ``write_errors``. The first, the second, the fourth, ... of each are logged.
    """

    def __init__(self, name: str, target: str, expected: tuple[type[Exception], ...], counters: Counters) -> None:
        """Create the thread. `target` is the place in log messages, and `expected` the errors that do not end the thread."""
        super().__init__(name)
        self.target, self.counters = target, counters
        self._expected = expected
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(QUEUE_RECORDS)

    def flush(self) -> None:
        """Pass on what is buffered, if anything is. The thread calls this about once a second."""

    def close(self) -> None:
        """Release everything, if anything is held."""

    def put(self, call: Callable[[], None]) -> None:
        """Add a call to the queue, from any thread, without waiting."""
        try:
            self._queue.put_nowait(call)
        except queue.Full:
            self._count("records_dropped", "its queue is full: it is too slow, or hangs")

    def run(self) -> None:
        next_flush = time.monotonic() + FLUSH_S
        try:
            while True:
                ending = self._stop_asked.is_set()  # then the queue has all records, but maybe not the None of `stop`
                try:
                    call = self._queue.get(timeout=FLUSH_S)
                except queue.Empty:
                    if ending:
                        return
                else:
                    if call is None:
                        return
                    self.attempt(call)
                if time.monotonic() >= next_flush:
                    next_flush = time.monotonic() + FLUSH_S
                    self.attempt(self.flush)
        finally:
            self.attempt(self.close)

    def stop(self) -> None:
        """Ask the thread to make all queued calls and end."""
        if self.ident is not None and not self._stop_asked.is_set():
            super().stop()
            try:
                self._queue.put(None, timeout=FLUSH_S)
            except queue.Full:
                log.warning("%s is too slow: its queue is full, and the last records are lost", self.target)

    def attempt(self, call: Callable[[], None]) -> bool:
        """Make a call. Count and log an expected error, and return False."""
        try:
            call()
        except self._expected as exc:
            self._count("write_errors", f"{type(exc).__name__}: {exc}")
            return False
        return True

    def _count(self, counter: str, text: str) -> None:
        self.counters.add(counter)
        count = self.counters.get(counter)
        if count & (count - 1) == 0:
            log.warning("%s: %s (%s: %d)", self.target, text, counter, count)
