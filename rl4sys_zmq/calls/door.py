"""The door of a server: its keys, the list of clients, and the ZAP domain that lets nobody else in.

A change of the list's file is in force within a second; a mistake in it changes nothing.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rl4sys_zmq.config import AccessList, load_access
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.private import others_can_write
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.transports import Credentials, Denied, Secure, curve_server, read_server_keys, register_domain

__all__ = ["LEARNER_SECRET", "AccessWatcher", "Door"]

log = logging.getLogger(__name__)

LEARNER_SECRET = "learner.secret"
LOOK_S = 0.1
JOIN_S = 2.0
_doors = itertools.count()


class AccessWatcher(Worker):
    """Reads the list of clients, looks ten times a second whether it has changed, and answers the ZAP handler from it.

    Attributes:
        access: the list in force; replaced whole.
        problem: why the file on disk is not in force, or an empty string.
        loads: how many times a list has come into force.
        warnings: what others may change, each with the mend.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file a first time.

        Raises:
            ConfigError: when it can't be used.
        """
        super().__init__("rl4sys-access")
        self.problem = ""
        self.loads = 1
        self.changed: Callable[[AccessList], None] = lambda access: None
        self._path = path
        self._seen = _signature(path)
        self.access = load_access(path)
        self.warnings: list[str] = []
        self._warn()
        self._stopping = threading.Event()

    def check(self, credentials: Credentials) -> str | Denied:
        """The key that a connection has, if it is listed; called by the ZAP handler in its thread.

        The key rather than its name: a name may be given another key while the old one is connected.
        """
        peer = self.access.by_key.get(credentials.key_z85)
        if peer is None:
            return Denied("unlisted")
        return Denied("expired") if peer.expired(time.time()) else peer.key

    def run(self) -> None:
        """The thread's body."""
        last = self._seen
        while not self._stopping.wait(LOOK_S):
            before, last = last, _signature(self._path)
            if last == self._seen or last != before:
                continue  # nothing new, or still being written: half a list would lock the other half out
            self._seen = last
            self._warn()
            try:
                access = load_access(self._path)
            except ConfigError as exc:
                self.problem = str(exc)
                log.error("the list of clients has not changed, because: %s", exc)
                continue
            self.access, self.problem = access, ""
            self.changed(access)
            self.loads += 1
            log.warning("the list of clients has changed: %s", ", ".join(sorted(access.by_name)) or "nobody")

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()

    def _warn(self) -> None:
        """Says once of each file and folder that others may change it: they could let themselves in."""
        found = others_can_write(self._path, self._path.resolve().parent)
        for warning in found:
            if warning not in self.warnings:
                log.warning("%s", warning)
        self.warnings = found


class Door(Resource):
    """A server's keys and who may come in by them. Open it before the sockets are bound, close it after they are closed.

    Attributes:
        watcher: the list of clients.
        secure: makes a bound socket ask at this door.
    """

    def __init__(self, keys: Path, access_file: Path) -> None:
        """Reads the folder of keys and the list of clients.

        Raises:
            ConfigError: when one of them is missing, wrong, or readable by others.
        """
        pair = read_server_keys(keys / LEARNER_SECRET)
        self.watcher = AccessWatcher(access_file)
        name = f"rl4sys-{os.getpid()}-{next(_doors)}"
        self._domain = register_domain(name, self.watcher.check)
        self.secure: Secure = curve_server(pair, name)

    def open(self, changed: Callable[[AccessList], None]) -> None:
        """Starts to watch the list; `changed` is called with each new one, in the watcher's thread."""
        self.watcher.changed = changed
        self.watcher.start()

    def report(self) -> dict[str, object]:
        """For the learner's status: who is listed, and who was denied why."""
        return {
            "listed": len(self.watcher.access.by_name),
            "loads": self.watcher.loads,
            "problem": self.watcher.problem,
            "alive": self._domain.alive and self.watcher.alive,
            "warnings": list(self.watcher.warnings),
            **self._domain.counters.snapshot(),
        }

    def raise_if_dead(self) -> None:
        """Raises WorkerDied when nobody new can get in any more, or the list is not looked at."""
        self._domain.raise_if_dead()
        self.watcher.raise_if_dead()

    def close(self) -> None:
        """Takes the domain back and ends the watch."""
        self.watcher.stop()
        self.watcher.join(JOIN_S)
        self._domain.close()


def _signature(path: Path) -> tuple[int, ...]:
    """What changes with the file, its replacement by another included; empty when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
