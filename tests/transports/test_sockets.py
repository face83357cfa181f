import errno
import fcntl
import gc
import os
import socket as plain
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from rl4sys_zmq.errors import AddressInUse, Closed, ProtocolError, RefusalReason, TransportError
from rl4sys_zmq.testing import CHECKS, TransportUnderTest, check_transport
from rl4sys_zmq.transports import Poller, SendResult, Socket, TooManyFrames, Wakeup, context, open_sockets, read_subscription


def wait(socket: Any, timeout_s: float = 10.0, **kwargs: Any) -> None:
    with Poller() as poller:
        poller.register(socket, **kwargs)
        assert poller.poll(timeout_s) == {socket}


def receive(socket: Any) -> Any:
    wait(socket)
    return socket.recv()


@pytest.mark.parametrize("clause", CHECKS)
def test_contract(transport: TransportUnderTest, clause: Any) -> None:
    CHECKS[clause](transport.address, str)


@pytest.mark.parametrize("address", ["inproc://*", "ipc://*", "tcp://[::1]:0", "localhost:0", "*:0"])
def test_contract_on_other_ways_to_write_an_address(address: str) -> None:
    check_transport(lambda: address)


def test_a_fresh_address_becomes_concrete(transport: TransportUnderTest) -> None:
    with Socket.router(transport.address()) as one, Socket.router(transport.address()) as two:
        assert one.bound != two.bound and not one.bound.is_fresh
        assert one.bound.scheme == transport.scheme and one.address == one.bound


def test_a_dialling_socket_is_not_bound(transport: TransportUnderTest) -> None:
    with Socket.router(transport.address()) as router, Socket.dealer(router.bound) as dealer:
        assert dealer.address == router.bound
        with pytest.raises(TransportError, match="not bound"):
            _ = dealer.bound


def test_too_many_frames_are_drained_and_reported(transport: TransportUnderTest) -> None:
    with Socket.router(transport.address()) as router, Socket.dealer(router.bound) as dealer:
        assert dealer.send([b""] * 1000)
        assert dealer.send([b"next"])
        wait(router)
        with pytest.raises(TooManyFrames) as caught:
            router.recv()
        error: object = caught.value
        assert isinstance(error, ProtocolError) and error.code is RefusalReason.FRAMES
        assert "1001 frames; the limit is 32" in str(caught.value)
        peer, body = receive(router)
        assert (caught.value.first, body) == (peer, b"next")
        assert dealer.send([b"x"] * 40)
        wait(router)
        frames = router.recv(max_frames=41)
        assert frames is not None and len(frames) == 41


def test_empty_messages_are_refused(transport: TransportUnderTest) -> None:
    with Socket.router(transport.address()) as router, Socket.dealer(router.bound) as dealer:
        with pytest.raises(TransportError, match="at least 1"):
            dealer.send([])
        with pytest.raises(TransportError, match="at least 2"):
            router.send([b"only a peer"])


def test_roles_check_their_calls(transport: TransportUnderTest) -> None:
    with Socket.router(transport.address()) as router:
        with pytest.raises(TransportError, match="only a sub"):
            router.subscribe(b"x")
        with pytest.raises(TransportError, match="cannot wait for one peer"):
            router.send_wait([b"a", b"b"], 0.0)
    both: dict[str, Any] = {"bind": transport.address(), "connect": transport.address()}
    neither: dict[str, Any] = {}
    for arguments in (neither, both):
        with pytest.raises(TransportError, match="exactly one"):
            Socket.push(**arguments)


def test_send_wait_ends_at_its_deadline_and_when_there_is_room(transport: TransportUnderTest) -> None:
    with Socket.push(bind=transport.address(), hwm=1) as push:
        start = time.monotonic()
        assert push.send_wait([b"x"], 0.05) is SendResult.FULL
        assert time.monotonic() - start >= 0.05
        address, got = push.bound, []

        def consume() -> None:
            with Socket.pull(connect=address, hwm=1) as pull:
                got.append(receive(pull))

        thread = threading.Thread(target=consume, name="rl4sys-consumer")
        thread.start()
        assert push.send_wait([b"x"], 10.0) is SendResult.OK
        thread.join()
        assert got == [[b"x"]]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "*:5", "ipc://*", "inproc://*"])
