"""A hand-written ZMTP 3.1, for connections that send exactly the wrong bytes."""

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterable
from typing import Any

from rl4sys_zmq.transports import Address

MORE, LONG, COMMAND = 1, 2, 4

TAKES_FLOODS = False
"""True if a learner survives the attacks of the strict xfails in test_zmtp_fuzz.py. Until then the fuzzer must omit them."""


def greeting(version: tuple[int, int] = (3, 1), mechanism: bytes = b"NULL", as_server: int = 0) -> bytes:
    head = b"\xff" + bytes(7) + b"\x01\x7f" + bytes(version)
    return head + mechanism.ljust(20, b"\0")[:20] + bytes([as_server]) + bytes(31)


def frame(data: bytes, flags: int = 0, declared: int | None = None) -> bytes:
    """Return one frame. `declared` sets a false length."""
    size = len(data) if declared is None else declared
    if size > 255 or flags & LONG:
        return struct.pack(">BQ", flags | LONG, size) + data
    return bytes([flags, size]) + data


def message(frames: Iterable[bytes]) -> bytes:
    parts = list(frames)
    return b"".join(frame(part, MORE if i + 1 < len(parts) else 0) for i, part in enumerate(parts))


def command(name: bytes, body: bytes = b"") -> bytes:
    return frame(bytes([len(name) & 255]) + name + body, COMMAND)


def prop(name: bytes, value: bytes, declared: int | None = None) -> bytes:
    size = len(value) if declared is None else declared
    return bytes([len(name) & 255]) + name + struct.pack(">I", size) + value


def ready(kind: bytes = b"DEALER", *more: bytes) -> bytes:
    """Return the READY command, which ends a handshake without security."""
    return command(b"READY", prop(b"Socket-Type", kind) + b"".join(more))


def dial(address: str) -> socket.socket:
    where = Address.parse(address)
    return socket.create_connection((where.host, where.port), timeout=10.0)


def hear_ready(connection: socket.socket) -> bool:
    """Read until the peer has sent READY. Return False if it closes the connection or is silent for one second.

    libzmq closes a connection if a message arrives before libzmq has sent its own READY.
    """
    connection.settimeout(1.0)
    heard = b""
    while b"READY" not in heard:
        try:
            data = connection.recv(1 << 16)
        except TimeoutError:
            return False
        if not data:
            return False
        heard += data
    return True


