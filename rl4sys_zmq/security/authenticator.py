"""Authentication for one server: its keys, its access list and its ZAP domain.

Only keys on the list can connect. A change of the list's file takes effect within a second. If the file is invalid, the old list
stays in force.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.private import others_can_write
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.security.access import USERS_FILE, AccessList, load_access
from rl4sys_zmq.security.keys import LEARNER_SECRET, curve_server, read_server_keys
from rl4sys_zmq.security.zap import Credentials, Denied, register_domain
from rl4sys_zmq.transports import Secure

__all__ = ["AccessWatcher", "Authenticator"]

log = logging.getLogger(__name__)

POLL_S = 0.1
JOIN_S = 2.0
_numbers = itertools.count()


class AccessWatcher(Worker):
    """The access list in force, and the thread that reads it again when its file changes.

    Attributes:
        access: The list in force. It is replaced as a whole.
        problem: The reason why the file on disk is not in force, or an empty string.
        loads: The number of lists that have come into force.
        warnings: Files and folders that other accounts can change, each with the remedy.
    """

    def __init__(self, path: Path) -> None:
        """Read the file for the first time.

        Raises:
            ConfigError: If the file cannot be used.
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
        """Return the key of a connection if it is listed, else the denial. The ZAP handler calls this in its thread.

        The key identifies the connection, not the user's name: a name can get another key while the old key is connected.
        """
        user = self.access.by_key.get(credentials.key_z85)
        if user is None:
            return Denied("unlisted")
        return Denied("expired") if user.expired(time.time()) else user.key

    def run(self) -> None:
        """Check ten times a second for a change of the file, until `stop`."""
        last = self._seen
        while not self._stopping.wait(POLL_S):
            before, last = last, _signature(self._path)
            if last == self._seen or last != before:
                continue  # unchanged, or still being written: an incomplete list would lock out users
            self._seen = last
            self._warn()
            try:
                access = load_access(self._path)
            except ConfigError as exc:
                self.problem = str(exc)
                log.error("the new list of users is invalid, and the old one stays in force: %s", exc)
                continue
            self.access, self.problem = access, ""
            self.changed(access)
            self.loads += 1
            log.warning("the list of users has changed: %s", ", ".join(sorted(access.by_name)) or "no users")

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()

    def _warn(self) -> None:
        """Log a warning once for each file and folder that other accounts can change: they could add their own keys."""
        found = others_can_write(self._path, self._path.resolve().parent)
        for warning in found:
            if warning not in self.warnings:
                log.warning("%s", warning)
        self.warnings = found


class Authenticator(Resource):
    """The authentication of one server's connections: only listed keys can connect.

    Open it before the sockets are bound, and close it after they are closed.

    Attributes:
        watcher: The access list and its thread.
        secure: The function that sets up a socket, before it is bound, for CURVE with this authenticator.
    """

    def __init__(self, keys: Path, users_file: Path | None = None) -> None:
        """Read the keys and the access list, and register the ZAP domain.

        Args:
            keys: The folder with the server's keys.
            users_file: The access list. None: ``users.toml`` in `keys`.

        Raises:
            ConfigError: If a file is missing or invalid, or if other accounts can read the secret.
        """
        pair = read_server_keys(keys / LEARNER_SECRET)
        self.watcher = AccessWatcher(users_file or keys / USERS_FILE)
        name = f"rl4sys-{os.getpid()}-{next(_numbers)}"
        self._domain = register_domain(name, self.watcher.check)
        self.secure: Secure = curve_server(pair, name)

    def open(self, changed: Callable[[AccessList], None]) -> None:
        """Start to watch the list. The watcher's thread calls `changed` with each new list."""
        self.watcher.changed = changed
        self.watcher.start()

    def report(self) -> dict[str, object]:
        """Return figures for a server's status: listed users, and accepted and denied connections."""
        return {
            "listed": len(self.watcher.access.by_name),
            "loads": self.watcher.loads,
            "problem": self.watcher.problem,
            "alive": self._domain.alive and self.watcher.alive,
            "warnings": list(self.watcher.warnings),
            **self._domain.counters.snapshot(),
        }

    def raise_if_dead(self) -> None:
        """Raise WorkerDied if the ZAP handler's thread or the watcher's thread has ended."""
        self._domain.raise_if_dead()
        self.watcher.raise_if_dead()

    def close(self) -> None:
        """Stop the watcher's thread and unregister the domain."""
        self.watcher.stop()
        self.watcher.join(JOIN_S)
        self._domain.close()


def _signature(path: Path) -> tuple[int, ...]:
    """Return a tuple that changes when the file changes or is replaced; empty if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