def test_what_nobody_can_dial(address: str) -> None:
    with pytest.raises(TransportError, match="cannot connect to"):
        Socket.dealer(address)


def test_subscription_notices_are_read_strictly() -> None:
    assert read_subscription([b"\x01w"]) == (True, b"w")
    assert read_subscription([b"\x00"]) == (False, b"")
    for junk in ([b""], [b"\x02w"], [b"\x01", b""], []):
        assert read_subscription(junk) is None


def test_options_are_those_of_the_design(transport: TransportUnderTest) -> None:
    made = []

    def secure(raw: Any) -> None:
        made.append(raw)
        assert not raw.getsockopt(zmq.LAST_ENDPOINT).strip(b"\0")

    with (
        Socket.router(transport.address(), send_hwm=5, recv_hwm=6, secure=secure) as router,
        Socket.dealer(router.bound, secure=secure),
        Socket.sub(router.bound, hwm=7, secure=secure),
    ):
        server, client, sub = made
        for raw in made:
            assert raw.getsockopt(zmq.LINGER) == 0
            assert raw.getsockopt(zmq.HEARTBEAT_IVL) == 0 and raw.getsockopt(zmq.HANDSHAKE_IVL) == 3_000
            assert raw.getsockopt(zmq.TCP_KEEPALIVE) == 1 and raw.getsockopt(zmq.IMMEDIATE) == 0
        assert (server.getsockopt(zmq.SNDHWM), server.getsockopt(zmq.RCVHWM)) == (5, 6)
        assert server.getsockopt(zmq.MAXMSGSIZE) == 4 * 1024 * 1024
        assert sub.getsockopt(zmq.RCVHWM) == 7
        assert 50 <= client.getsockopt(zmq.RECONNECT_IVL) <= 500
        assert 2_000 <= client.getsockopt(zmq.RECONNECT_IVL_MAX) <= 4_000
        assert client.getsockopt(zmq.IDENTITY) == b""


def test_reconnection_intervals_differ() -> None:
    seen = set()
    for _ in range(12):
        with Socket.dealer("tcp://127.0.0.1:1", secure=lambda raw: seen.add(raw.getsockopt(zmq.RECONNECT_IVL))):
            pass
    assert len(seen) > 3


def test_a_failed_secure_leaves_no_socket() -> None:
    def fail(raw: Any) -> None:
        raise ValueError("no key")

    before = open_sockets()
    with pytest.raises(ValueError, match="no key"):
        Socket.router("inproc://*", secure=fail)
    assert open_sockets() == before


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_a_frame_over_the_limit_never_arrives(scheme: str) -> None:
    with (
        Socket.router("tcp://127.0.0.1:0" if scheme == "tcp" else "ipc://*", max_frame_bytes=1000) as router,
        Socket.dealer(router.bound) as rude,
        Socket.dealer(router.bound) as good,
    ):
        assert rude.send([b"x" * 1001])
        assert good.send([b"y" * 1000])
        assert receive(router)[1] == b"y" * 1000


def test_poller_knows_sockets_descriptors_and_wakeups(transport: TransportUnderTest) -> None:
    ours, theirs = plain.socketpair()
    with (
        ours,
        theirs,
        Wakeup() as wakeup,
        Socket.router(transport.address()) as router,
        Socket.dealer(router.bound) as dealer,
        Poller() as poller,
    ):
        for source in (router, wakeup, ours.fileno()):
            poller.register(source)
        assert poller.poll(0) == set()
        wakeup.set()
        assert poller.poll(10) == {wakeup}
        theirs.send(b"x")
        dealer.send([b"x"])
        wait(router)
        assert poller.poll(10) == {wakeup, router, ours.fileno()}
        poller.unregister(wakeup)
        poller.unregister(wakeup)
        router.recv()
        ours.recv(1)
        assert poller.poll(0.001) == set()
        poller.register(dealer, read=False, write=True)
        assert poller.poll(10) == {dealer}


