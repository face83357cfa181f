"""Tests of sockets in a sidecar, with real processes."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from harness.children import is_there
from kit import until

from rl4sys_zmq.errors import Closed, TransportError
from rl4sys_zmq.transports import Poller, SendResult, Socket, TooManyFrames, Wakeup, open_sockets, read_subscription
from rl4sys_zmq.transports.network import SocketFactory
from rl4sys_zmq.transports.sidecar import SidecarSocketFactory
from rl4sys_zmq.transports.sidecar_pipe import SEND_WINDOW_BYTES, SidecarCommandKind, SidecarPipe

DEADLINE_S = 20.0
NETWORKS = pytest.mark.parametrize("make", [SocketFactory, SidecarSocketFactory])


@pytest.fixture(autouse=True)
def descriptors_come_back() -> Iterator[Any]:
    Socket.router("inproc://*").close()  # the first socket creates the context, which keeps some descriptors
    before = os.listdir("/proc/self/fd"), open_sockets()
    yield
    until(lambda: len(os.listdir("/proc/self/fd")) <= len(before[0]))
    assert open_sockets() == before[1]


@pytest.fixture
def router() -> Iterator[Any]:
    with Socket.router("tcp://127.0.0.1:0", send_hwm=100_000, recv_hwm=100_000, max_frame_bytes=64 * 2**20) as router:
        yield router


@pytest.fixture
def factory() -> Iterator[Any]:
    with SidecarSocketFactory() as factory:
        yield factory


def receive(socket: Any, max_frames: int = 32, timeout_s: Any = DEADLINE_S) -> Any:
    with Poller() as poller:
        poller.register(socket)
        assert poller.poll(timeout_s), "nothing came"
    return socket.recv(max_frames)


def carried(factory: Any, socket: Any) -> Any:
    """Wait for a message on a socket of the test. Meanwhile call `exchange` on the factory, as an actor's thread does."""
    return until(lambda: factory.exchange() or socket.recv())


def receive_line(network: Any, line: Any, max_frames: int = 32) -> Any:
    with network.poller() as poller:
        poller.register(line)
        assert poller.poll(DEADLINE_S) == {line}, "nothing came"
    return line.recv(max_frames)


def met(network: Any, router: Any) -> tuple[Any, ...]:
    dealer = network.dealer(router.bound, send_hwm=100_000, recv_hwm=100_000)
    assert dealer.send([b"hello"])
    return dealer, receive(router)[0]


def alive(pid: Any) -> Any:
    return Path(f"/proc/{pid}").exists()


def python(code: Any, **kwargs: Any) -> Any:
    return subprocess.Popen([sys.executable, "-W", "error", "-c", textwrap.dedent(code)], text=True, **kwargs)


@NETWORKS
def test_sub(make: Any) -> None:
    with Socket.xpub("tcp://127.0.0.1:0") as xpub, make() as network, network.sub(xpub.bound) as sub:
        sub.subscribe(b"a")
        assert read_subscription(receive(xpub)) == (True, b"a")
        for message in ([b"b", b"not for us"], [b"a1", b"for us"]):
            assert xpub.send(message)
        assert receive_line(network, sub) == [b"a1", b"for us"]
        sub.unsubscribe(b"a")
        assert read_subscription(receive(xpub)) == (False, b"a")


@NETWORKS
def test_one_poller_for_both_and_a_wakeup(make: Any, router: Any) -> None:
    with (
        Socket.xpub("tcp://127.0.0.1:0") as xpub,
        make() as network,
        network.poller() as poller,
        network.sub(xpub.bound) as sub,
        Wakeup() as wakeup,
    ):
        dealer, peer = met(network, router)
        sub.subscribe(b"")
        receive(xpub)
        for source in (dealer, sub, wakeup):
            poller.register(source)
        assert poller.poll(0.0) == set()
        ringer = threading.Timer(0.05, wakeup.set)
        ringer.start()
        assert poller.poll(DEADLINE_S) == {wakeup}
        ringer.join()
        assert wakeup.clear()
        assert xpub.send([b"news"])
        assert poller.poll(DEADLINE_S) == {sub}
        assert router.send([peer, b"answer"])
        until(lambda: poller.poll(DEADLINE_S) == {dealer, sub})
        assert (sub.recv(), dealer.recv()) == ([b"news"], [b"answer"])
        assert poller.poll(0.0) == set()
        poller.unregister(sub)
        assert xpub.send([b"unheard"]) and router.send([peer, b"again"])
        assert poller.poll(DEADLINE_S) == {dealer}
        poller.register(dealer, read=False, write=True)
        assert poller.poll(DEADLINE_S) == {dealer}
        dealer.close()


