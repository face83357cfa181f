"""A test function for transports, which checks that sockets behave as this package requires; and unused addresses for tests."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from rl4sys_zmq.errors import AddressInUse, Closed, TransportError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.testing.check_policy import require_refusal
from rl4sys_zmq.transports import (
    LARGE_FRAME_BYTES,
    Address,
    Frame,
    Frames,
    Poller,
    SendResult,
    Socket,
    make_socket_folder,
    open_sockets,
    read_subscription,
)

Make = Callable[[], str]
Via = Callable[[str], str]
_BODY = bytes(range(256)) * 256  # 64 KiB
_PATIENCE_S = 20.0
_PROMPT_S = 2.0  # a call that takes longer has blocked, even on a busy machine
_MANY_SENDS = 20_000


def fresh_address(scheme: str, folder: str | Path) -> str:
    """Return an address that a test can bind: tcp port 0, for which the system picks a free port, or a unique name.

    Args:
        scheme: ``tcp``, ``ipc`` or ``inproc``.
        folder: Folder of an ipc socket. The whole path is limited to 107 bytes, which pytest's ``tmp_path`` can exceed.

    Raises:
        TransportError: If the scheme is unknown or the path is too long.
    """
    if scheme == "tcp":
        return "tcp://127.0.0.1:0"
    name = uuid.uuid4().hex[:12]
    return Address.parse(f"ipc://{folder}/{name}" if scheme == "ipc" else f"{scheme}://test-{name}").uri


class TransportUnderTest(Resource):
    """A source of unused addresses of one transport. It is the value of the pytest fixture `transport`.

    Attributes:
        scheme: ``tcp``, ``ipc`` or ``inproc``.
    """

    def __init__(self, scheme: str) -> None:
        if scheme not in ("tcp", "ipc", "inproc"):
            raise TransportError(f"unknown transport {scheme!r}; use tcp, ipc or inproc")
        self.scheme = scheme
        self._folder = make_socket_folder() if scheme == "ipc" else ""

    def address(self) -> str:
        """Return an unused address to bind. After binding, `Socket.bound` is the address to connect to."""
        return fresh_address(self.scheme, self._folder)

    def close(self) -> None:
        """Remove the folder of the ipc sockets."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def __repr__(self) -> str:
        return f"<transport {self.scheme}>"


def check_transport(make: Make, *, via: Via = str) -> None:
    """Check that sockets at addresses from `make` behave as this package requires, by all functions in `CHECKS`.

    Args:
        make: Function that returns an unused address to bind at each call, for example ``lambda: "tcp://127.0.0.1:0"``.
        via: Function that converts the bound address to the address to connect to, for example to the address of a
            `ChaosProxy`.

    Raises:
        AssertionError: If a check fails. The message has the name of the check and the actual result.
    """
    for name, check in CHECKS.items():
        before = open_sockets()
        try:
            check(make, via)
        except AssertionError as exc:
            raise AssertionError(f"{make()} breaks the transport contract, clause {name!r}: {exc}") from exc
        assert open_sockets() == before, f"{make()} breaks the transport contract: clause {name!r} left sockets open"


def frames_arrive_exactly(make: Make, via: Via) -> None:
    """Check that empty, large and many frames arrive unchanged, from DEALER to ROUTER and back."""
    messages: list[list[Frame]] = [
        [b""],
        [b"", b"", b""],
        [b"a", b"", b"\0" * 7],
        [b"x" * (LARGE_FRAME_BYTES - 1), b"y" * LARGE_FRAME_BYTES],
        [_BODY * 16, b"after a megabyte"],
        [memoryview(_BODY)[3:99], b"a view"],
        [bytes([i]) for i in range(31)],
    ]
    with ExitStack() as stack:
        router, dealer = _router_and_dealer(stack, make, via)
        for message in messages:
            _send(dealer, message)
            peer, *body = _recv(router)
            _same(body, message)
            _send(router, [peer, *body])
            _same(_recv(dealer), message)
        for frame in body:
            assert isinstance(frame, bytes) or frame.readonly, "a received frame is writable"


