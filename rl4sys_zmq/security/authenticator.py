"""Authentication for one server: users by the access list ``users.toml``, and remote workers by new keys.

A change of the file takes effect within a second. If the file is invalid, the server keeps the list that it has read before.

For remote workers, a learner creates one key pair for itself in each run, and one for each start of a worker. The two sockets
of a worker accept only this worker's key. None of these keys is stored on a disk.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.private import others_can_write
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.security.access import USERS_FILE, AccessList, load_access
from rl4sys_zmq.security.keys import LEARNER_SECRET, KeyPair, curve_server, new_key_pair, read_server_keys
from rl4sys_zmq.security.zap import Denial, register_domain
from rl4sys_zmq.transports import Secure
from rl4sys_zmq.transports.network import Keys

log = get_logger(__name__)

POLL_S = 0.1
SETTLED_LOOKS = 3  # a changed file is read when it has stayed the same for so many looks
JOIN_S = 2.0
_numbers = itertools.count()


class AccessListWatcher(Worker):
    """The thread that holds the access list and reads it again when its file changes."""

    def __init__(self, path: Path) -> None:
        """Read the access list for the first time. Raise ConfigError if that fails. `start` then starts the thread."""
        super().__init__("rl4sys-access")
        self.problem = ""  # reason why the present file is invalid and an older list is in use; empty if the file is valid
        self.loads = 1  # number of lists that have been in use, the first included
        # function that the thread calls with each new list
        self.changed: Callable[[AccessList], None] = lambda access: None
        self._path = path
        self._seen = _signature(path)
        # access list in use. Any thread can read this attribute. A changed list replaces the whole object.
        self.access = load_access(path)
        self.warnings: list[str] = []  # a text for each file or folder that other accounts can change, with the remedy
        self._warn()

    def check(self, key: str) -> str | Denial:
        """Return the public key of a connecting peer if it is in the access list, else the denial. The ZAP thread calls this."""
        user = self.access.by_key.get(key)
        if user is None:
            return Denial("unlisted")
        return Denial("expired") if user.expired(time.time()) else key

    def run(self) -> None:
        """Look at the file ten times a second, and read it when it has changed. Return after `stop`."""
        last, looks = self._seen, 0
        while not self._stop_asked.wait(POLL_S):
            before, last = last, _signature(self._path)
            looks = looks + 1 if last == before else 0
            if last == self._seen or looks < SETTLED_LOOKS:
                continue  # unchanged, or still being written: an incomplete list would lock out users
            self._warn()
            try:
                access = load_access(self._path, allow_empty=False)
            except ConfigError as exc:
                if not isinstance(exc.__cause__, OSError) or not last:
                    self._seen = last
                if self.problem != str(exc):
                    self.problem = str(exc)
                    log.error("the new list of users is invalid, and the old one stays in force: %s", exc)
                continue
            self._seen = last
            names = set(self.access.by_name)
            self.access, self.problem = access, ""
            self.changed(access)
            self.loads += 1
            log.warning("the list of users has changed: %s", _describe_change(names, set(access.by_name)))

    def _warn(self) -> None:
        """Log a warning, once, if other accounts can change the file or its folder, and so could add keys."""
        warnings = others_can_write(self._path, self._path.resolve().parent)
        for warning in warnings:
            if warning not in self.warnings:
                log.warning("%s", warning)
        self.warnings = warnings


def _describe_change(before: set[str], now: set[str]) -> str:
    changes = {"added": now - before, "removed": before - now, "listed now": now}
    named = [f"{what}: {', '.join(sorted(names))}" for what, names in changes.items() if names]
    return "; ".join(named if now else [*named, "listed now: no users"])


class Authenticator(Resource):
    """The authenticator of one server's peers: only peers with a key in the access list can connect.

    Call `open` before the server's sockets are bound, and `close` after they are closed.
    """

    def __init__(self, keys: Path, users_file: Path | None = None) -> None:
        """Read the keys and the access list (by default ``users.toml`` in `keys`), and start to answer authentication requests.

        Raises:
            ConfigError: If a file is missing or invalid, or if other accounts can read the secret.
        """
        pair = read_server_keys(keys / LEARNER_SECRET)
        # access list in use, and the thread that reads changes
        self.watcher = AccessListWatcher(users_file or keys / USERS_FILE)
        name = f"rl4sys-{os.getpid()}-{next(_numbers)}"
        self._domain = register_domain(name, self.watcher.check)
        # pass it to the functions of `Socket` that create bound sockets, so that this object authenticates their peers
        self.secure: Secure = curve_server(pair, name)

    def open(self, changed: Callable[[AccessList], None]) -> None:
        """Start the thread that reads changes of the access list. It calls `changed` with each new list."""
        self.watcher.changed = changed
        self.watcher.start()

    def report(self) -> dict[str, object]:
        """Return the part of a server's status about keys: numbers of users, accepted connections and denied connections."""
        return {
            "listed": len(self.watcher.access.by_name),
            "loads": self.watcher.loads,
            "problem": self.watcher.problem,
            "alive": self._domain.alive and self.watcher.alive,
            "warnings": list(self.watcher.warnings),
            **self._domain.counters.snapshot(),
        }

    def raise_if_dead(self) -> None:
        """Raise WorkerDied if the ZAP thread or the access list's thread has ended."""
        self._domain.raise_if_dead()
        self.watcher.raise_if_dead()

    def close(self) -> None:
        """Stop watching the access list and answering requests. New peers can then no longer connect."""
        self.watcher.stop()
        self.watcher.join(JOIN_S)
        self._domain.close()


def _signature(path: Path) -> tuple[int, ...]:
    """Return numbers that change when the file is changed or replaced; an empty tuple if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


class RemoteWorkerAuthenticator(Resource):
    """The authenticator of one remote worker: two sockets of the learner accept only this worker's key.

    Call `close` after the sockets are closed.
    """

    def __init__(self, own: KeyPair) -> None:
        """Create a key pair for the worker, and accept its public key from now on. `own` is the learner's key pair for all
        workers of a run.

        Raises:
            TransportError: If libzmq's authentication requests cannot be answered in this process.
        """
        pair = new_key_pair()
        # worker's public key, its secret key, and the learner's public key. They are secret.
        self.keys: Keys = (pair.public, pair.secret, own.public)
        self._revoked = False
        name = f"rl4sys-worker-{os.getpid()}-{next(_numbers)}"
        self._domain = register_domain(name, self._check)
        # sets the CURVE options on a socket that is about to be bound, so that only this worker can connect to it
        self.secure: Secure = curve_server(own, name)

    def _check(self, key: str) -> str | Denial:
        if key != self.keys[0]:
            return Denial("foreign")
        return Denial("revoked") if self._revoked else key

    def revoke(self) -> None:
        """Accept no new connection of the worker. Connections that exist stay open."""
        self._revoked = True

    def close(self) -> None:
        """Stop authenticating connections to the two sockets. New ones are then denied."""
        self._domain.close()
