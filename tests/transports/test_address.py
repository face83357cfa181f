import tempfile
from pathlib import Path

import pytest

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.transports import Address, Socket, make_socket_folder


@pytest.mark.parametrize(
    ("text", "uri", "scheme", "host", "port"),
    [
        ("learner:5555", "tcp://learner:5555", "tcp", "learner", 5555),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", "tcp", "127.0.0.1", 0),
        ("*:*", "tcp://*:0", "tcp", "*", 0),
        ("[::1]:80", "tcp://[::1]:80", "tcp", "::1", 80),
        (" tcp://[fd00::2]:65535 ", "tcp://[fd00::2]:65535", "tcp", "fd00::2", 65535),
        ("ipc:///tmp/a.sock", "ipc:///tmp/a.sock", "ipc", "", 0),
        ("ipc://*", "ipc://*", "ipc", "", 0),
        ("inproc://a:b", "inproc://a:b", "inproc", "", 0),
    ],
)
def test_reads_and_writes(text: str, uri: str, scheme: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.uri, address.scheme, address.host, address.port) == (uri, scheme, host, port)
    assert Address.parse(address.uri) == address
    assert Address.parse(address) is address


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no port"),
        ("learner", "learner:5555"),
        ("learner:", "has no port"),
        (":5555", r"127\.0\.0\.1:5555"),
        ("tcp://a:b", "0 to 65535"),
        ("tcp://a:65536", "0 to 65535"),
        ("tcp://a:-1", "0 to 65535"),
        ("tcp://a:٣", "0 to 65535"),
        ("::1:5555", r"\[::1\]:5555"),
        ("[::1]", "has no port"),
        ("[zz]:1", "no IPv6 address"),
        ("[::1:1", "no IPv6 address"),
        ("tcp://a b:1", "not host:port"),
        ("tcp://eth0;a:1", "not host:port"),
        ("http://a:1", "unknown scheme 'http'"),
        ("udp://a:1", "use tcp://"),
        ("ipc://", "names no path"),
        ("inproc://", "names no endpoint"),
        ("ipc://@abstract", "abstract"),
        ("ipc:///tmp/a\0b", "zero byte"),
        ("ipc://" + "é" * 54, "108 bytes of at most 107"),
    ],
)
def test_refuses_with_the_mend(text: str, says: str) -> None:
    with pytest.raises(TransportError, match=says):
        Address.parse(text)


def test_longest_ipc_path() -> None:
    assert Address.parse("ipc://" + "p" * 107).name == "p" * 107


def test_with_port() -> None:
    assert Address.parse("[::1]:1").with_port(9).uri == "tcp://[::1]:9"
    with pytest.raises(TransportError, match="65536"):
        Address.parse("a:1").with_port(65536)
    with pytest.raises(TransportError, match="no port"):
        Address.parse("ipc:///tmp/a").with_port(1)


def test_an_error_names_the_folder_for_temporary_files_where_sockets_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(TransportError, match=rf"temporary files, {long}, leaves -?\d+ bytes .*; set TMPDIR to"):
        Socket.push(bind="ipc://*")
    monkeypatch.setattr(tempfile, "tempdir", "/missing")
    with pytest.raises(TransportError, match=r"no folder for sockets can be created: .*missing.*; set TMPDIR"):
        make_socket_folder()