def order_is_kept(make: Make, via: Via) -> None:
    """Check that messages between two sockets arrive in order and unchanged, even if the sender reuses its buffer."""
    with ExitStack() as stack:
        router, dealer = _router_and_dealer(stack, make, via)
        sent = 0
        received: list[int] = []
        while len(received) < 500:
            buffer = bytearray(sent.to_bytes(4, "little") + _BODY)
            if sent < 500 and dealer.send([memoryview(buffer)]):
                buffer[:4] = b"\xff\xff\xff\xff"
                sent += 1
            else:
                _wait(router)
            while (message := router.recv()) is not None:
                received.append(int.from_bytes(message[1][:4], "little"))
        assert received == list(range(500)), f"the order was {received[:20]}..."


def router_answers_the_right_peer(make: Make, via: Via) -> None:
    """Check that each of three DEALER sockets gets its own reply and no other."""
    with ExitStack() as stack:
        router = stack.enter_context(Socket.router(make()))
        dealers = [stack.enter_context(Socket.dealer(via(router.bound.uri))) for _ in range(3)]
        for number, dealer in enumerate(dealers):
            _send(dealer, [b"I am", bytes([number])])
        letters = [_recv(router) for _ in dealers]
        assert len({bytes(letter[0]) for letter in letters}) == 3, "two dealers have one routing id"
        for peer, _, name in letters:
            _send(router, [peer, b"you are", name])
        for number, dealer in enumerate(dealers):
            _same(_recv(dealer), [b"you are", bytes([number])])
            assert dealer.recv() is None, "a dealer received another dealer's answer"


def unknown_peers_are_gone(make: Make, via: Via) -> None:
    """Check that a send by a ROUTER socket returns GONE for a peer that never existed, and for one that has closed."""
    with ExitStack() as stack:
        router, dealer = _router_and_dealer(stack, make, via)
        assert router.send([b"nobody", b""]) is SendResult.GONE, "a send to an unknown peer was not GONE"
        _send(dealer, [b"hello"])
        peer, _ = _recv(router)
        dealer.close()
        _eventually(lambda: router.send([peer, b"still there?"]) is SendResult.GONE, "a peer that has closed never became GONE")


def a_full_queue_never_blocks(make: Make, via: Via) -> None:
    """Check that sends return FULL at once if the peer does not read, and that each message sent with OK arrives later."""
    with ExitStack() as stack:
        router = stack.enter_context(Socket.router(make(), send_hwm=2))
        dealer = stack.enter_context(Socket.dealer(via(router.bound.uri), recv_hwm=2))
        _send(dealer, [b"hello"])
        peer, _ = _recv(router)
        queued = _fill(lambda n: router.send([peer, n.to_bytes(4, "little"), _BODY]))
        numbers = [int.from_bytes(bytes(_recv(dealer)[0]), "little") for _ in range(queued)]
        assert numbers == list(range(queued)), f"of {queued} messages that were OK these arrived: {numbers[:20]}..."
        _eventually(lambda: router.send([peer, b"again"]) is SendResult.OK, "a send stayed FULL after the queue was emptied")
        _same(_recv(dealer), [b"again"])


def nothing_to_receive_is_none(make: Make, via: Via) -> None:
    """Check that `recv` returns None at once if no message is waiting, and that a poll ends at its timeout."""
    with ExitStack() as stack:
        router, dealer = _router_and_dealer(stack, make, via)
        start = time.monotonic()
        assert router.recv() is None and dealer.recv() is None, "a message arrived that was not sent"
        with Poller() as poller:
            poller.register(router)
            assert poller.poll(0.01) == set(), "a socket without messages was ready"
        assert time.monotonic() - start < _PROMPT_S, "a poll exceeded its timeout"