def test_many_small_messages_in_order(factory: Any, router: Any) -> None:
    dealer, peer = met(factory, router)
    numbers = [b"%d" % n for n in range(10_000)]
    for number in numbers:
        assert dealer.send([number, b"x"])
    assert [carried(factory, router)[1] for _ in numbers] == numbers
    for number in numbers:
        assert router.send([peer, number])
    assert [receive_line(factory, dealer)[0] for _ in numbers] == numbers


def test_large_messages_both_ways(factory: Any, router: Any) -> None:
    dealer, peer = met(factory, router)
    bodies = [bytes([n]) * (4_000_000 + n) for n in range(20)]

    for body in bodies[:10]:
        assert dealer.send([b"head", body, b"tail"])
    for body in bodies[10:]:
        assert router.send([peer, b"back", body])
    for body in bodies[:10]:
        assert carried(factory, router) == [peer, b"head", body, b"tail"]
    for body in bodies[10:]:
        head, got = receive_line(factory, dealer)
        assert head == b"back" and got == body and isinstance(got, memoryview) and got.readonly
    for body in bodies[10:]:
        assert dealer.send([body])
    for body in bodies[:10]:
        assert router.send([peer, body])
    assert [carried(factory, router)[1] for _ in range(10)] == bodies[10:]
    assert [receive_line(factory, dealer)[0] for _ in range(10)] == bodies[:10]


@pytest.mark.parametrize("sent", [40, 2000])
def test_too_many_frames(factory: Any, router: Any, sent: int) -> None:
    dealer, peer = met(factory, router)
    assert router.send([peer, b"first", *[b""] * (sent - 1)])
    assert router.send([peer, b"next"])
    with pytest.raises(TooManyFrames) as caught:
        receive_line(factory, dealer)
    assert caught.value.first == b"first"
    assert receive_line(factory, dealer) == [b"next"]
    with pytest.raises(TransportError, match="2000 frames"):
        dealer.send([b""] * 2000)
    with pytest.raises(TransportError, match="0 frame"):
        dealer.send([])


def test_a_full_window_says_full_and_blocks_nothing() -> None:
    chunk = bytes(1_000_000)
    with Socket.xpub("tcp://127.0.0.1:0") as xpub, SidecarSocketFactory() as factory:
        full = factory.dealer("tcp://127.0.0.1:1", send_hwm=1)  # no process listens there
        longest_s, sent = 0.0, 0
        while sent < 1000:
            before = time.monotonic()
            result = full.send([chunk])
            longest_s = max(longest_s, time.monotonic() - before)
            if not result:
                break
            sent += 1
        assert result is SendResult.FULL and sent <= SEND_WINDOW_BYTES // len(chunk) + 2
        assert longest_s < 0.5
        sub = factory.sub(xpub.bound)  # another connection is not blocked
        sub.subscribe(b"")
        carried(factory, xpub)
        assert xpub.send([b"news"])
        assert receive_line(factory, sub) == [b"news"]
        assert full.send([chunk]) is SendResult.FULL
        full.close()
        with factory.dealer("tcp://127.0.0.1:1") as again:
            assert until(lambda: again.send([chunk]))


def test_a_window_opens_again(factory: Any) -> None:
    with Socket.router("tcp://127.0.0.1:0", recv_hwm=1, max_frame_bytes=2**24) as router:
        dealer = factory.dealer(router.bound, send_hwm=1)
        chunk = bytes(8_000_000)
        sent = 0
        while dealer.send([b"%d" % sent, chunk]):
            sent += 1
        with factory.poller() as poller:
            poller.register(dealer, read=False, write=True)
            assert poller.poll(0.0) == set()
            for n in range(sent):
                assert carried(factory, router)[1] == b"%d" % n
            assert poller.poll(DEADLINE_S) == {dealer}
        assert dealer.send([b"more"])
        assert receive(router)[1] == b"more"


