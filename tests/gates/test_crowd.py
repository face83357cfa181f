"""Two hundred actors that act for five minutes on one learner: no segment is lost, no memory grows, and acks arrive soon."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from kit import until

from .conftest import PATIENCE_S, Child, Spawn, Tier, account, agent_options, check_law, resident_kib

ACK_S = 1.0
GROWTH_KIB = 16 * 1024
STEPS_PER_S = 50


def test_a_crowd_of_actors(tier: Tier, seed: int, report: Any, spawn: Spawn, learner: Callable[..., tuple[Child, str]]) -> None:
    actors, processes = tier.size(12, 200, least=20), 4 if tier.long else 2
    minutes = 5 if tier.long else 0
    process, address = learner(forgetful=True, steps_per_update=10_000, rollout_length=50, config={"pacing_lag": 8})
    options = {
        "agent": agent_options(address, queue_items=100_000, connect_timeout_s=2 * PATIENCE_S),
        "count": actors // processes,
        "steps_per_s": STEPS_PER_S,
        "seed": seed,
    }
    crowds = [spawn("crowd", options) for _ in range(processes)]
    for crowd in crowds:
        crowd.hear()
        crowd.tell("join")
    for crowd in crowds:
        crowd.hear(4 * PATIENCE_S)
    pause, sizes_kib = threading.Event(), []
    rounds = 60 * minutes if tier.long else 2
    for _ in range(rounds):
        pause.wait(1.0)  # this pause sets the length of the run
        sizes_kib.append([resident_kib(c.pid) for c in (process, *crowds)])
    for crowd in crowds:
        crowd.tell("end")
    ends = [crowd.hear(4 * PATIENCE_S) for crowd in crowds]
    numbers = {name: sum(e[name] for e in ends) for name in ("submitted", "dropped_at_source", "in_actor", "refused", "accepted")}
    client = until(lambda: account(process, numbers["accepted"]), "the learner's account")
    latencies = np.array([s for e in ends for s in e["latencies_s"]])
    settled = sizes_kib[len(sizes_kib) // 3 :]
    grown = [max(0, last - first) for first, last in zip(settled[0], settled[-1], strict=True)]
    report(
        actors=actors,
        seconds=rounds,
        segments=numbers["submitted"],
        ack_median_s=round(float(np.median(latencies)), 4),
        ack_p99_s=round(float(np.quantile(latencies, 0.99)), 4),
        ack_worst_s=round(float(latencies.max()), 3),
        resent=sum(e["resent"] for e in ends),
        learner_kib=sizes_kib[-1][0],
        actor_kib=round(sum(sizes_kib[-1][1:]) / actors),
        grown_kib=grown,
        version=client["version"],
    )
    assert [e["errors"] for e in ends] == [[]] * processes
    check_law(numbers)
    assert numbers["submitted"] == numbers["accepted"] == len(latencies)
    assert numbers["dropped_at_source"] == numbers["in_actor"] == numbers["refused"] == 0
    if tier.long:
        assert np.quantile(latencies, 0.99) < ACK_S
        assert max(grown) < GROWTH_KIB