def subscribers_get_their_prefixes(make: Make, via: Via) -> None:
    """Check that a publisher sees subscriptions begin and end, and that subscribers get only messages with their prefixes."""
    with ExitStack() as stack:
        publisher = stack.enter_context(Socket.xpub(make(), hwm=100))
        address = via(publisher.bound.uri)
        one, two = (stack.enter_context(Socket.sub(address)) for _ in range(2))
        one.subscribe(b"w1")
        two.subscribe(b"w1")
        two.subscribe(b"w2")
        notices = sorted(_notice(publisher) for _ in range(3))
        assert notices == [(True, b"w1"), (True, b"w1"), (True, b"w2")], f"the publisher saw {notices}"
        for topic in (b"w", b"w1", b"w2x", b"w1y", b"z"):
            assert publisher.send([topic, b"body"]), "a publisher was FULL"
        assert [bytes(_recv(one)[0]) for _ in range(2)] == [b"w1", b"w1y"]
        assert [bytes(_recv(two)[0]) for _ in range(3)] == [b"w1", b"w2x", b"w1y"]
        two.unsubscribe(b"w2")
        assert _notice(publisher) == (False, b"w2"), "the publisher did not see an unsubscription"
        one.close()
        assert _notice(publisher) == (False, b"w1"), "the publisher did not see the end of a subscriber"


def a_stuck_subscriber_harms_only_itself(make: Make, via: Via) -> None:
    """Check that a subscriber that does not read loses only its own messages and never blocks the publisher."""
    with ExitStack() as stack:
        publisher = stack.enter_context(Socket.xpub(make(), hwm=4))
        address = via(publisher.bound.uri)
        stuck = stack.enter_context(Socket.sub(address, hwm=1))
        healthy = stack.enter_context(Socket.sub(address, hwm=100))
        for subscriber in (stuck, healthy):
            subscriber.subscribe(b"")
            _notice(publisher)
        for number in range(400):
            start = time.monotonic()
            assert publisher.send([b"", number.to_bytes(4, "little"), _BODY]), "a publisher was FULL"
            assert time.monotonic() - start < _PROMPT_S, "a stuck subscriber blocked the publisher"
            got = int.from_bytes(bytes(_recv(healthy)[1]), "little")
            assert got == number, f"the healthy subscriber got {got} instead of {number}"


def pipelines_flow(make: Make, via: Via) -> None:
    """Check that PUSH and PULL work whichever side binds, and that a PUSH send without a peer returns FULL."""
    with ExitStack() as stack:
        push = stack.enter_context(Socket.push(bind=make()))
        assert push.send([b"x"]) is SendResult.FULL, "a push without a peer accepted a message"
        pull = stack.enter_context(Socket.pull(connect=via(push.bound.uri)))
        sink = stack.enter_context(Socket.pull(bind=make()))
        source = stack.enter_context(Socket.push(connect=via(sink.bound.uri)))
        for sender, receiver in ((push, pull), (source, sink)):
            for number in range(20):
                assert sender.send_wait([bytes([number]), b""], _PATIENCE_S), "a push stayed FULL"
            for number in range(20):
                _same(_recv(receiver), [bytes([number]), b""])


def an_address_is_bound_once(make: Make, via: Via) -> None:
    """Check that a second bind of an address fails without harm to the first, and that `close` frees the address at once."""
    with ExitStack() as stack:
        router, dealer = _router_and_dealer(stack, make, via)
        require_refusal(AddressInUse, lambda: Socket.router(router.bound).close(), f"{router.bound} was bound twice")
        _send(dealer, [b"are you there?"])
        _recv(router)
        router.close()
        stack.enter_context(Socket.router(router.address))


def dialling_before_binding_works(make: Make, via: Via) -> None:
    """Check that a message to an address that is not bound yet arrives after it is bound."""
    with ExitStack() as stack:
        with Socket.router(make()) as early:
            address = early.bound
        dealer = stack.enter_context(Socket.dealer(via(address.uri)))
        assert dealer.send([b"early"]), "a dealer without a peer did not accept a message"
        router = stack.enter_context(Socket.router(address))
        _same(_recv(router)[1:], [b"early"])