def test_polling_a_closed_socket_says_so(transport: TransportUnderTest) -> None:
    with Poller() as poller:
        router = Socket.router(transport.address())
        poller.register(router)
        router.close()
        with pytest.raises(Closed):
            poller.poll(0)


def test_a_forgotten_socket_is_not_closed_by_the_collector() -> None:
    """Only the thread that created a socket may close it. The list of open sockets keeps it until then."""
    before = open_sockets()
    Socket.router("inproc://*")
    gc.collect()
    assert open_sockets() == before + 1
    (forgotten,) = [s for s in sys.modules["rl4sys_zmq.transports.context"]._process.open if s.role == "router"]
    forgotten.close()


@pytest.fixture
def ipc() -> Iterator[Any]:
    with TransportUnderTest("ipc") as under_test:
        yield under_test


def test_ipc_lock_outlives_nothing(ipc: Any) -> None:
    folder = Path(ipc.address().removeprefix("ipc://")).parent / "made" / "here"
    path = folder / "s"
    with Socket.router(f"ipc://{path}") as router:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert sorted(p.name for p in folder.iterdir()) == ["s", "s.lock"]
        with pytest.raises(AddressInUse):
            Socket.router(router.bound)
        assert sorted(p.name for p in folder.iterdir()) == ["s", "s.lock"]
    assert list(folder.iterdir()) == []


def test_ipc_takes_over_a_dead_socket_but_nothing_else(ipc: Any) -> None:
    dead, alive, file = (ipc.address() for _ in range(3))
    with plain.socket(plain.AF_UNIX) as leftover:
        leftover.bind(dead.removeprefix("ipc://"))
    with Socket.router(dead):
        pass
    with plain.socket(plain.AF_UNIX) as foreign:
        foreign.bind(alive.removeprefix("ipc://"))
        foreign.listen(1)
        with pytest.raises(AddressInUse):
            Socket.router(alive)
        assert os.path.exists(alive.removeprefix("ipc://"))
    with open(file.removeprefix("ipc://"), "w") as precious:
        precious.write("precious")
    with pytest.raises(TransportError, match="not a socket"):
        Socket.router(file)
    with open(file.removeprefix("ipc://")) as precious:
        assert precious.read() == "precious"
    assert not os.path.exists(file.removeprefix("ipc://") + ".lock")


def test_ipc_lock_of_another_process_counts(ipc: Any) -> None:
    address = ipc.address()
    with open(address.removeprefix("ipc://") + ".lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(AddressInUse) as caught:
            Socket.router(address)
        assert caught.value.address == address
    with Socket.router(address):
        pass


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("tcp://203.0.113.7:0", "no interface"),
        ("tcp://no-such-interface:0", "no interface"),
        ("ipc:///dev/null/x", "part of the path is a file"),
        ("ipc:///proc/nowhere/x", "choose another path"),
    ],
)
def test_what_cannot_be_bound_says_what_to_do(address: str, says: str) -> None:
    before = open_sockets()
    with pytest.raises(TransportError, match=says):
        Socket.router(address)
    assert open_sockets() == before


def test_a_port_held_by_another_program_is_in_use() -> None:
    with plain.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(AddressInUse) as caught:
            Socket.router(f"127.0.0.1:{server.getsockname()[1]}")
        assert isinstance(caught.value.__cause__, zmq.ZMQError) and caught.value.__cause__.errno == errno.EADDRINUSE


def test_one_context() -> None:
    assert context() is context()
    assert context().get(zmq.MAX_SOCKETS) >= 8192
