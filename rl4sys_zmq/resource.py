"""Base classes: `Resource`, an object that must be closed, and `Worker`, a thread that stores the exception that ended it.

`call_in_child` makes an object release the parent's resources in a forked child.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from rl4sys_zmq.errors import WorkerDied
from rl4sys_zmq.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")

STACK_BYTES = 1 << 20
"""The smallest stack of a worker's thread, in bytes.

A program can choose a smaller one for all new threads (`threading.stack_size`). Libraries such as onnxruntime need more.
"""


DESCRIPTOR_WAIT_S = 0.3
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def with_descriptor(call: Callable[[], T]) -> T:
    """Return the result of a call that needs a file descriptor. While none is free, repeat the call, for at most 0.3 s."""
    deadline = time.monotonic() + DESCRIPTOR_WAIT_S
    while True:
        try:
            return call()
        except Exception as exc:
            if getattr(exc, "errno", 0) not in _NO_DESCRIPTORS or time.monotonic() >= deadline:
                raise
        time.sleep(0.002)


class Resource(ABC):
    """An object that must be closed, and that is closed at the end of a ``with`` block.

    ``close()`` can be called twice. It releases everything even if it raises.
    """

    @abstractmethod
    def close(self) -> None:
        """Release all resources. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Worker(ABC):
    """A named daemon thread that stores the exception that ended it. Subclasses define `run`, and can extend `stop`.

    The creator of the thread calls `start`, and later `stop` and `join`. An exception in `run` is stored in `error`, logged once,
    and passed to `on_death` in the same thread.

    Attributes:
        name: The name of the thread.
        error: The exception that `run` raised, or None.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._stop_asked = threading.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    @abstractmethod
    def run(self) -> None:
        """Do the work of the thread. This method must return soon after `stop` is called."""

    def stop(self) -> None:
        """Make `run` return soon. Any thread can call this, more than once. By default this sets the event `_stop_asked`."""
        self._stop_asked.set()

    def on_death(self, error: BaseException) -> None:
        """React to an exception that ended `run`, in the same thread. By default this does nothing."""

    def start(self) -> None:
        """Start the thread, with a stack of at least 1 MiB. A worker can be started only once."""
        size = threading.stack_size()  # of the whole process; 0: the default of the system
        if not 0 < size < STACK_BYTES:
            self._thread.start()
            return
        threading.stack_size(STACK_BYTES)
        try:
            self._thread.start()
        finally:
            threading.stack_size(size)

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    @property
    def ident(self) -> int | None:
        """The identifier of the thread. None before `start`."""
        return self._thread.ident

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the thread. Return False if it still runs after `timeout_s` seconds."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def raise_if_dead(self) -> None:
        """Raise `WorkerDied` if the thread has ended with an exception, so that its creator notices the failure.

        Raises:
            WorkerDied: If `run` raised. The exception is its cause.
        """
        if self.error is not None:
            raise WorkerDied(f"thread {self.name} failed: {self.error!r}") from self.error

    def _main(self) -> None:
        try:
            self.run()
        except BaseException as error:  # no error of a thread can be lost
            self.error = error
            log.exception("thread %s failed", self.name)
            self.on_death(error)


_calls: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def call_in_child(owner: T, call: Callable[[T], None]) -> None:
    """Call `call` with `owner` in each child that this process forks from now on, as long as `owner` exists.

    Pass a function that does not refer to `owner`, such as a method of the owner's class. A second call for the same owner
    replaces the function.
    """
    _calls[owner] = call


def _call_all() -> None:
    for owner, call in list(_calls.items()):
        call(owner)


os.register_at_fork(after_in_child=_call_all)
