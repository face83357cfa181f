"""The functions that other threads want the owner of some sockets to call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rl4sys_zmq.errors import Closed
from rl4sys_zmq.transports.wakeup import Wakeup

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


class ThreadCalls:
    """The functions that other threads want a thread to call, and the request to stop.

    The thread polls `wakeup` together with its sockets. After each poll it calls `serve`, until `stopping` is True. At its end
    it calls `refuse_all`. Any thread can use the other methods.
    """

    def __init__(self, owner: str) -> None:
        """Create the queue. `owner` names the object with the thread, such as ``learner``, in error messages."""
        self.wakeup = Wakeup()
        self._owner = owner
        self._calls: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._lock = threading.Lock()
        self._stopping = self._ended = self._released = False

    @property
    def stopping(self) -> bool:
        """True after `stop` or `refuse_all`."""
        return self._stopping

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Let the thread call `function`, and return a future for the result.

        Raises:
            Closed: If the thread has ended or is stopping.
        """
        from concurrent.futures import Future  # not needed by an actor, which imports this package

        future: Future[T] = Future()
        with self._lock:
            if self._stopping:
                raise self.closed()
            self._calls.append((function, future))
        self.wakeup.set()
        return future

    def stop(self) -> None:
        """Ask the thread to end, without waiting."""
        with self._lock:
            self._stopping = True
        self.wakeup.set()

    def serve(self) -> None:
        """Call the functions that wait. Their exceptions go to the futures."""
        self.wakeup.clear()
        with self._lock:
            calls, self._calls = self._calls, []
        for function, future in calls:
            try:
                future.set_result(function())
            except Exception as exc:  # noqa: BLE001 - handed to the caller
                future.set_exception(exc)

    def refuse_all(self) -> None:
        """Refuse the functions that wait, and all later ones."""
        with self._lock:
            self._stopping = self._ended = True
            calls, self._calls = self._calls, []
            if self._released:
                self.wakeup.close()
        for _, future in calls:
            future.set_exception(self.closed())

    def release(self, *, alive: bool) -> None:
        """Close `wakeup` now, or at the end of the thread if it still may be `alive`. Call `stop` first."""
        with self._lock:
            self._released = True
            if self._ended or not alive:
                self.wakeup.close()

    def closed(self) -> Closed:
        """Return the error for callers after the end."""
        return Closed(f"the {self._owner} is closed")
