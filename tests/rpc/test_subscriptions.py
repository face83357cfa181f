"""Subscribers after a server has returned at another address, and after a right was revoked."""

import queue
import time
from pathlib import Path
from typing import Any

import pytest
import zmq
from harness.keys import KeyRing
from kit import until

from rl4sys_zmq.errors import CallRefusalReason, CallRefused, CallTimeout
from rl4sys_zmq.rpc import Caller, Server
from rl4sys_zmq.transports import MAX_FRAMES

WAIT_S = 15.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send ten beacons a second, and treat half a second without a beacon as silence."""
    monkeypatch.setattr("rl4sys_zmq.rpc.server.BEACON_S", 0.1)
    monkeypatch.setattr("rl4sys_zmq.rpc.caller_thread.PUBLISHER_SILENCE_S", 0.5)
    monkeypatch.setattr("rl4sys_zmq.rpc.caller_thread.LATEST_RETRY_S", 0.4)
    monkeypatch.setattr("rl4sys_zmq.rpc.caller_thread.CLOSE_CHECK_S", 0.1)


def test_a_subscriber_finds_a_server_that_publishes_elsewhere(tmp_path: Path) -> None:
    got: queue.Queue[int] = queue.Queue()
    address = f"ipc://{tmp_path}/server"
    with Caller(address, timeout_s=WAIT_S) as client:
        with Server(address, name="first", pub="tcp://127.0.0.1:0") as first:
            first.start()
            client.subscribe("obs", lambda payload, number: got.put(payload))
            first.publish("obs", 1)
            assert got.get(timeout=WAIT_S) == 1
        with Server(address, name="second", pub="tcp://127.0.0.1:0") as second:
            second.start()
            assert second.publish("obs", 2) == 1  # a new start of the server begins a new numbering
            assert got.get(timeout=WAIT_S) == 2
            second.publish("obs", 3)
            assert got.get(timeout=WAIT_S) == 3


def test_a_message_with_too_many_frames_at_the_publisher_is_counted(tmp_path: Path) -> None:
    with Server(f"ipc://{tmp_path}/server", name="calm", pub=f"ipc://{tmp_path}/pub") as server:
        server.start()
        with zmq.Context() as foreign, foreign.socket(zmq.XSUB) as peer:
            peer.connect(server.pub_address)
            peer.send_multipart([b"x"] * (MAX_FRAMES + 1))
            until(lambda: server.counters.get("refused.frames"), "the refusal")
        server.raise_if_dead()


def test_beacons_come_while_long_jobs_change_the_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(f"ipc://{tmp_path}/server", name="busy", pub=f"ipc://{tmp_path}/pub") as server:
        beacons: list[Any] = []
        monkeypatch.setattr(server._publisher, "send_beacons", beacons.append)
        server.register("work", lambda payload: time.sleep(0.01))
        server.start()
        with Caller(server.address, timeout_s=WAIT_S) as client:
            until(
                lambda: client.call("work") or (len(beacons) >= 3 and server.counters.get("takeovers")), "beacons and takeovers"
            )


CALLER = ("call", "read_weights")


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return KeyRing(tmp_path / "keys")


def reload(ring: KeyRing, server: Server) -> None:
    """Write the list, and wait until the server has loaded it."""
    watcher: Any = server._authenticator.watcher  # type: ignore[union-attr]
    loads = watcher.loads
    ring.write()
    until(lambda: watcher.loads > loads, "the new list")


def test_a_quota_delays_calls(ring: KeyRing) -> None:
    ring.allow("busy", CALLER, ["*"], quota={"messages_per_s": 4})
    ring.write()
    with Server("tcp://127.0.0.1:0", name="keyed", keys=ring.folder) as keyed:
        keyed.register("echo", lambda payload: payload)
        keyed.start()
        with Caller(keyed.address, timeout_s=WAIT_S, keys=ring.file("busy")) as client:
            while not keyed.counters.get("refused.quota"):
                assert client.call("echo", 1) == 1
            assert client.call("echo", 2) == 2
            assert client.stats()["again"] >= 1


def test_a_key_that_is_taken_off_the_list_hears_no_more(ring: KeyRing) -> None:
    for name in ("stays", "goes"):
        ring.allow(name, CALLER, ["*"])
    ring.write()
    heard: dict[str, queue.Queue[int]] = {name: queue.Queue() for name in ring.peers}
    with Server("tcp://127.0.0.1:0", name="keyed", pub="tcp://127.0.0.1:0", keys=ring.folder) as keyed:
        keyed.start()
        keyed.publish("obs", 1)
        with (
            Caller(keyed.address, keys=ring.file("stays")) as stays,
            Caller(keyed.address, keys=ring.file("goes")) as goes,
        ):
            stays.subscribe("obs", lambda payload, number: heard["stays"].put(payload))
            goes.subscribe("obs", lambda payload, number: heard["goes"].put(payload))
            assert {held.get(timeout=WAIT_S) for held in heard.values()} == {1}
            del ring.peers["goes"]
            reload(ring, keyed)
            keyed.publish("obs", 2)
            assert heard["stays"].get(timeout=WAIT_S) == 2  # it sends a HELLO again, and gets the new channel
            until(lambda: keyed.counters.get("refused.forbidden"), "the other caller's next HELLO")
            keyed.publish("obs", 3)
            assert heard["stays"].get(timeout=WAIT_S) == 3
            assert heard["goes"].empty()
            with pytest.raises(CallTimeout):  # like a key that was never listed
                goes.call("$status", timeout_s=0.2)


def test_the_newest_publication_needs_the_right_to_subscribe(ring: KeyRing) -> None:
    ring.allow("reader", CALLER, ["*"])
    ring.write()
    with Server("tcp://127.0.0.1:0", name="keyed", pub="tcp://127.0.0.1:0", keys=ring.folder) as keyed:
        keyed.start()
        keyed.publish("obs", 1)
        with Caller(keyed.address, timeout_s=WAIT_S, keys=ring.file("reader")) as reader:
            assert reader.call("$latest", "obs")["payload"] == 1
            ring.allow("reader", ["call"], ["*"])
            reload(ring, keyed)
            with pytest.raises(CallRefused, match="the key of reader does not have the role read_weights") as caught:
                reader.call("$latest", "obs")
            assert caught.value.code is CallRefusalReason.FORBIDDEN
            refused, heard = keyed.counters.get("refused.forbidden"), queue.Queue[int]()
            reader.subscribe("obs", lambda payload, number: heard.put(payload))
            until(lambda: keyed.counters.get("refused.forbidden") >= refused + 2, "a request of the newest, and a subscription")
            assert reader.call("$status")["topics"] == {"obs": 1}
            assert heard.empty()
