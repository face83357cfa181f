"""Tests of the proxy with plain sockets, which show every byte and every error."""

import socket as plain
import time
from typing import Any

import pytest
from kit import until

from rl4sys_zmq.errors import Closed, TransportError
from rl4sys_zmq.testing import ChaosProxy, NetworkFaults
from rl4sys_zmq.transports import Address, Poller, Socket

DATA = bytes(range(256)) * 800


class Pair:
    """A client and the upstream's side of its connection, with the proxy between them."""

    def __init__(self, faults: Any = None, seed: int = 1) -> None:
        self.server = plain.create_server(("127.0.0.1", 0))
        self.server.settimeout(10)
        self.proxy = ChaosProxy(f"127.0.0.1:{self.server.getsockname()[1]}", seed=seed, faults=faults)
        self._sides = [self.server]
        self.client, self.upstream = self.connect()

    def connect(self) -> tuple[Any, ...]:
        where = Address.parse(self.proxy.address)
        client = plain.create_connection((where.host, where.port), timeout=10)
        upstream, _ = self.server.accept()
        upstream.settimeout(10)
        self._sides += [client, upstream]
        return client, upstream

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.proxy.close()
        for side in self._sides:
            side.close()


def receive(side: Any, size: Any) -> bytes:
    """Receive `size` bytes, or fewer if the stream ends."""
    got = bytearray()
    while len(got) < size:
        try:
            data = side.recv(size - len(got))
        except ConnectionResetError:
            break
        if not data:
            break
        got += data
    return bytes(got)


def test_carries_both_ways_untouched() -> None:
    with Pair() as pair:
        for there, back in ((pair.client, pair.upstream), (pair.upstream, pair.client)):
            there.sendall(DATA)
            assert receive(back, len(DATA)) == DATA
        count = pair.proxy.counters.get
        until(lambda: (count("bytes.up"), count("bytes.down")) == (len(DATA), len(DATA)))  # counted just after sending
        assert count("connections") == 1


def test_an_end_is_passed_on_after_the_data() -> None:
    with Pair(NetworkFaults(latency_s=0.02)) as pair:
        pair.client.sendall(b"last words")
        pair.client.close()
        assert receive(pair.upstream, 100) == b"last words"


def test_latency_and_rate() -> None:
    with Pair(NetworkFaults(latency_s=0.1)) as pair:
        start = time.monotonic()
        pair.client.sendall(b"x")
        receive(pair.upstream, 1)
        assert time.monotonic() - start >= 0.1
        pair.proxy.faults = NetworkFaults(rate_bytes_s=10_000)
        assert pair.proxy.faults.rate_bytes_s == 10_000
        start = time.monotonic()
        pair.client.sendall(DATA[:2_000])
        assert receive(pair.upstream, 2_000) == DATA[:2_000]
        assert time.monotonic() - start >= 0.19


def test_corruption_flips_bits_and_counts_them() -> None:
    with Pair(NetworkFaults(corrupt_probability=1.0)) as pair:
        pair.client.sendall(DATA)
        got = receive(pair.upstream, len(DATA))
        flips = sum((a ^ b).bit_count() for a, b in zip(got, DATA, strict=True))
        assert 0 < flips == pair.proxy.counters.get("corrupted")


def test_a_cut_comes_within_the_data() -> None:
    with Pair(NetworkFaults(cut_probability=1.0)) as pair:
        pair.client.sendall(DATA[:10_000])
        assert len(receive(pair.upstream, 10_000)) < 10_000
        with pytest.raises(ConnectionResetError):
            pair.client.recv(1)
        assert pair.proxy.counters.get("cuts") == 1


def test_a_cut_may_be_a_plain_end() -> None:
    with Pair(NetworkFaults(cut_probability=1.0, reset=False)) as pair:
        pair.client.sendall(b"x")
        assert receive(pair.upstream, 1) == b"" == pair.client.recv(1)


def test_half_open_leaves_the_client_in_belief() -> None:
    with Pair(NetworkFaults(cut_probability=1.0, half_open=True)) as pair:
        pair.client.sendall(b"x" * 1000)
        assert len(receive(pair.upstream, 1000)) < 1000
        pair.client.sendall(DATA)  # received by the proxy, and discarded
        until(lambda: pair.proxy.counters.get("swallowed_bytes") == len(DATA))
        pair.client.settimeout(0.02)
        with pytest.raises(TimeoutError):
            pair.client.recv(1)
        assert pair.proxy.counters.get("half_open") == 1


def test_pause_loses_nothing() -> None:
    with Pair() as pair:
        pair.proxy.pause()
        pair.client.sendall(b"waits")
        pair.upstream.settimeout(0.02)
        with pytest.raises(TimeoutError):
            pair.upstream.recv(1)
        pair.proxy.resume()
        pair.upstream.settimeout(10)
        assert receive(pair.upstream, 5) == b"waits"


def test_a_paused_proxy_stops_the_sender() -> None:
    with Pair() as pair:
        pair.proxy.pause()
        pair.client.setblocking(False)
        with pytest.raises(BlockingIOError):
            for _ in range(10_000):
                pair.client.send(DATA)


def test_cut_resets_all_at_once() -> None:
    with Pair() as pair:
        other, theirs = pair.connect()
        assert pair.proxy.cut() == 2
        for side in (pair.client, pair.upstream, other, theirs):
            with pytest.raises(ConnectionResetError):
                side.recv(1)
        assert pair.proxy.cut() == 0


def test_black_hole_swallows_then_resets_what_has_a_hole() -> None:
    with Pair() as pair:
        other, theirs = pair.connect()
        pair.proxy.black_hole(True)
        pair.client.sendall(b"into the void")
        until(lambda: pair.proxy.counters.get("swallowed_bytes") == 13)
        pair.proxy.black_hole(False)
        with pytest.raises(ConnectionResetError):
            pair.client.recv(1)
        other.sendall(b"unharmed")
        assert receive(theirs, 8) == b"unharmed"


def test_no_upstream_is_a_refusal() -> None:
    with plain.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with ChaosProxy(f"127.0.0.1:{port}", seed=1) as proxy:
        where = Address.parse(proxy.address)
        with (  # the reset may come while `connect` still waits
            pytest.raises(ConnectionResetError),
            plain.create_connection((where.host, where.port), timeout=10) as client,
        ):
            client.recv(1)
        assert proxy.counters.get("refused") == 1


def test_close_is_final() -> None:
    proxy = ChaosProxy("127.0.0.1:9", seed=1)
    proxy.close()
    proxy.close()
    with pytest.raises(Closed):
        proxy.pause()
    for address in ("ipc:///tmp/x", "127.0.0.1:0"):
        with pytest.raises(TransportError, match="cannot be proxied"):
            ChaosProxy(address, seed=1)


def test_a_dealer_comes_back_after_a_cut() -> None:
    with (
        Socket.router("tcp://127.0.0.1:0") as router,
        ChaosProxy(router.bound, seed=3) as proxy,
        Socket.dealer(proxy.address) as dealer,
        Poller() as poller,
    ):
        poller.register(router)
        peers = set()
        for round_ in range(2):
            while not poller.poll(0.02):  # a message that is sent just as the connection breaks may be lost, so send it again
                dealer.send([b"hello"])
            while (message := router.recv()) is not None:
                peers.add(message[0])
            assert len(peers) == round_ + 1
            if round_ == 0:
                assert proxy.cut() == 1