def closing_is_final_and_repeatable(make: Make, via: Via) -> None:
    """Check that `close` can be repeated and does not wait for queued messages. Other calls then raise Closed."""
    with ExitStack() as stack:
        router, dealer = _router_and_dealer(stack, make, via)
        for _ in range(10):
            dealer.send([_BODY])
        for socket in (dealer, router):
            start = time.monotonic()
            socket.close()
            socket.close()
            assert time.monotonic() - start < _PROMPT_S, "close waited"
            require_refusal(Closed, socket.recv, "recv on a closed socket did not raise Closed")
        require_refusal(Closed, lambda: dealer.send([b"a"]), "send on a closed socket did not raise Closed")


def other_threads_are_refused(make: Make, via: Via) -> None:
    """Check that `send`, `recv` and `close` raise, and do no harm, in a thread that did not create the socket."""
    with ExitStack() as stack:
        router, dealer = _router_and_dealer(stack, make, via)
        problems: list[AssertionError] = []
        calls: dict[str, Callable[[], object]] = {
            "send": lambda: dealer.send([b"x"]),
            "recv": dealer.recv,
            "close": dealer.close,
        }

        def intrude() -> None:
            try:
                for name, call in calls.items():
                    require_refusal(TransportError, call, f"{name} from another thread did not raise TransportError")
            except AssertionError as exc:
                problems.append(exc)

        thread = threading.Thread(target=intrude, name="rl4sys-intruder")
        thread.start()
        thread.join()
        for problem in problems:
            raise problem
        _send(dealer, [b"unharmed"])
        _recv(router)


CHECKS: dict[str, Callable[[Make, Via], None]] = {
    check.__name__: check
    for check in (
        frames_arrive_exactly,
        order_is_kept,
        router_answers_the_right_peer,
        unknown_peers_are_gone,
        a_full_queue_never_blocks,
        nothing_to_receive_is_none,
        subscribers_get_their_prefixes,
        a_stuck_subscriber_harms_only_itself,
        pipelines_flow,
        an_address_is_bound_once,
        dialling_before_binding_works,
        closing_is_final_and_repeatable,
        other_threads_are_refused,
    )
}
"""The functions that `check_transport` calls, by name. Each takes the arguments `make` and `via` of `check_transport`."""


def _router_and_dealer(stack: ExitStack, make: Make, via: Via) -> tuple[Socket, Socket]:
    router = stack.enter_context(Socket.router(make()))
    return router, stack.enter_context(Socket.dealer(via(router.bound.uri)))


def _wait(socket: Socket) -> None:
    with Poller() as poller:
        poller.register(socket)
        poller.poll(0.05)


def _recv(socket: Socket) -> list[Frame]:
    deadline = time.monotonic() + _PATIENCE_S
    while (message := socket.recv()) is None:
        assert time.monotonic() < deadline, f"nothing arrived at {socket} within {_PATIENCE_S:g} s"
        _wait(socket)
    return message


def _send(socket: Socket, message: Frames) -> None:
    _eventually(lambda: socket.send(message) is SendResult.OK, f"sends from {socket} stayed FULL")


def _notice(publisher: Socket) -> tuple[bool, bytes]:
    frames = _recv(publisher)
    notice = read_subscription(frames)
    assert notice is not None, f"not a subscription message: {frames}"
    return notice


def _fill(send: Callable[[int], SendResult]) -> int:
    """Send numbered messages until the queue has been full for 0.1 s. Return the number of sends that returned OK."""
    queued, full_since = 0, None
    for _ in range(_MANY_SENDS):
        start = time.monotonic()
        sent = send(queued)
        now = time.monotonic()
        assert now - start < _PROMPT_S, "a send to a peer that does not read blocked"
        assert sent is not SendResult.GONE, "a send to a peer that does not read was GONE"
        if sent:
            queued, full_since = queued + 1, None
        elif full_since is None:
            full_since = now
        elif now - full_since > 0.1:  # the system's buffers are full too, not only slow
            return queued
        else:
            time.sleep(0.005)
    raise AssertionError(f"{queued} sends to a peer that does not read, and none was FULL")


def _eventually(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.002)


def _same(got: Sequence[Frame], expected: Sequence[Frame]) -> None:
    left, right = [bytes(f) for f in got], [bytes(f) for f in expected]
    assert left == right, f"sent frames of {[len(f) for f in right]} bytes, received {[len(f) for f in left]} bytes"