def test_a_stopped_sidecar_fills_up_and_blocks_nothing(router: Any) -> None:
    with SidecarSocketFactory() as factory:
        dealer, _ = met(factory, router)
        os.kill(factory.pid, signal.SIGSTOP)
        chunk, before = bytes(1_000_000), time.monotonic()
        while dealer.send([chunk]):
            assert time.monotonic() - before < 5
        with factory.poller() as poller:
            poller.register(dealer)
            assert poller.poll(0.05) == set()
        before = time.monotonic()
    assert time.monotonic() - before < 1.5
    assert not alive(factory.pid)


@pytest.mark.parametrize("call", ["send", "recv", "poll", "open", "subscribe"])
def test_a_killed_sidecar_is_an_error_of_every_call_and_a_new_one_works(router: Any, call: str) -> None:
    with SidecarSocketFactory() as factory:
        dealer, _ = met(factory, router)
        sub = factory.sub(router.bound)
        poller = factory.poller()
        poller.register(dealer)
        calls = {
            "send": lambda: dealer.send([b"lost"]),
            "recv": dealer.recv,
            "poll": lambda: poller.poll(DEADLINE_S),
            "open": lambda: factory.dealer(router.bound),
            "subscribe": lambda: sub.subscribe(b"x"),
        }
        os.kill(factory.pid, signal.SIGKILL)
        with pytest.raises(TransportError, match=r"the sidecar \(pid \d+\) ended: signal 9"):
            while True:
                calls[call]()
        assert not alive(factory.pid)  # not even as a zombie
        for again in calls.values():
            with pytest.raises(TransportError, match="signal 9"):
                again()
        poller.unregister(dealer)
        dealer.close()
        sub.close()
        poller.close()
    with SidecarSocketFactory() as factory:
        met(factory, router)


def test_a_silent_sidecar_is_taken_for_dead(monkeypatch: pytest.MonkeyPatch, router: Any) -> None:
    monkeypatch.setattr("rl4sys_zmq.transports.sidecar.PING_S", 0.05)
    monkeypatch.setattr("rl4sys_zmq.transports.sidecar.PING_TIMEOUT_S", 1.0)
    with SidecarSocketFactory() as factory:
        dealer, _ = met(factory, router)
        with factory.poller() as poller:
            poller.register(dealer)
            assert poller.poll(0.3) == set()  # the sidecar replies to pings
            os.kill(factory.pid, signal.SIGSTOP)
            with pytest.raises(TransportError, match="did not reply"):
                poller.poll(DEADLINE_S)
        assert not alive(factory.pid)


HOST = """
    import sys, time
    from rl4sys_zmq.transports.sidecar import SidecarSocketFactory
    factory = SidecarSocketFactory()
    dealer = factory.dealer(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:1")
    dealer.send([b"hello"])
    print(factory.pid, flush=True)
    {then}
"""


HOLDERS = {
    "nobody": "time.sleep(60)",
    "a forked child": "import os; child = os.fork(); child and print(child, flush=True); time.sleep(60)",
    "a program": """import subprocess
    held = subprocess.Popen(["sleep", "60"], pass_fds=(factory.pipe.fileno(),))
    print(held.pid, flush=True)
    time.sleep(60)""",
}
"""Who has a copy of the host's end of the socketpair: the code that a host runs."""


@pytest.mark.parametrize(("holder", "started"), [("nobody", False), *((holder, True) for holder in HOLDERS)])
def test_a_killed_host_takes_its_sidecar_along(router: Any, holder: str, started: bool) -> None:
    code = HOST.format(then=HOLDERS[holder]).replace('"tcp://127.0.0.1:1"', repr(router.bound.uri))
    with python(code, stdout=subprocess.PIPE) as host:
        pid = int(host.stdout.readline())
        held = int(host.stdout.readline()) if holder != "nobody" else 0
        try:
            if started:
                assert receive(router)[1] == b"hello"
            assert alive(pid)
            host.kill()
            host.wait()
            until(lambda: not is_there(pid))
        finally:
            if held:
                os.kill(held, signal.SIGKILL)


