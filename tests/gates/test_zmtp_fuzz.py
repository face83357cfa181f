"""Connections that break ZMTP in many ways, against a learner that serves a good client meanwhile."""

import contextlib
import random
import socket
import threading
import time
from collections import deque

import pytest
from kit import play, until
from wire.conftest import build
from wire.test_fuzz import Mutator

from rl4sys_zmq.delivery.credit import LATE_S
from rl4sys_zmq.wire import encode

from .conftest import (
    PATIENCE_S,
    SOAK,
    Child,
    Report,
    Spawn,
    StartLearner,
    Tier,
    agent_options,
    descriptors,
    drive,
    join,
    resident_kib,
)
from .siege import hello
from .zmtp import MORE, Fuzzer, Peer, command, dial, frame, greeting, hang_up, hear_ready, ready

HELD = 32
"""The most connections that are left half-open at a time."""

ACTORS = 16
GROWTH_KIB = 1024
ANSWER_S = 1.0 + LATE_S
"""The longest time for an answer. A stranger that joins gets a share of the credit, which others get after `LATE_S`."""


class Attack(threading.Thread):
    """A thread that opens connections one after another, each with its own bytes, and leaves some of them open."""

    def __init__(self, addresses: tuple[str, str], seed: int) -> None:
        super().__init__(name="attack")
        self._rng = random.Random(seed)
        self._addresses = addresses
        self._mutator = Mutator(seed, build())
        self._fuzzer = Fuzzer(self._rng, self._frames)
        self._hanging: deque[socket.socket] = deque()
        self._room = threading.Condition()
        self._allowed = 0
        self._over = False
        self.done = 0
        self.error: BaseException | None = None

    def allow(self, connections: int) -> None:
        with self._room:
            self._allowed = connections
            self._room.notify_all()

    def wait_for(self, connections: int) -> None:
        with self._room:
            assert self._room.wait_for(lambda: self.done >= connections or self.error, 5 * PATIENCE_S), self.done
        assert self.error is None, repr(self.error)

    def stop(self) -> None:
        with self._room:
            self._over = True
            self._room.notify_all()
        self.join(PATIENCE_S)
        assert not self.is_alive()

    def run(self) -> None:
        try:
            while True:
                with self._room:
                    self._room.wait_for(lambda: self._over or self.done < self._allowed)
                    if self._over:
                        return
                self._one()
                with self._room:
                    self.done += 1
                    self._room.notify_all()
        except BaseException as exc:
            with self._room:
                self.error = exc
                self._room.notify_all()
        finally:
            while self._hanging:
                hang_up(self._hanging.popleft(), reset=False)

    def _one(self) -> None:
        rng = self._rng
        publisher = rng.random() < 0.35
        connection = dial(self._addresses[publisher])
        with contextlib.suppress(OSError):  # the learner may close this connection
            parts = self._fuzzer.words(b"SUB" if publisher else b"DEALER")
            for words in parts:
                cuts = sorted(rng.randrange(len(words) + 1) for _ in range(rng.choice([0, 0, 0, 1, 3])))
                for begin, end in zip([0, *cuts], [*cuts, len(words)], strict=True):
                    connection.settimeout(2.0)
                    connection.sendall(words[begin:end])
                if words is not parts[-1]:
                    hear_ready(connection)
                elif rng.random() < 0.1:
                    connection.settimeout(0.02)
                    with contextlib.suppress(TimeoutError):
                        connection.recv(1 << 16)
            if rng.random() < 0.1:
                connection.shutdown(socket.SHUT_WR)
        if rng.random() < 0.2:
            self._hanging.append(connection)
            if len(self._hanging) > HELD:
                hang_up(self._hanging.popleft(), reset=rng.random() < 0.5)
        else:
            hang_up(connection, reset=rng.random() < 0.5)

    def _frames(self) -> list[bytes]:
        """Return a message of a DEALER. Some are valid HELLOs, so that others find a session."""
        if self._rng.random() < 0.3:
            name = f"fuzz-{self._rng.randrange(ACTORS)}"
            return [bytes(f) for f in encode(hello(name, self._rng.randrange(1, 1 << 40)))]
        return [bytes(f) for f in self._mutator.mutate()]


