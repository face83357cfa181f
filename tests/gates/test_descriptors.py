"""Descriptors run out in ten ways. Nothing ends, nothing is lost, and service is back when the cause ends."""

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from harness.keys import KeyRing
from kit import play, until

from . import zmtp
from .conftest import Child, Report, Spawn, Tier, descriptors, join

pytestmark = pytest.mark.timeout(300)

LIMIT = 256
BACK_S = 5.0

GREETED = zmtp.greeting()
HALF = GREETED[:11]


def ready(kind: bytes) -> bytes:
    return GREETED + zmtp.ready(kind)


WAYS: dict[str, tuple[tuple[int, ...], bytes]] = {
    "idle": ((0,), b""),
    "half a greeting": ((0,), HALF),
    "finished handshakes": ((0,), ready(b"DEALER")),
    "the port of weights": ((1,), ready(b"SUB")),
    "all ports": ((0, 1, 2), ready(b"REQ")),
    "sockets of a wrong type": ((0,), ready(b"PUB")),
    "with keys": ((0, 1), zmtp.greeting(mechanism=b"CURVE")),
    "a relay": ((3, 4), b""),
    "connections that come again": ((0,), ready(b"DEALER")),
    "files of the program": ((), b""),
}
"""Each way: the ports that are attacked, and what each connection sends."""
QUICK = ("finished handshakes", "with keys", "a relay", "files of the program")


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    """Let this process open more connections than the learner can."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Flood(threading.Thread):
    """Opens connections until it is stopped, and then closes them."""

    def __init__(self, addresses: list[str], says: bytes, *, again: bool) -> None:
        super().__init__()
        self._addresses, self._says, self._again = addresses, says, again
        self.opened = 0
        self._over = threading.Event()

    def run(self) -> None:
        """Open connections. Each goes on, or, with `again`, is closed when there are more than the learner can have."""
        with ExitStack() as stack:
            held: list[socket.socket] = []
            while not self._over.wait(0 if self._again or len(held) < 2 * LIMIT else 0.05):
                if len(held) >= 2 * LIMIT:
                    if not self._again:
                        continue
                    held.pop(0).close()
                with suppress(OSError):
                    connection = zmtp.dial(self._addresses[self.opened % len(self._addresses)])
                    held.append(stack.enter_context(connection))
                    self.opened += 1
                    connection.sendall(self._says)

    def stop(self) -> None:
        self._over.set()
        self.join()


def arrived(child: Child) -> int:
    status = child.ask("status")
    return sum(client["accepted"] for client in status["clients"].values())


@pytest.mark.parametrize("way", WAYS)
def test_descriptors_run_out_and_service_is_back(way: str, spawn: Spawn, tier: Tier, tmp_path: Path, report: Report) -> None:
    if not tier.long and way not in QUICK:
        pytest.skip("only in the long tier")
    (ports, says), pace = WAYS[way], threading.Event()
    ring = KeyRing(tmp_path / "keys") if way in ("with keys", "files of the program") else None
    if ring is not None:
        ring.allow("good")
        ring.write()
    options = {
        "run_dir": str(tmp_path / "run"),
        "keys": str(ring.folder) if ring else "",
        "relay": way == "a relay",
        "limit": LIMIT,
    }
    child = spawn("scarce", options)
    addresses = child.hear()
    keys = {"keys": ring.file("good")} if ring is not None else {}
    with ExitStack() as stack:
        agent = stack.enter_context(join(addresses[0], actor_id="early", overflow="wait", **keys))
        agent.wait_version(0, timeout_s=60.0)
        play(agent, 16)
        agent.flush(timeout_s=60.0)
        flood = Flood([addresses[port] for port in ports], says, again=way == "connections that come again") if ports else None
        if flood is not None:
            stack.callback(flood.stop)
            flood.start()
            until(lambda: flood.opened >= 2 * LIMIT, "the connections")
        else:
            assert child.ask("take") > 100
        for _ in range(100 if tier.long else 20):
            play(agent, 16)
            pace.wait(0.02)  # the exhaustion lasts
        if flood is not None:
            open_files = descriptors(child.pid)
            flood.stop()
        else:
            open_files = LIMIT
            child.ask("release")
        began = time.monotonic()
        agent.flush(timeout_s=60.0)
        late = (
            stack.enter_context(join(addresses[3 if way == "a relay" else 0], actor_id="late", **keys))
            if way != "a relay"
            else agent
        )
        late.wait_version(1, timeout_s=60.0)
        back_s = time.monotonic() - began
        play(late, 16)
        late.flush(timeout_s=60.0)
        status = child.ask("status")
        sent = [actor.stats()["submitted"] for actor in {agent, late}]
        assert sum(sent) == arrived(child)
        until(lambda: child.ask("status")["clients"]["lab"]["checkpoint"], "a checkpoint")
    counters = {**status["counters"], **status["relay"]}
    assert open_files <= LIMIT
    if flood is None:
        assert not counters.get("connections.shed")  # actors are not the cause
    elif says != ready(b"PUB"):  # libzmq closes these itself
        assert counters["connections.shed"] > 0
    report(
        way=way,
        opened=flood.opened if flood else LIMIT,
        shed=counters.get("connections.shed", 0),
        open=open_files,
        back_s=round(back_s, 2),
    )
    if tier.long:
        assert back_s < BACK_S
