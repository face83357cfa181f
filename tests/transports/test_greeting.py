"""Tests of the check of a peer's greeting, with real listeners that send nothing, or another protocol."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.transports import Address
from rl4sys_zmq.transports import greeting as zmtp
from rl4sys_zmq.transports.greeting import LearnerUnreachable, dial, explain_silence, greet, look_up

SHORT_S = 0.3


@contextmanager
def listener(serve: Callable[[socket.socket], None] | None) -> Iterator[Address]:
    """Run a plain TCP listener, which calls `serve` with each connection. With None, it accepts and sends nothing."""
    held: list[socket.socket] = []
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def run() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                held.append(connection)
                try:
                    if serve is not None:
                        serve(connection)
                except OSError:
                    pass

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield Address("tcp", "127.0.0.1", listening.getsockname()[1])
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(5.0)
            for connection in held:
                connection.close()


def says(words: bytes, after: bytes = b"") -> Callable[[socket.socket], None]:
    """Return a function that sends `words` on a connection, at once or after it has received `after`."""

    def serve(connection: socket.socket) -> None:
        connection.settimeout(2.0)
        heard = b""
        while after and after not in heard:
            data = connection.recv(256)
            if not data:
                return
            heard += data
        connection.sendall(words)

    return serve


HTTP = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("serve", "cause"),
    [
        (None, "sends nothing within"),
        (says(HTTP), "the peer is an HTTP server"),
        (says(HTTP, after=b"\r\n"), "the peer is an HTTP server"),
        (says(b"SSH-2.0-OpenSSH_9.6\r\n"), "the peer is an SSH server"),
        (says(b"\x15\x03\x01\x00\x02\x02\x46"), "the peer is a TLS server"),
        (says(b"\x1b[31mhello"), r"is not ZeroMQ; it sent b'\\x1b\[31mhello'"),
        (lambda connection: connection.close(), "closes the connection without a reply"),
        (says(b"\xff" + bytes(8) + b"\x7f\x01\x05" + bytes(52)), r"ZMTP 1\.5"),
    ],
)
def test_what_is_not_zeromq_is_named(serve: Callable[[socket.socket], None] | None, cause: str) -> None:
    with listener(serve) as address, pytest.raises(LearnerUnreachable, match=cause) as caught:
        greet(address, SHORT_S)
    assert caught.value.remedy
    assert str(caught.value) == f"{caught.value.cause}; {caught.value.remedy}"


def test_a_learner_greets_with_its_mechanism(tmp_path: Path) -> None:
    for bind in ("tcp://127.0.0.1:0", f"ipc://{tmp_path}/learner"):
        with Learner(LearnerConfig(bind=bind, run_dir=None)) as learner:
            for address in (learner.address, learner.pub_address):
                assert greet(Address.parse(address), 5.0) == zmtp.ZmtpGreeting("3.1", "NULL")


def test_nobody_there_is_named(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but not listening
        with pytest.raises(LearnerUnreachable, match="no process listens there"):
            dial(Address("tcp", "127.0.0.1", closed.getsockname()[1]), 5.0)
    with pytest.raises(LearnerUnreachable, match="no such socket"):
        dial(Address("ipc", name=str(tmp_path / "none")), 5.0)
    (tmp_path / "file").touch()
    with pytest.raises(LearnerUnreachable, match="is not a socket"):
        dial(Address("ipc", name=str(tmp_path / "file")), 5.0)


def test_a_full_backlog_is_a_timeout() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        where = full.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(where)
            with pytest.raises(LearnerUnreachable, match="no reply at"):
                dial(Address("tcp", *where), SHORT_S)
        finally:
            for filler in fillers:
                filler.close()


def test_a_name_without_an_address_is_named() -> None:
    with pytest.raises(LearnerUnreachable, match=r"'nobody\.invalid' has no address"):
        look_up(Address("tcp", "nobody.invalid", 1), 30.0)
    with pytest.raises(LearnerUnreachable, match="has no address"):
        look_up(Address("tcp", "x" * 80, 1), 30.0)  # longer than a label of a name may be
    assert look_up(Address("tcp", "127.0.0.1", 5), 5.0) == [(socket.AF_INET, ("127.0.0.1", 5))]


def test_a_resolver_that_does_not_answer_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def slow(*_: object, **__: object) -> list[object]:
        ended.wait(30.0)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        with pytest.raises(LearnerUnreachable, match=r"not resolved within 0\.1 s"):
            look_up(Address("tcp", "slow", 1), 0.1)
    finally:
        ended.set()


def test_a_name_with_ipv6_addresses_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    six = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 1, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: six)
    with pytest.raises(LearnerUnreachable, match="IPv6 addresses only"):
        look_up(Address("tcp", "six", 1), 1.0)
    assert look_up(Address("tcp", "::1", 1), 1.0) == [(socket.AF_INET6, ("::1", 1))]


def test_silence_is_explained() -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as plain:
        address = f"tcp://127.0.0.1:{plain.bind_to_random_port('tcp://127.0.0.1')}"
        assert explain_silence(address, has_keys=False).startswith("a ZeroMQ socket answers, but no learner")
        assert explain_silence(address, has_keys=True) == "the learner has no keys, but this side has: remove the option keys"
    with zmq.Context() as context, context.socket(zmq.PULL) as guarded:
        public, secret = zmq.curve_keypair()
        guarded.curve_server, guarded.curve_secretkey, guarded.curve_publickey = True, secret, public
        address = f"tcp://127.0.0.1:{guarded.bind_to_random_port('tcp://127.0.0.1')}"
        assert "set the option keys" in explain_silence(address, has_keys=False)
        assert explain_silence(address, has_keys=True).endswith("or the keys")
    assert explain_silence("inproc://nobody", has_keys=False) == ""