def test_a_forked_child_leaves_the_sidecar_alone(router: Any) -> None:
    code = """
        import os, sys
        from rl4sys_zmq.errors import TransportError
        from rl4sys_zmq.transports.sidecar import SidecarSocketFactory
        with SidecarSocketFactory() as factory:
            poller = factory.poller()
            dealer = factory.dealer(sys.stdin.readline().strip())
            child = os.fork()
            if not child:
                for call in (dealer.recv, lambda: dealer.send([b"lost"]), lambda: poller.poll(0), lambda: factory.dealer("a:1")):
                    try:
                        call()
                    except TransportError as exc:
                        assert "fork" in str(exc), exc
                    else:
                        raise AssertionError("it was usable")
                dealer.close()
                factory.close()
                sys.exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            dealer.send([b"hello"])
            poller.register(dealer)
            assert poller.poll(20)
            print(dealer.recv())
    """
    with python(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as host:
        host.stdin.write(router.bound.uri + "\n")
        host.stdin.flush()
        peer, *_ = receive(router)
        router.send([peer, b"answer"])
        out, err = host.communicate(timeout=DEADLINE_S)
    assert (host.returncode, out, err) == (0, "[b'answer']\n", "")


def test_the_host_makes_no_context_and_the_sidecar_imports_little(router: Any) -> None:
    code = """
        import sys
        from rl4sys_zmq.transports import Wakeup
        from rl4sys_zmq.transports import context
        from rl4sys_zmq.transports.sidecar import SidecarSocketFactory
        address = sys.stdin.readline().strip()
        with SidecarSocketFactory() as factory, factory.poller() as poller, factory.dealer(address) as dealer, Wakeup() as bell:
            poller.register(dealer)
            poller.register(bell)
            dealer.send([b"hello"])
            assert poller.poll(20)
            dealer.recv()
        assert sys.modules["rl4sys_zmq.transports.context"]._process.context is None
        import rl4sys_zmq.transports.sidecar_process
        print(sorted({"numpy", "torch", "msgpack", "gymnasium", "asyncio", "multiprocessing"} & set(sys.modules)))
    """
    alone = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}  # coverage imports much
    with python(code, env=alone, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as host:
        host.stdin.write(router.bound.uri + "\n")
        host.stdin.flush()
        router.send([receive(router)[0], b"answer"])
        out, err = host.communicate(timeout=DEADLINE_S)
    assert (host.returncode, out, err) == (0, "[]\n", "")


def test_exit_without_close(router: Any) -> None:
    code = HOST.format(then="sys.exit(0)").replace(
        "factory = SidecarSocketFactory()", "factory = SidecarSocketFactory(); sys.factory = factory"
    )
    with python(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as host:
        out, _ = host.communicate(timeout=DEADLINE_S)
    assert host.returncode == 0
    until(lambda: not is_there(int(out)))


def test_close_at_once_leaves_nothing_and_is_quick() -> None:
    before = time.monotonic()
    for _ in range(3):
        factory = SidecarSocketFactory()
        factory.close()
        factory.close()
        assert not alive(factory.pid)
    assert time.monotonic() - before < 4
    with pytest.raises(Closed):
        factory.dealer("tcp://127.0.0.1:1")


def test_ctrl_c_and_closed_lines(factory: Any, router: Any) -> None:
    dealer, peer = met(factory, router)
    os.kill(factory.pid, signal.SIGINT)
    assert router.send([peer, b"still"])
    assert receive_line(factory, dealer) == [b"still"]
    dealer.close()
    with pytest.raises(Closed):
        dealer.recv()
    assert os.getsid(factory.pid) == factory.pid


def test_only_its_thread_may_use_it(factory: Any, router: Any) -> None:
    dealer, _ = met(factory, router)
    caught = []

    def use() -> None:
        for call in (dealer.recv, lambda: dealer.send([b""]), dealer.close, factory.close):
            with pytest.raises(TransportError, match="another thread"):
                call()
            caught.append(call)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(caught) == 4


def test_what_cannot_be_dialled_is_an_error(factory: Any) -> None:
    for address in ("inproc://x", "tcp://*:1", "tcp://127.0.0.1:0"):
        with pytest.raises(TransportError, match="cannot connect to"):
            factory.dealer(address)
    with pytest.raises(TransportError, match="Z85"):
        factory.dealer("tcp://127.0.0.1:1", keys=("a", "b", "c"))
    with factory.dealer("tcp://127.0.0.1:1", keys=("\0" * 40,) * 3) as bad, factory.poller() as poller:
        poller.register(bad)
        assert poller.poll(DEADLINE_S) == {bad}
        with pytest.raises(TransportError, match="CURVE"):
            bad.recv()
    with factory.sub("tcp://127.0.0.1:1") as sub, pytest.raises(TransportError, match="sub"):
        sub.send([b"x"])


@pytest.mark.skipif(not zmq.has("curve"), reason="this libzmq has no CURVE")
@NETWORKS
def test_curve(make: Any) -> None:
    (learner_public, learner_secret), (public, secret) = zmq.curve_keypair(), zmq.curve_keypair()

    def serve(raw: Any) -> None:
        raw.curve_server = True
        raw.curve_secretkey = learner_secret

    with Socket.router("tcp://127.0.0.1:0", secure=serve) as router, make() as network:
        keys = tuple(key.decode() for key in (public, secret, learner_public))
        with network.dealer(router.bound, keys=keys) as dealer:
            assert dealer.send([b"in private"])
            assert receive(router)[1] == b"in private"


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_framing_survives_any_cut(step: int) -> None:
    class Cut:
        """A socketpair that reads and writes a few bytes at a time."""

        def __init__(self) -> None:
            self.data = bytearray()

        def sendmsg(self, chunks: Any, *_: Any) -> Any:
            piece = b"".join(map(bytes, chunks))[:step]
            self.data += piece
            return len(piece)

        def recv_into(self, view: Any) -> Any:
            if not self.data:
                raise BlockingIOError
            size = min(step, len(view), len(self.data))
            view[:size] = self.data[:size]
            del self.data[:size]
            return size

    large = 70_000 if step < 100 else 3_000_000
    messages = [[], [b""], [b"a", bytes(large), b"b"], [bytes(65_536)], [b"x"] * 1024, [b"y" * 65_535] * 3]
    cut: Any = Cut()
    pipe = SidecarPipe(cut)
    for number, frames in enumerate(messages):
        pipe.put(SidecarCommandKind.MESSAGE, number, frames)
    pipe.flush()
    assert not pipe.unsent_bytes
    got = []
    while (said := pipe.read()) is not None:
        got += said
    assert [(s.kind, s.line, s.frames) for s in got] == [(SidecarCommandKind.MESSAGE, n, f) for n, f in enumerate(messages)]


def test_a_host_without_standard_streams(router: Any) -> None:
    code = """
        import os, sys
        address = sys.argv[1]
        for fd in (0, 1, 2):
            os.close(fd)
        from rl4sys_zmq.transports.sidecar import SidecarSocketFactory
        with SidecarSocketFactory() as factory, factory.dealer(address) as dealer, factory.poller() as poller:
            dealer.send([b"hello"])
            poller.register(dealer)
            os._exit(0 if poller.poll(20) else 1)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), router.bound.uri]) as host:
        router.send([receive(router)[0], b"answer"])
        assert host.wait(DEADLINE_S) == 0


def test_plain_sockets_do_not_mix_with_lines(factory: Any, router: Any) -> None:
    with factory.poller() as poller:
        with pytest.raises(TransportError, match="same sidecar"):
            poller.register(router)
        read_fd, write_fd = os.pipe()
        poller.register(read_fd)
        os.close(write_fd)
        assert poller.poll(DEADLINE_S) == {read_fd}
        os.close(read_fd)
        with pytest.raises(TransportError, match="closing"):
            poller.poll(DEADLINE_S)
    assert select.poll().poll(0) == []
