"""Limits on descriptors: which connections are closed to keep some free, and how the limit is raised."""

import errno
import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.transports import ConnectionLimitThread, Socket
from rl4sys_zmq.transports.peers import inode, open_descriptors

PATIENCE_S = 20.0


def limit_for(excess: int) -> int:
    """Return a limit on open files that this process exceeds by so many descriptors, with a quarter as reserve."""
    used = len(open_descriptors())
    return next(limit for limit in range(4 * used) if limit - min(256, limit // 4) >= used - excess)


def closed(connection: socket.socket) -> bool:
    """Read until the other side closes the connection. Return False if it does not."""
    connection.settimeout(PATIENCE_S)
    try:
        while connection.recv(1 << 12):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_connections_without_a_message_are_closed_and_others_stay(stack: ExitStack) -> None:
    router = stack.enter_context(Socket.router("tcp://127.0.0.1:0"))
    actor = stack.enter_context(Socket.dealer(router.bound))
    actor.send([b"hello"])
    assert router.recv_wait(PATIENCE_S) is not None and router.descriptor() >= 0
    idle = [stack.enter_context(socket.create_connection(("127.0.0.1", router.bound.port))) for _ in range(40)]
    for connection in idle:  # libzmq has accepted the connection when it sends its greeting
        connection.sendall(b"\xff" + bytes(8) + b"\x7f")
        connection.settimeout(PATIENCE_S)
        assert connection.recv(10)
    counters = Counters()
    limit = ConnectionLimitThread(counters)
    limit.look(limit_for(0))
    assert not counters.get("connections.shed")
    limit.look(limit_for(40))
    assert counters.get("connections.shed") == 40 and all(map(closed, idle))
    actor.send([b"again"])
    assert router.recv_wait(PATIENCE_S) is not None


def test_actors_stay_if_files_are_the_cause(stack: ExitStack) -> None:
    router = stack.enter_context(Socket.router("tcp://127.0.0.1:0"))
    actor = stack.enter_context(Socket.dealer(router.bound))
    actor.send([b"hello"])
    assert router.recv_wait(PATIENCE_S) is not None and router.descriptor() >= 0
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]
    counters = Counters()
    try:
        ConnectionLimitThread(counters).look(limit_for(100))
    finally:
        for descriptor in files:
            os.close(descriptor)
    actor.send([b"again"])
    assert router.recv_wait(PATIENCE_S) is not None and not counters.get("connections.shed")


def test_descriptors_are_found_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = sorted(fd for fd in open_descriptors() if inode(fd))  # without the one that read the folder

    def exhausted(path: str) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    monkeypatch.setattr(os, "listdir", exhausted)
    assert open_descriptors() == listed


PROGRAM = """
import resource
from rl4sys_zmq.transports import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
print(raise_descriptor_limit(100), raise_descriptor_limit(80), raise_descriptor_limit(1000))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_limit_on_open_files_is_raised_softly() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["100", "100", "200", "200", "200"]
