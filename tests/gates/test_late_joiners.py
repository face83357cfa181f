"""Two hundred actors join at once while versions follow without a pause. All end with the same weights, to the bit."""

import time

from .conftest import Report, Spawn, StartLearner, Tier, agent_options, join
from .siege import GoodClient

PROCESSES = 4
TOGETHER_S = 10.0
HIDDEN = 1500


def test_late_joiners_end_with_the_same_bits(tier: Tier, report: Report, spawn: Spawn, learner: StartLearner) -> None:
    joiners = tier.size(20, 200, least=20)
    processes = PROCESSES if tier.long else 2
    # One driver submits, and 200 agents only subscribe, which need no credit.
    process, address = learner(hidden=HIDDEN, steps_per_update=1, rollout_length=1)
    driver = GoodClient(join(address, overflow="wait"), steps=1)
    options = {"agent": agent_options(address, explore=False, report_returns=False), "count": joiners // processes}
    children = [spawn("weight_subscribers", options) for _ in range(processes)]
    for child in children:
        assert child.hear() == "ready"
    driver.start()
    try:
        driver.served(5)
        first = driver.agent.version
        began = time.monotonic()
        for child in children:
            child.tell("join")
        joined = [child.hear() for child in children]
        driver.served(1)
    finally:
        driver.stop()
        last = driver.agent.version
        driver.agent.close()
    for child in children:
        child.tell("wait", last)
    assert all(child.hear() for child in children)
    together_s = time.monotonic() - began
    states = [state for child in children for state in child.ask("state")]
    digest = process.ask("digest", last)
    versions, most_snapshots = process.ask("snapshots")
    report(
        joiners=len(states),
        versions_meanwhile=last - first,
        joined_s=round(max(j["took_s"] for j in joined), 2),
        together_s=round(together_s, 2),
        most_fetches=max(state["fetches"] for state in states),
        fetches=sum(state["fetches"] for state in states),
        snapshots_per_version=most_snapshots,
    )
    assert [j["failed"] for j in joined] == [[]] * processes
    assert len(states) == processes * (joiners // processes)
    assert {(state["version"], state["digest"]) for state in states} == {(last, digest)}
    assert last > first
    assert most_snapshots == 1 and versions <= last + 1
    if tier.long:
        assert together_s < TOGETHER_S
