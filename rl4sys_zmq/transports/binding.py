"""Binding and connecting of ZeroMQ sockets: choose what the address leaves open, lock ipc paths, add remedies to errors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import threading
import time
import uuid
from dataclasses import replace

import zmq

from rl4sys_zmq.errors import AddressInUse, TransportError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports.address import Address, make_socket_folder

# Longest time to wait for an address that this process has just released: libzmq closes sockets in the background.
REBIND_WAIT_S = 2.0

_RETRY_S = 0.002
_released: dict[str, float] = {}
_released_lock = threading.Lock()

_REMEDIES = {
    errno.EACCES: "permission denied; choose a port above 1023, or a path in a folder that you own",
    errno.ENODEV: "no interface of this machine has that address; use one of its IP addresses, or * for all of them",
    errno.EADDRNOTAVAIL: "no interface of this machine has that address; use one of its IP addresses, or * for all of them",
    errno.ENOENT: "the folder does not exist and cannot be created; choose another path",
    errno.ENOTDIR: "a part of the path is a file; choose another path",
    errno.EEXIST: "a part of the path is a file; choose another path",
    errno.EROFS: "the file system is read-only; choose another path",
    errno.EMFILE: "too many open files; raise the limit with ulimit -n",
    errno.EINVAL: "this machine cannot use that host; write an IP address",
}


class SocketBinding(Resource):
    """The binding of a ZeroMQ socket to an address with its actual port, path or name. With ipc, it includes a lock on the
    path.
    """

    def __init__(self, raw: zmq.Socket[bytes], address: Address) -> None:
        """Bind a socket to an address. Set all options of the socket first."""
        if address.scheme == "inproc" and address.is_fresh:
            address = replace(address, name=f"rl4sys-{uuid.uuid4().hex}")
        if address.host == "localhost":
            address = replace(address, host="127.0.0.1")  # libzmq binds interfaces and addresses, not names
        self._raw = raw
        self._claim = _IpcPathLock(address) if address.scheme == "ipc" else None
        self.address = self._claim.address if self._claim is not None else address
        try:
            _bind_waiting(raw, self.address)
            if self._claim is not None:
                os.chmod(self.address.name, 0o600)
        except BaseException:
            self._release_claim()
            raise
        if address.scheme == "tcp":
            self.address = Address.parse(raw.getsockopt_string(zmq.LAST_ENDPOINT))

    def close(self) -> None:
        """Unbind the socket and release the lock. Call this before the socket is closed."""
        with contextlib.suppress(zmq.ZMQError):  # the socket is closed next; this only frees an inproc name at once
            self._raw.unbind(self.address.uri)
        with _released_lock:
            _released[self.address.uri] = time.monotonic()
        self._release_claim()

    def abandon(self) -> None:
        """Close a forked child's copy of the lock's descriptor. The parent stays bound and keeps the lock."""
        if self._claim is not None:
            self._claim.abandon()

    def _release_claim(self) -> None:
        if self._claim is not None:
            self._claim.close()


def connect_socket(raw: zmq.Socket[bytes], address: Address) -> None:
    """Connect a socket to an address. Set all options of the socket first. The other side can start later."""
    address.check_connectable()
    try:
        raw.connect(address.uri)
    except zmq.ZMQError as exc:
        raise TransportError(f"cannot connect to {address.uri}: {_REMEDIES.get(exc.errno or 0, exc.strerror)}") from exc


def _bind_waiting(raw: zmq.Socket[bytes], address: Address) -> None:
    while True:
        try:
            raw.bind(address.uri)
            return
        except zmq.ZMQError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise TransportError(f"cannot bind {address.uri}: {_REMEDIES.get(exc.errno or 0, exc.strerror)}") from exc
            if not _just_released(address.uri):
                raise AddressInUse(address.uri) from exc
        time.sleep(_RETRY_S)


def _just_released(uri: str) -> bool:
    now = time.monotonic()
    with _released_lock:
        for old in [key for key, when in _released.items() if now - when > REBIND_WAIT_S]:
            del _released[old]
        return uri in _released


class _IpcPathLock(Resource):
    """A lock on the path of an ipc address, in a file with the suffix ``.lock``. The file is removed before it is released."""

    # Without the lock, a second learner could bind at the same path, because libzmq removes the existing socket file. The actors
    # of the first learner would then connect to the second one.

    def __init__(self, address: Address) -> None:
        self._folder: str | None = None
        self._fd = -1
        try:
            if address.is_fresh:
                self._folder = make_socket_folder()
                address = Address.parse(f"ipc://{os.path.join(self._folder, 'socket')}")
            self.address = address
            self._lock = address.name + ".lock"
            os.makedirs(os.path.dirname(address.name) or ".", mode=0o700, exist_ok=True)
            self._fd = self._acquire()
            self._check_vacant()
        except OSError as exc:
            self._release()
            raise TransportError(f"cannot bind {address.uri}: {_REMEDIES.get(exc.errno or 0, exc.strerror)}") from exc
        except TransportError:
            self._release()
            raise

    def close(self) -> None:
        """Remove the socket file, the lock file, and the folder if this object created it."""
        if self._fd >= 0:
            _unlink(self.address.name)
        self._release()

    def abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._folder = -1, None

    def _acquire(self) -> int:
        while True:
            fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_ino == os.stat(self._lock).st_ino:
                    return fd
            except BlockingIOError as exc:
                os.close(fd)
                raise AddressInUse(self.address.uri) from exc
            except FileNotFoundError:
                pass  # the last holder has removed the file after this process opened it: open a new file
            os.close(fd)

    def _release(self) -> None:
        if self._fd >= 0:
            _unlink(self._lock)
            os.close(self._fd)
            self._fd = -1
        if self._folder is not None:
            import shutil

            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _check_vacant(self) -> None:
        """Raise an error unless the path is free, or has a left-over socket file on which no process listens."""
        try:
            mode = os.lstat(self.address.name).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise TransportError(f"cannot bind {self.address.uri}: a file that is not a socket is there; choose another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(self.address.name) == 0:
                raise AddressInUse(self.address.uri)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