def test_a_good_client_is_served_throughout(tier: Tier, seed: int, report: Report, learner: StartLearner) -> None:
    connections = tier.size(300, 20_000, least=6000)
    warm_up = connections // 3  # tables and free lists reach their size
    step = tier.size(50, 100, least=100)
    process, address = learner(config={"max_clients": 1, "lease_s": 1.0}, forgetful=True, steps_per_update=16, rollout_length=16)
    pub = process.ask("status")["pub"]
    slowest = 0.0
    sizes_kib: list[int] = []
    with join(address) as agent:
        play(agent, 16)
        agent.wait_version(1, PATIENCE_S)
        quiet = descriptors(process.pid)
        attack = Attack((address, pub), seed)
        attack.start()
        began = time.monotonic()
        try:
            for target in range(step, connections + 1, step):
                attack.allow(target)
                asked = time.monotonic()
                drive(agent, steps=16)
                slowest = max(slowest, time.monotonic() - asked)
                if target % (4 * step) == 0:
                    with join(address, actor_id="joins-again") as another:
                        another.wait_version(agent.version, PATIENCE_S)
                attack.wait_for(target)
                if target > warm_up:
                    sizes_kib.append(resident_kib(process.pid))
            took = time.monotonic() - began
        finally:
            attack.stop()
        until(lambda: descriptors(process.pid) <= quiet, "the learner's descriptors")
        drive(agent, steps=16)
        assert agent.digest == process.ask("digest", agent.version)
        status = process.ask("status")
    third = len(sizes_kib) // 3
    # Sizes vary by more than the bound, as the allocator keeps pages or returns them. A leak raises the minimum.
    grown_kib = min(sizes_kib[-third:]) - min(sizes_kib[:third])
    report(
        connections=connections,
        per_second=round(connections / took),
        versions=agent.version,
        slowest_answer_s=round(slowest, 3),
        descriptors=quiet,
        grown_kib=grown_kib,
        refused={k.removeprefix("refused."): n for k, n in status["counters"].items() if k.startswith("refused.")},
    )
    assert agent.version >= connections // step
    assert "refused.internal" not in status["counters"]
    assert list(status["clients"]) == ["lab"]
    assert grown_kib < tier.size(10 * GROWTH_KIB, GROWTH_KIB, least=GROWTH_KIB)
    if tier.long:
        assert slowest < ANSWER_S


def test_many_frames_for_the_publisher(learner: StartLearner) -> None:
    process, address = learner(steps_per_update=16, rollout_length=16)
    pub = process.ask("status")["pub"]
    with dial(pub) as connection:
        connection.sendall(greeting() + ready(b"SUB"))
        assert hear_ready(connection)
        connection.sendall(frame(b"x", MORE) * 40 + frame(b"end") + frame(b"\x01"))
        until(lambda: process.ask("status")["counters"].get("refused.frames"), "the refusal, or the gateway's death")
    with join(address) as agent:
        play(agent, 16)
        agent.wait_version(1, PATIENCE_S)


def refused(process: Child) -> int:
    counters = process.ask("status")["counters"]
    return sum(count for name, count in counters.items() if name.startswith("refused."))


MANY = 200
"""More messages than the ROUTER's RCVHWM."""

ABORTS = "libzmq 4.3.5 aborts (!_io_error, its issue 4364) on a heartbeat of a closed connection with RCVHWM messages queued"


@pytest.mark.parametrize(
    "heartbeat", [pytest.param("theirs", marks=pytest.mark.xfail(strict=True, reason=ABORTS)), *(["ours"] if SOAK else [])]
)
def test_a_peer_ends_behind_a_full_queue(heartbeat: str, learner: StartLearner) -> None:
    """While the gateway is busy, a peer sends many messages and resets its connection. With ``theirs``, it adds a PING."""
    process, address = learner()
    process.ask("hold")
    with dial(address) as connection:
        connection.sendall(greeting() + ready())
        assert hear_ready(connection)
        connection.sendall(frame(b"x") * MANY + (command(b"PING", bytes(2)) if heartbeat == "theirs" else b""))
        Peer(address).close()  # one I/O thread serves all connections: everything sent before this greeting has been read
        hang_up(connection, reset=True)
    Peer(address).close()
    if heartbeat == "ours":
        threading.Event().wait(3.0)  # long enough for a heartbeat timer of libzmq
    process.ask("release")
    until(lambda: refused(process) >= MANY, "the end of the queue")


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="takes 8 s: RL4SYS_SOAK=1")
def test_a_learner_ends_behind_a_full_queue(spawn: Spawn, learner: StartLearner) -> None:
    """A host's I/O thread is blocked while many versions arrive and the learner dies. The host must survive."""
    process, address = learner(steps_per_update=1, rollout_length=1)
    host = spawn("host", {"agent": {**agent_options(address), "native": "never"}})  # `hold` holds a lock of Python
    host.hear()
    with join(address, client_id="lab", overflow="wait") as driver:
        host.ask("hold")
        drive(driver, 150)
        process.kill()
    threading.Event().wait(7.0)  # long enough for a heartbeat timeout of libzmq
    host.ask("release")
    assert host.ask("stats")["version"] >= 0