class Peer:
    """A minimal DEALER: one connection, whole messages."""

    def __init__(self, address: str) -> None:
        self._socket = dial(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as libzmq: no message waits for an ACK
        self._socket.sendall(greeting() + ready(b"DEALER", prop(b"Identity", b"")))
        self._bytes = b""
        self._take(64)
        self._take(self._take(2)[1])  # the peer's READY, a short command

    def send(self, frames: Iterable[Any]) -> None:
        self._socket.sendall(message(bytes(f) for f in frames))

    def hear(self) -> list[bytes]:
        """Return the next message. Commands are ignored."""
        frames: list[bytes] = []
        while True:
            flags, size = self._take(2) if not self._peek() & LONG else struct.unpack(">BQ", self._take(9))
            data = self._take(size)
            if flags & COMMAND:
                continue
            frames.append(data)
            if not flags & MORE:
                return frames

    def close(self, *, reset: bool = False) -> None:
        hang_up(self._socket, reset=reset)

    def _peek(self) -> int:
        self._fill(1)
        return self._bytes[0]

    def _take(self, size: int) -> bytes:
        self._fill(size)
        data, self._bytes = self._bytes[:size], self._bytes[size:]
        return data

    def _fill(self, size: int) -> None:
        deadline = time.monotonic() + 30.0
        while len(self._bytes) < size:
            data = self._socket.recv(1 << 16)
            assert data, "the learner has hung up"
            assert time.monotonic() < deadline, "the learner does not answer"
            self._bytes += data


def hang_up(connection: socket.socket, *, reset: bool) -> None:
    """Close the connection with FIN, or with RST."""
    if reset:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Fuzzer:
    """A generator of the bytes of connections: mostly correct, with single errors, so that they pass the first checks."""

    def __init__(self, rng: random.Random, mutate: Any) -> None:
        self._rng = rng
        self._mutate = mutate
        self._kind = b""

    def words(self, kind: bytes) -> list[bytes]:
        """Return the bytes that one connection of this socket type sends."""
        rng, self._kind = self._rng, kind
        match rng.randrange(10):
            case 0:
                return [rng.randbytes(rng.choice([0, 1, 9, 10, 63, 64, 65, rng.randrange(4096)]))]
            case 1:
                return [self._bad_greeting()]
            case 2:
                return [greeting() + self._bad_ready()]
            case 3:
                return [greeting()[: rng.randrange(64)]]
            case _:
                return [greeting() + ready(kind), self._traffic()]

    def _bad_greeting(self) -> bytes:
        rng = self._rng
        mechanism = rng.choice([b"NULL", b"PLAIN", b"CURVE", b"GSSAPI", b"", b"null", rng.randbytes(20)])
        version = rng.choice([(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 255), (255, 255)])
        whole = bytearray(greeting(version, mechanism, rng.choice([0, 1, 255])))
        if rng.random() < 0.5:
            whole[rng.randrange(64)] ^= 1 << rng.randrange(8)
        tail = rng.choice([b"", ready(), frame(b"x"), rng.randbytes(64), command(b"HELLO", rng.randbytes(194))])
        return bytes(whole) + tail

    def _bad_ready(self) -> bytes:
        rng = self._rng
        kind = rng.choice([b"PUB", b"REP", b"ROUTER", b"", b"x" * 300, rng.randbytes(8)])
        body = rng.choice(
            [
                prop(b"Socket-Type", b"DEALER", 2**31),
                prop(b"Socket-Type", b"DEALER", 2**32 - 1),
                prop(b"Socket-Type", b"DEALER")[:-2],
                prop(b"Socket-Type", b"DEALER") * 50,
                prop(b"Identity", bytes(300)) + prop(b"Socket-Type", b"DEALER"),
                prop(b"", b"") * 200,
                prop(b"Identity", b"\0abc"),
                b"\xff",
                b"",
            ]
        )
        choices = [
            ready(kind),
            command(b"READY", body),
            command(b"READY", body)[: rng.randrange(1, 40)],
            command(rng.choice([b"ERROR", b"HELLO", b"INITIATE", b"WELCOME", b"NOPE", b""]), rng.randbytes(rng.randrange(300))),
            frame(b"\xffREADY", COMMAND),
            frame(b"", COMMAND),
            frame(b"x", COMMAND | MORE),
            frame(rng.randbytes(40), rng.randrange(256)),
            frame(b"READY", COMMAND, 2**63 - 1),
        ]
        return rng.choice(choices)

    def _traffic(self) -> bytes:
        rng = self._rng
        return b"".join(self._burst() for _ in range(rng.randint(1, 3)))

    def _burst(self) -> bytes:
        rng = self._rng
        floods = TAKES_FLOODS or self._kind == b"DEALER"  # empty frames of one message: a ROUTER counts them
        match rng.randrange(12):
            case 0 if floods:
                return frame(b"", MORE) * rng.choice([17, 255, 256, 257, 2000])
            case 1 if floods:
                return frame(b"", MORE) * rng.choice([255, 300]) + frame(b"end")
            case 2:
                return frame(rng.randbytes(8), rng.choice([0, MORE]), rng.choice([200, 5000, 1 << 22]))
            case 3:
                return frame(b"", LONG, rng.choice([2**26 + 1, 2**31, 2**40, 2**63 - 1, 2**63, 2**64 - 1]))
            case 4:
                return frame(rng.randbytes(rng.randrange(64)), rng.randrange(8, 256))
            case 5 if TAKES_FLOODS:
                ping = command(b"PING", struct.pack(">H", rng.randrange(65536)) + rng.randbytes(rng.choice([0, 16, 17, 200])))
                return ping * rng.choice([1, 100])
            case 6:
                names = [b"PONG", b"SUBSCRIBE", b"CANCEL", b"ERROR", b"READY", b"WHAT"]
                return command(rng.choice(names), rng.randbytes(rng.choice([0, 1, 8, 255])))
            case 7:
                notice = bytes([rng.choice([0, 1, 2])]) + rng.choice([b"", b"W", b"B", rng.randbytes(8), bytes(5000)])
                return frame(notice) * rng.choice([1, 200 if TAKES_FLOODS or self._kind == b"SUB" else 20])
            case 8:
                return rng.randbytes(rng.randrange(1, 2000))
            case _:
                return b"".join(message(self._mutate()) for _ in range(rng.randint(1, 4)))
