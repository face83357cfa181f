"""Tests of authentication and topic grants with real sockets and keys: accepted and refused peers, events and messages."""

import socket as plain
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kit import until

from rl4sys_zmq.errors import ConfigError, TransportError, WorkerDied
from rl4sys_zmq.security import zap
from rl4sys_zmq.security.keys import UserKeys, curve_client, curve_server, new_key_pair
from rl4sys_zmq.security.zap import Denial, register_domain
from rl4sys_zmq.testing import TransportUnderTest
from rl4sys_zmq.transports import MonitorEvent, Poller, SendResult, Socket, explain, read_subscription

PATIENCE_S = 10.0


def receive(socket: Any, timeout_s: Any = PATIENCE_S) -> Any:
    deadline = time.monotonic() + timeout_s
    with Poller() as poller:
        poller.register(socket)
        while (message := socket.recv()) is None and time.monotonic() < deadline:
            poller.poll(0.05)
    return message


class House:
    """The keys of a learner, a check of users against a list, and sockets that are closed at the end."""

    def __init__(self, stack: Any) -> None:
        self.stack = stack
        self.keys = new_key_pair()
        self.users: dict[str, Any] = {}
        self.domain = stack.enter_context(register_domain("data", self.check))

    def check(self, shown: Any) -> Any:
        assert len(shown) == 40
        answer = self.users.get(shown, Denial("unlisted"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def secure(self) -> Any:
        return curve_server(self.keys, "data")

    def router(self, address: str = "tcp://127.0.0.1:0", **more: Any) -> Any:
        return self.stack.enter_context(Socket.router(address, secure=self.secure(), **more))

    def actor(self, answer: Any = None) -> Any:
        own = new_key_pair()
        if answer is not None:
            self.users[own.public] = answer
        return UserKeys(own, self.keys.public)

    def dealer(self, router: Any, keys: Any, **more: Any) -> Any:
        secure = None if keys is None else curve_client(keys)
        return self.stack.enter_context(Socket.dealer(router.bound, secure=secure, **more))


@pytest.fixture
def house() -> Iterator[Any]:
    with ExitStack() as stack:
        yield House(stack)


def failure(socket: Any) -> Any:
    found: list[Any] = []

    def look() -> Any:
        found.extend(event for event in socket.events() if event.is_failure)
        return found

    return until(look, "a failure")[0]


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_each_message_names_its_user(house: Any, scheme: str) -> None:
    router = house.router("tcp://127.0.0.1:0" if scheme == "tcp" else "ipc://*")
    assert router.authenticated and router.user == ""
    dealers = {name: house.dealer(router, house.actor(name)) for name in ("arm", "leg-é", "x" * 255)}
    for number in range(9):
        name = list(dealers)[number % 3]
        assert dealers[name].send([b"from", name.encode()])
        _, _, body = receive(router)
        assert router.user == name == bytes(body).decode()
    assert house.domain.counters.snapshot() == {"accepted": 3}


def test_inproc_and_insecure_sockets_name_nobody(house: Any) -> None:
    inproc = house.router("inproc://*")
    local = house.stack.enter_context(Socket.router("tcp://127.0.0.1:0"))
    for router, keys in ((inproc, house.actor("arm")), (local, None)):
        dealer = house.dealer(router, keys)
        assert dealer.send([b"x"])
        assert receive(router)[1] == b"x"
        assert not router.authenticated and router.user == ""


CASES = {
    # the connecting peer: the event at the learner, the event at the actor, the actor's explanation, the counter
    "wrong server key": (
        ("handshake_failed.protocol", 0x11000001),
        ("handshake_failed.no_detail", 32),
        "copy learner.public",
        None,
    ),
    "unlisted": (("handshake_failed.auth", 400), ("handshake_failed.auth", 400), "does not accept our key", "denied.unlisted"),
    "expired": (("handshake_failed.auth", 400), ("handshake_failed.auth", 400), "does not accept our key", "denied.expired"),
    "raises": (("handshake_failed.auth", 500), ("handshake_failed.auth", 500), "could not check our key", "denied.error"),
    "bad id": (("handshake_failed.auth", 500), ("handshake_failed.auth", 500), "could not check our key", "denied.error"),
    "empty id": (("handshake_failed.auth", 500), ("handshake_failed.auth", 500), "could not check our key", "denied.error"),
    "bad reason": (("handshake_failed.auth", 500), ("handshake_failed.auth", 500), "could not check our key", "denied.error"),
    "no keys": (
        ("handshake_failed.protocol", 0x11000002),
        ("handshake_failed.protocol", 0x11000002),
        "keys and the other does not",
        None,
    ),
}
ANSWERS = {
    "expired": Denial("expired"),
    "raises": RuntimeError("a check that fails"),
    "bad id": "x" * 256,
    "empty id": "",
    "bad reason": Denial("Not A Name"),
}


@pytest.mark.parametrize("case", CASES)
def test_who_does_not_get_in_is_counted_and_told(house: Any, case: Any) -> None:
    router = house.router(watch=True)
    good = house.dealer(router, house.actor("good"))
    assert good.send([b"before"]) and receive(router)[1] == b"before"
    router.events()
    if case == "no keys":
        keys = None
    elif case == "wrong server key":
        keys = UserKeys(house.actor("arm").own, new_key_pair().public)
    else:
        keys = house.actor(ANSWERS.get(case))
    bad = house.dealer(router, keys, watch=True)
    bad.send([b"let me in"])
    seen_here, seen_there, says, counter = CASES[case]
    there, here = failure(bad), failure(router)
    assert (here.name, here.detail) == seen_here and (there.name, there.detail) == seen_there
    assert says in explain(there, "actor") and explain(here, "learner")
    assert house.domain.counters.under("denied") == ({} if counter is None else {counter.removeprefix("denied."): 1})
    assert good.send([b"after"])
    assert receive(router)[1] == b"after" and router.user == "good"
    if there.is_final:
        until(lambda: bad.send([b"x"]) is SendResult.FULL, "libzmq giving up")
    assert router.recv() is None and house.domain.alive


def test_good_connections_have_their_events(house: Any) -> None:
    router = house.router(watch=True)
    dealer = house.dealer(router, house.actor("arm"), watch=True)
    assert dealer.send([b"x"]) and receive(router)
    for socket, side, names in ((router, "learner", ["accepted"]), (dealer, "actor", ["connected"])):
        got = []
        until(lambda: got.extend(socket.events()) or len(got) >= 2, "two events")  # type: ignore[func-returns-value, redundant-expr]  # noqa: B023
        assert [event.name for event in got] == [*names, "handshake_succeeded"]
        assert all(explain(event, side) and not event.is_failure for event in got)
    dealer.close()
    until(lambda: [e.name for e in router.events()] == ["disconnected"])


@pytest.mark.parametrize(
    ("name", "detail", "actor", "learner"),
    [
        ("handshake_failed.no_detail", 32, "copy learner.public", "closed the connection"),
        ("handshake_failed.no_detail", 14, "closed the connection", "no key check is running"),
        ("handshake_failed.no_detail", 11, "in time", "in time"),
        ("handshake_failed.protocol", 0x11000001, "copy learner.public", "another learner's public key"),
        ("handshake_failed.protocol", 0x10000000, "does not speak our protocol", "does not speak our protocol"),
        ("accept_failed", 24, "ulimit -n", "ulimit -n"),
        ("accept_failed", 103, "ECONNABORTED", "ECONNABORTED"),
        ("something new", 0, "something new", "something new"),
    ],
)
def test_events_in_words(name: str, detail: int, actor: str, learner: str) -> None:
    event = MonitorEvent(name, detail)
    assert actor in explain(event, "actor") and learner in explain(event, "learner")


def test_without_a_handler_the_learner_knows_why(house: Any) -> None:
    house.domain.close()
    router = house.router(watch=True)
    bad = house.dealer(router, house.actor("arm"), watch=True)
    bad.send([b"x"])
    assert failure(router).detail == 14
    assert failure(bad).name == "handshake_failed.no_detail"  # the detail is 32, or 11 after the actor's own timeout


def test_only_a_watched_socket_has_events(house: Any) -> None:
    with pytest.raises(TransportError, match="watch=True"):
        house.router().events()


def test_a_flood_of_events_is_bounded_and_stalls_nobody(house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.transports.monitor.PAUSE_S", 0.05)
    router = house.router(watch=True)
    good = house.dealer(router, house.actor("good"))
    for _ in range(1500):
        plain.create_connection(("127.0.0.1", router.bound.port)).close()
    assert good.send([b"x"]) and receive(router)[1] == b"x"
    got = router.events(limit=100)
    assert len(got) == 101 and got[-1].name == "lost" and "flood" in explain(got[-1], "learner")
    assert router.events() == []
    until(lambda: house.dealer(router, house.actor("good")).send([b"y"]) and any(e.name == "accepted" for e in router.events()))


def test_no_descriptors_left_is_one_event_and_passes() -> None:
    """A separate process runs out of descriptors."""
    code = """
        import resource, socket, threading, time
        from rl4sys_zmq.transports import Poller, Socket, explain
        with Socket.router("tcp://127.0.0.1:0", watch=True) as router, Socket.dealer(router.bound) as good, Poller() as poller:
            poller.register(router)
            good.send([b"x"])
            assert poller.poll(10)
            router.recv()
            resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
            held = []
            try:
                while True:
                    held.append(socket.socket())
            except OSError:
                held.pop().close()
            for one in held[:4]:
                one.connect(("127.0.0.1", router.bound.port))
            seen, deadline = [], time.monotonic() + 1.5
            while time.monotonic() < deadline:
                seen += router.events()
                threading.Event().wait(0.01)
            failed = [e for e in seen if e.name == "accept_failed"]
            assert 1 <= len(failed) <= 3, len(failed)
            assert "ulimit -n" in explain(failed[0], "learner")
            good.send([b"y"])
            assert poller.poll(10)
            for one in held:
                one.close()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_dead_handler_lets_nobody_in_and_hangs_nothing(
    house: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    router = house.router()
    listed = house.actor("arm")
    first = house.dealer(router, listed)
    assert first.send([b"x"]) and receive(router)[1] == b"x"
    monkeypatch.setattr(zap._ZapThread, "_serve", lambda self, router: 1 / 0)
    late = house.dealer(router, listed, watch=True)
    late.send([b"let me in"])
    until(lambda: not house.domain.alive, "the death of the handler")
    with pytest.raises(WorkerDied):
        house.domain.raise_if_dead()
    assert router.recv() is None
    again = house.dealer(router, listed, watch=True)
    again.send([b"let me in"])
    event = failure(again)
    assert explain(event, "actor") and router.recv() is None
    assert first.send([b"y"]) and receive(router)[1] == b"y", "who was in stays in"
    monkeypatch.undo()
    with register_domain("other", lambda shown: "x") as other:
        assert other.alive and not house.domain.alive
        more = house.dealer(router, listed, watch=True)
        assert failure(more).name == "handshake_failed.auth", "a domain of a dead handler is denied by the next one"
    assert router.recv() is None


def test_a_closed_domain_lets_nobody_in(house: Any) -> None:
    router = house.router()
    house.domain.close()
    house.domain.close()
    assert not house.domain.alive and not [t for t in threading.enumerate() if t.name == "rl4sys-zap"]
    late = house.dealer(router, house.actor("arm"), watch=True)
    late.send([b"let me in"])
    failure(late)
    with register_domain("data", house.check):
        until(lambda: (late.send([b"x"]) and router.recv()) or None, "libzmq redialling")


def test_one_handler_for_all_domains(house: Any) -> None:
    with register_domain("weights", house.check) as weights:
        assert [t.name for t in threading.enumerate()].count("rl4sys-zap") == 1
        with pytest.raises(TransportError, match="already registered"):
            register_domain("weights", house.check)
        house.domain.close()
        assert weights.alive
    for name in ("", "x" * 256):
        with pytest.raises(ConfigError, match="not a ZAP domain"):
            register_domain(name, house.check)


def test_a_check_that_waits_does_not_hang_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zap, "_CLOSE_WAIT_S", 0.1)
    asked, answer = threading.Event(), threading.Event()

    def slow(shown: Any) -> str:
        asked.set()
        answer.wait(PATIENCE_S)
        return "arm"

    keys = new_key_pair()
    domain = register_domain("slow", slow)
    with Socket.router("tcp://127.0.0.1:0", secure=curve_server(keys, "slow")) as router:
        client = curve_client(UserKeys(new_key_pair(), keys.public))
        with Socket.dealer(router.bound, secure=client) as dealer:
            dealer.send([b"x"])
            assert asked.wait(PATIENCE_S)
            start = time.monotonic()
            domain.close()
            assert time.monotonic() - start < 1.0
            second = register_domain("other", lambda shown: "x")
            answer.set()
            second.close()
            assert router.recv() is None and domain.counters.get("accepted") == 0


def test_another_handler_in_this_context_is_an_error() -> None:
    with Socket.router("inproc://zeromq.zap.01"), pytest.raises(TransportError, match="cannot start the ZAP handler"):
        register_domain("data", lambda shown: "x")
    register_domain("data", lambda shown: "x").close()


def test_malformed_requests_and_other_mechanisms(house: Any) -> None:
    key = b"k" * 32
    head = [b"", b"1.0", b"7", b"data", b"127.0.0.1", b""]
    requests = {
        b"400": (
            [*head, b"NULL"],
            [*head, b"PLAIN", b"user", b"word"],
            [*head, b"CURVE", b"short"],
            [*head, b"CURVE"],
            [*head, b"CURVE", key, key],
        ),
        b"500": ([b"", b"1.0", b"7"], [b"", b"2.0", *head[2:], b"CURVE", key], [b"x", *head[1:], b"CURVE", key]),
    }
    with Socket.dealer("inproc://zeromq.zap.01") as asker:
        asker.send([b"\xff"] * 40)
        asker.send([b"x"])
        for status, messages in requests.items():
            for message in messages:
                asker.send(message)
                assert receive(asker)[3] == status
        asker.send([*head[:3], b"\xff", *head[4:], b"CURVE", key])
        assert receive(asker)[3] == b"400"
        asker.send([*head, b"CURVE", key])
        assert receive(asker)[1:4] == [b"1.0", b"7", b"400"]
    assert house.domain.counters.under("denied") == {"mechanism": 5, "unlisted": 1} and house.domain.alive


def test_a_socket_without_keys_in_our_domain_is_denied(house: Any) -> None:
    import zmq

    def null(raw: Any) -> None:
        raw.setsockopt(zmq.ZAP_DOMAIN, b"data")
        raw.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    router = house.stack.enter_context(Socket.router("tcp://127.0.0.1:0", secure=null))
    dealer = house.dealer(router, None, watch=True)
    dealer.send([b"x"])
    assert failure(dealer).name == "handshake_failed.auth"
    assert house.domain.counters.get("denied.mechanism") == 1 and router.recv() is None


def test_a_forked_child_makes_its_own_handler() -> None:
    code = """
        import os, sys
        from rl4sys_zmq.security.keys import UserKeys, curve_client, curve_server, new_key_pair
        from rl4sys_zmq.security.zap import register_domain
        from rl4sys_zmq.transports import *
        def serve(domain):
            keys, own = new_key_pair(), new_key_pair()
            with Socket.router("tcp://127.0.0.1:0", secure=curve_server(keys, "data")) as router, Poller() as poller:
                with Socket.dealer(router.bound, secure=curve_client(UserKeys(own, keys.public))) as dealer:
                    poller.register(router)
                    dealer.send([b"x"])
                    assert poller.poll(10)
                    router.recv()
                    assert router.user == "arm" and domain.counters.get("accepted") >= 1
        domain = register_domain("data", lambda shown: "arm")
        serve(domain)
        child = os.fork()
        if child == 0:
            domain.close()
            with register_domain("data", lambda shown: "arm") as own:
                serve(own)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        serve(domain)
        domain.close()
    """
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)]  # 3.12 warns of such forks
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_a_revoked_key_is_cut_off_and_stays_out(house: Any, scheme: str) -> None:
    router = house.router("tcp://127.0.0.1:0" if scheme == "tcp" else "ipc://*")
    assert router.cut_off() is False
    good, bad = house.dealer(router, house.actor("good")), house.dealer(router, keys := house.actor("bad"), watch=True)
    assert good.send([b"x"]) and receive(router)
    assert bad.send([b"x"]) and receive(router) and router.user == "bad"
    del house.users[keys.own.public]
    assert router.cut_off() is True
    assert failure(bad).name == "handshake_failed.auth"
    assert house.domain.counters.get("denied.unlisted") == 1
    assert good.send([b"y"]) and receive(router)[1] == b"y" and router.user == "good"


def notice(publisher: Any) -> Any:
    return read_subscription(receive(publisher))


def test_only_granted_topics_are_heard(transport: TransportUnderTest) -> None:
    with (
        Socket.xpub(transport.address(), hwm=100, grants=True) as publisher,
        Socket.sub(publisher.bound) as one,
        Socket.sub(publisher.bound) as two,
    ):
        one.subscribe(b"w1")
        assert notice(publisher) == (True, b"w1")
        with pytest.raises(TransportError, match="last subscription message"):
            publisher.grant(b"w2")
        publisher.grant(b"w1")
        with pytest.raises(TransportError, match="once"):
            publisher.grant(b"w1")
        two.subscribe(b"w")
        assert notice(publisher) == (True, b"w")  # the test grants nothing
        two.subscribe(b"w1x")
        assert notice(publisher) == (True, b"w1x")
        publisher.grant(b"w1x")
        for topic in (b"w1", b"w1x", b"w2"):
            assert publisher.send([topic, b"body"])
        assert [receive(one)[0] for _ in range(2)] == [b"w1", b"w1x"] and receive(two)[0] == b"w1x"
        two.unsubscribe(b"w1x")
        assert notice(publisher) == (False, b"w1x")
        publisher.send([b"w1x", b"again"])
        assert receive(one)[1] == b"again" and two.recv() is None
        one.close()
        assert notice(publisher) == (False, b"w1")
        with Socket.sub(publisher.bound) as late:
            late.subscribe(b"w1")
            assert notice(publisher) == (True, b"w1")
            publisher.grant(b"w1")
            publisher.send([b"w1", b"for the late"])
            assert receive(late)[1] == b"for the late"


def test_a_restarted_publisher_is_asked_again() -> None:
    publisher = Socket.xpub("tcp://127.0.0.1:0", grants=True)
    address = publisher.bound
    with Socket.sub(address) as sub:
        sub.subscribe(b"w")
        assert notice(publisher) == (True, b"w")
        publisher.close()
        with Socket.xpub(address, grants=True) as publisher:
            # A SUB socket sends its subscription again only while its own thread uses it.
            assert until(lambda: (sub.recv(), publisher.recv())[1]) == [b"\x01w"]
            publisher.grant(b"w")
            publisher.send([b"w", b"x"])
            assert receive(sub) == [b"w", b"x"]


def test_a_grant_to_somebody_who_has_gone_goes_to_nobody() -> None:
    with Socket.xpub("tcp://127.0.0.1:0", grants=True) as publisher, Socket.sub(publisher.bound) as other:
        other.subscribe(b"other")
        assert notice(publisher) == (True, b"other")
        with Socket.sub(publisher.bound) as gone:
            gone.subscribe(b"w")
            assert notice(publisher) == (True, b"w")
        publisher.grant(b"w")
        assert notice(publisher) == (False, b"w")
        publisher.send([b"w", b"x"])
        assert other.recv() is None


def test_grants_are_for_an_xpub_that_was_made_so(house: Any) -> None:
    with Socket.xpub("inproc://*") as publisher, pytest.raises(TransportError, match="grants=True"):
        publisher.grant(b"w")


def test_notices_name_their_user(house: Any) -> None:
    publisher = house.stack.enter_context(Socket.xpub("tcp://127.0.0.1:0", secure=house.secure(), grants=True))
    subs = {}
    for name in ("arm", "leg"):
        subs[name] = house.stack.enter_context(Socket.sub(publisher.bound, secure=curve_client(house.actor(name))))
        subs[name].subscribe(name.encode())
        assert notice(publisher) == (True, name.encode()) and publisher.user == name
    subs["arm"].unsubscribe(b"arm")
    assert notice(publisher) == (False, b"arm") and publisher.user == "arm"
    subs["leg"].close()
    assert notice(publisher) == (False, b"leg") and publisher.user == "", "libzmq wrote this one"
