"""A peer that floods a learner without keys gets no more than a share of its time, its memory and its training data."""

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import until

from rl4sys_zmq.values import BoxSpace, DiscreteSpace, space_to_json
from rl4sys_zmq.wire.messages import Refused

from .conftest import PATIENCE_S, Child, Report, Spawn, Tier, agent_options, join, resident_kib
from .siege import ALGORITHM, Attacker, GoodClient, hello
from .test_malicious import endless
from .zmtp import dial, frame, greeting, hear_ready, ready

pytestmark = pytest.mark.timeout(600)

FLOODS = ("garbage", "heartbeat", "status", "fetch", "wants", "submit", "hello")
"""The floods of `processes/flood.py`. ``hello`` is last, because the actors that it invents remain for a while."""

SHARE_QUICK, SHARE_LONG = 0.25, 0.6
"""The least rate of the good client, as a share of its rate beside a process that is as busy and sends nothing.

Before there were shares it was 0.02 to 0.23, and 0 with ``wants``.
"""

SOCKETS = 20
GROWTH_KIB = 64 * 1024


def test_a_flood_costs_a_fair_share(tier: Tier, report: Report, spawn: Spawn, learner: Any) -> None:
    """A good client runs beside a process with 20 sockets that sends nothing, then beside the same process when it floods."""
    fake = {"steps_per_update": 2000, "rollout_length": 50}
    process, address = learner(forgetful=True, config={"pacing_lag": 8}, **fake)
    good = spawn("crew", {"actors": [{"agent": agent_options(address, overflow="wait"), "hz": 0}]})
    assert [good.hear(), good.ask("begin")] == ["ready", True]
    flood = spawn("flood", {"address": address, "sockets": SOCKETS})
    flood.hear()
    until(lambda: good.ask("steps")[0], "the first segments")
    before_kib = resident_kib(process.pid)
    shares: dict[str, float] = {}
    rounds, window_s = (5, 2.0) if tier.long else (3, 0.7)
    rates = [rate(flood, good, "busy", window_s)]
    for kind in FLOODS:
        pairs: list[float] = []
        for _ in range(rounds):
            if tier.long or pairs:  # in the quick tier, one figure without a flood serves for all kinds that leave enough
                rates.append(rate(flood, good, "busy", window_s))
            quiet = rates[-1] if tier.long else statistics.median(rates)
            pairs.append(rate(flood, good, kind, window_s) / max(quiet, 1.0))
            if not tier.long and pairs[-1] >= SHARE_QUICK:
                break  # in the quick tier other tests may take the processor at any time
        shares[kind] = round(statistics.median(pairs) if tier.long else max(pairs), 2)
    flood.ask("change", "busy")
    counters = process.ask("status")["counters"]
    growth_kib = resident_kib(process.pid) - before_kib
    (stats,) = good.ask("stats")
    report(
        share=shares,
        quiet_steps_per_s=round(statistics.median(rates)),
        growth_mib=growth_kib >> 10,
        refused=counters.get("refused.quota", 0),
    )
    least = SHARE_LONG if tier.long else SHARE_QUICK
    assert all(share >= least for kind, share in shares.items() if kind != "submit"), shares
    assert shares["submit"] > 0, "a second client with twenty actors is no flood; what it has credit for is trained on"
    assert (stats["state"], stats["error"], stats["counters"]["joined"]) == ("joined", "", 1), stats
    assert growth_kib < GROWTH_KIB


def rate(flood: Child, good: Child, kind: str, window_s: float) -> float:
    """Return the steps per second of the good client while the other process floods in this way."""
    flood.ask("change", kind)
    pause = threading.Event()
    pause.wait(0.5 if kind == "busy" else 1.0)  # until the rest of the last flood is read, and the burst of this one is over
    (before,), began = good.ask("steps"), time.monotonic()
    pause.wait(window_s)
    (after,), took_s = good.ask("steps"), time.monotonic() - began
    return float(after - before) / took_s


NEW_CLIENT: dict[str, Any] = {
    "algorithm_name": ALGORITHM,
    "observation_space": space_to_json(BoxSpace((4,))),
    "action_space": space_to_json(DiscreteSpace(2)),
}


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_parameters_are_counted_before_anything_is_built(name: str, report: Report, learner: Any) -> None:
    pytest.importorskip("torch")
    process, address = learner(torch=True)
    with contextlib.closing(join(address, client_id="small", algorithm_name=name, algorithm_parameters={"hidden_sizes": [8]})):
        pass  # torch is imported now, and its memory is no longer counted
    before_kib, peak_kib = resident_kib(process.pid), [0]
    began = time.monotonic()
    with contextlib.closing(Attacker(address, None)) as caller, sampled(process, peak_kib):
        sizes = {"hidden_sizes": [30_000, 30_000]}
        caller.say(hello(client_id="huge", **{**NEW_CLIENT, "algorithm_name": name}, algorithm_parameters=sizes))
        refused = caller.hear(Refused)
    took_s, growth_kib = time.monotonic() - began, max(peak_kib[0], resident_kib(process.pid)) - before_kib
    report(seconds=round(took_s, 3), growth_mib=growth_kib >> 10, said=refused.reason)
    assert refused.code == "config"
    assert "max_parameters" in refused.reason and "900" in refused.reason
    assert growth_kib < GROWTH_KIB and took_s < 10.0


