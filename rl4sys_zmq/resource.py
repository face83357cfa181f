"""Ownership: things that are closed once, and threads that are named, joined and never silently dead."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from rl4sys_zmq.errors import WorkerDied

__all__ = ["Resource", "Worker"]

log = logging.getLogger(__name__)


class Resource(ABC):
    """Something with an owner and a ``close()``: idempotent, and closed even when it raises."""

    @abstractmethod
    def close(self) -> None:
        """Releases everything held. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Worker(ABC):
    """A named thread with an owner.

    The owner calls `start`, later `stop` (which must make `run` return) and `join`. An exception in `run` is kept in
    `error`, logged once, and handed to `on_death` in the dying thread; nothing is swallowed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    @abstractmethod
    def run(self) -> None:
        """The thread's body; returns after `stop`."""

    @abstractmethod
    def stop(self) -> None:
        """Makes `run` return soon. Callable from any thread, more than once."""

    def on_death(self, error: BaseException) -> None:
        """Called in the dying thread when `run` raised."""

    def start(self) -> None:
        """Starts the thread. A worker is started once."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    @property
    def ident(self) -> int | None:
        """The thread's identifier, None before `start`."""
        return self._thread.ident

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the end of the thread; returns False when it is still alive after `timeout_s` seconds."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def raise_if_dead(self) -> None:
        """Surfaces the death of the thread in its owner.

        Raises:
            WorkerDied: when `run` raised.
        """
        if self.error is not None:
            raise WorkerDied(f"thread {self.name} died: {self.error!r}") from self.error

    def _main(self) -> None:
        try:
            self.run()
        except BaseException as error:  # the border of a thread: nothing may vanish with it
            self.error = error
            log.exception("thread %s died", self.name)
            self.on_death(error)
