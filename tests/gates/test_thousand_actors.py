"""A thousand actors at one gateway: no segment is lost, each actor costs little memory, and acks arrive soon."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from kit import until

from rl4sys_zmq.transports import raise_descriptor_limit

from .conftest import PATIENCE_S, Report, Spawn, StartLearner, Tier, account, resident_kib

ACK_S = 2.0
BEYOND_KIB = 30.0
FIRST = 20
"""The number of actors that join before memory is measured. Their cost includes the learner's fixed cost."""
PROCESSES = 2
GROWTH_KIB = 16 * 1024
JOIN_S = 4 * PATIENCE_S
REST_S = 5.0
BUSY_PROCESSES = 6


@pytest.mark.parametrize("busy", [False, True], ids=["quiet", "busy"])
def test_a_thousand_actors(busy: bool, tier: Tier, seed: int, report: Report, spawn: Spawn, learner: StartLearner) -> None:
    """With `busy`, other programs use the processors for a while. The actors must keep their sessions and rarely resend."""
    actors, seconds = tier.size(100, 1000, least=100), tier.size(3, 180 if busy else 600, least=30)
    raise_descriptor_limit(8 * actors + 256)  # child processes inherit it
    bare = _bare_kib(spawn, actors)
    process, address = learner(
        forgetful=True, steps_per_update=10_000, rollout_length=10, config={"pacing_lag": 8, "max_actors": 2 * actors}
    )
    crowds = [spawn("many_sessions", {"address": address, "seed": 1000 * n, "most": actors}) for n in range(PROCESSES)]
    assert [crowd.hear() for crowd in crowds] == ["ready"] * PROCESSES
    assert crowds[0].ask("join", FIRST, timeout_s=JOIN_S) == FIRST
    rest = threading.Event()
    rest.wait(REST_S if tier.long else 0.5)  # the memory of an idle learner is measured here
    before_kib = resident_kib(process.pid)
    share = (actors - FIRST) // PROCESSES
    for crowd in crowds:
        crowd.tell("join", share)
    joined = sum(crowd.hear(JOIN_S) for crowd in crowds)
    assert joined == FIRST + share * PROCESSES
    rest.wait(REST_S if tier.long else 0.5)
    each_kib = (resident_kib(process.pid) - before_kib) / (joined - FIRST)

    for crowd in crowds:
        crowd.ask("send", 0.5 if tier.long else 2.0)
    if busy:
        rest.wait(seconds / 12)
        with busy_processes():
            rest.wait(seconds / 6)
        seconds -= seconds // 4
    rest.wait(seconds / 3)  # these pauses set the length of the run
    settled_kib = resident_kib(process.pid)
    rest.wait(2 * seconds / 3)
    grown_kib = resident_kib(process.pid) - settled_kib
    for crowd in crowds:
        crowd.ask("send", 0.0)
    for crowd in crowds:
        crowd.tell("settle")
    ends = [crowd.hear(JOIN_S) for crowd in crowds]
    numbers = {name: sum(end[name] for end in ends) for name in ("joined", "submitted", "accepted", "published")}
    client = until(lambda: account(process, numbers["accepted"]), "the learner's account")
    latencies = np.array([latency for end in ends for latency in end["latencies_s"]])
    counters = {name: sum(end["counters"].get(name, 0) for end in ends) for end in ends for name in end["counters"]}
    report(
        actors=joined,
        seconds=seconds,
        segments=numbers["submitted"],
        published=numbers["published"],
        bare_kib=round(bare, 1),
        each_kib=round(each_kib, 1),
        beyond_kib=round(each_kib - bare, 1),
        learner_kib=resident_kib(process.pid),
        grown_kib=grown_kib,
        ack_median_s=round(float(np.median(latencies)), 4),
        ack_p99_s=round(float(np.quantile(latencies, 0.99)), 4),
        ack_worst_s=round(float(latencies.max()), 3),
        counters=counters,
    )
    assert [end["errors"] for end in ends] == [[]] * PROCESSES
    assert numbers["joined"] == joined, "no session was lost for good"
    assert numbers["submitted"] == numbers["accepted"] == len(latencies) > joined
    assert numbers["published"] >= joined, "each follows the learner's PUB"
    assert client["verdicts"]["refused"] == client["verdicts"]["quarantined"] == client["rolled_back"] == 0
    if tier.long:
        assert each_kib - bare < BEYOND_KIB
    if busy:
        assert counters.get("sessions_lost.learner", 0) == 0, "the learner must not take its own delay for silence"
        assert counters.get("resent_messages", 0) < numbers["submitted"]
    elif tier.long:
        assert grown_kib < GROWTH_KIB, "a leak; the busy run is too short to warm up"
        assert np.quantile(latencies, 0.99) < ACK_S


@contextmanager
def busy_processes() -> Iterator[None]:
    """Run `BUSY_PROCESSES` processes that use all processor time that they get, until the ``with`` block ends."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY_PROCESSES)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _bare_kib(spawn: Spawn, actors: int) -> float:
    """Return the memory in KiB that a bare ROUTER and XPUB need for one DEALER and one SUB."""
    server = spawn("bare_sockets", {"most": actors})
    router, xpub = server.hear()
    clients = spawn("bare_sockets", {"router": router, "xpub": xpub, "most": actors})
    assert clients.hear() == "ready"
    assert clients.ask("connect", FIRST) == FIRST
    until(lambda: server.ask("counts")["subscriptions"] >= 2 * FIRST, "the first subscriptions")
    before_kib = resident_kib(server.pid)
    assert clients.ask("connect", actors - FIRST, timeout_s=JOIN_S) == actors - FIRST
    until(
        lambda: server.ask("counts")["subscriptions"] >= 2 * actors, "all connections"
    )  # a connection that is made again subscribes again
    each_kib = (resident_kib(server.pid) - before_kib) / (actors - FIRST)
    for child in (clients, server):
        child.end()
    return each_kib