@contextlib.contextmanager
def sampled(process: Child, peak_kib: list[int]) -> Iterator[None]:
    exceeds = threading.Event()

    def look() -> None:
        while not exceeds.wait(0.02):
            with contextlib.suppress(OSError, IndexError):
                peak_kib[0] = max(peak_kib[0], resident_kib(process.pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        exceeds.set()
        thread.join()


SPARE = 96 << 20


@pytest.mark.parametrize("attack", ["half-sent frames", "a message without end", "empty frames without end"])
def test_unfinished_messages_end_with_their_connections(attack: str, tmp_path: Path, report: Report, spawn: Spawn) -> None:
    """A learner whose memory runs out closes the connections with unfinished messages, and no other connection."""
    learner = spawn("besieged", {"run_dir": str(tmp_path / "run"), "bind": "tcp://127.0.0.1:0", "spare_bytes": SPARE})
    said = learner.hear()
    peak_kib, before_kib = [0], resident_kib(learner.pid)
    with join(said["address"], algorithm_name=ALGORITHM, actor_id="good") as agent:
        good = GoodClient(agent)
        good.start()
        try:
            good.served(5)
            with sampled(learner, peak_kib):
                sent = ATTACKS[attack](said["address"])
                limit_kib = said["limit_bytes"] >> 10
                until(lambda: resident_kib(learner.pid) < limit_kib, "memory that is free again")
            good.served(5)
        finally:
            good.stop()
        agent.flush(PATIENCE_S)
        counters, joined = learner.ask("status")["counters"], agent.stats()["counters"]["joined"]
    report(
        sent_mib=sent >> 20, before_mib=before_kib >> 10, limit_mib=limit_kib >> 10, peak_mib=peak_kib[0] >> 10,
        after_mib=resident_kib(learner.pid) >> 10, cut=counters["connections.cut"],
    )  # fmt: skip
    assert counters["connections.cut"] >= 1
    assert joined == 1, "the good client was not disturbed"


def half_sent(address: str) -> int:
    """Send 150 frames of 8 MiB whose ends are missing."""
    sent = 0
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        connections = [stack.enter_context(dial(address)) for _ in range(150)]
        for connection in connections:
            connection.sendall(greeting() + ready())
        for connection in connections:
            assert hear_ready(connection)
            connection.settimeout(PATIENCE_S)
            connection.sendall(frame(bytes(8 << 20), declared=(8 << 20) + 100))
            sent += 8 << 20
        while True:  # until the learner closes a connection
            for connection in connections:
                if not connection.recv(1 << 16):
                    return sent
    return sent


def empty_frames(address: str) -> int:
    """Send 10 million empty frames in one message."""
    sent, chunk = 0, frame(b"", 1) * 100_000
    with dial(address) as connection, contextlib.suppress(OSError):
        connection.sendall(greeting() + ready())
        assert hear_ready(connection)
        connection.settimeout(5.0)  # a learner that has stopped reading may block a flood
        for _ in range(100):
            connection.sendall(chunk)
            sent += len(chunk)
        while connection.recv(1 << 16):
            pass
    return sent


ATTACKS = {"half-sent frames": half_sent, "a message without end": endless, "empty frames without end": empty_frames}


def test_a_learner_that_cannot_shed_memory_ends_and_says_why(tmp_path: Path, report: Report, spawn: Spawn) -> None:
    """Its supervisor starts it again. No acknowledged segment is lost."""
    options = {"run_dir": str(tmp_path / "run"), "spare_bytes": SPARE}
    learner = spawn("besieged", {**options, "bind": "tcp://127.0.0.1:0"})
    address = learner.hear()["address"]
    with join(address, algorithm_name=ALGORITHM, actor_id="good") as agent:
        good = GoodClient(agent)
        good.start()
        try:
            good.served(5)
            learner.tell("waste", 2 * SPARE)
            learner.hear()
            began = time.monotonic()
            ended = learner.hear()
            took_s = time.monotonic() - began
            learner.end(expect="MemoryExceeded")
            before = agent.version
            learner = spawn("besieged", {**options, "bind": address})
            assert learner.hear()["address"] == address
            until(lambda: agent.version > before, "a version after the restart")
            good.served(5)
        finally:
            good.stop()
        agent.flush(PATIENCE_S)
        client, after = learner.ask("status")["clients"]["lab"], agent.stats()
    report(ended=ended["ended"], ended_after_s=round(took_s, 1), why=ended["why"])
    assert ended["ended"] == "MemoryExceeded" and "--max-memory" in ended["why"]
    assert (client["rolled_back"], client["gap"], after["in_doubt"]) == (0, 0, 0)
    assert client["accepted"] == after["accepted"] == after["submitted"]
