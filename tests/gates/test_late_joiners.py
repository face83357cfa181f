"""Two hundred actors join at once while versions follow without a pause. All end with the same weights, to the bit."""

from __future__ import annotations

import threading
import time

from kit import play, until

from .conftest import PATIENCE_S, Report, Spawn, StartLearner, Tier, agent_options, join

PROCESSES = 4
TOGETHER_S = 10.0
HIDDEN = 1500


class Driver(threading.Thread):
    """A thread that causes new versions until `stop`."""

    def __init__(self, address: str) -> None:
        super().__init__(name="driver")
        self._agent = join(address, overflow="wait")
        self._over = threading.Event()
        self.version = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                held = self._agent.version  # read first, because the next version may come during the step
                play(self._agent, 1)
                self.version = self._agent.wait_version(held + 1, PATIENCE_S)
        except BaseException as exc:
            self.error = exc

    def reach(self, version: int) -> int:
        until(lambda: self.version >= version or self.error, f"version {version}", 2 * PATIENCE_S)
        assert self.error is None, (repr(self.error), self._agent.stats())
        return self.version

    def stop(self) -> int:
        self._over.set()
        self.join(2 * PATIENCE_S)
        self._agent.close()
        assert not self.is_alive()
        assert self.error is None, (repr(self.error), self._agent.stats())
        return self.version


def test_late_joiners_end_with_the_same_bits(tier: Tier, report: Report, spawn: Spawn, learner: StartLearner) -> None:
    joiners = tier.size(20, 200, least=20)
    processes = PROCESSES if tier.long else 2
    # One driver submits, and 200 agents only subscribe, which need no credit.
    process, address = learner(hidden=HIDDEN, steps_per_update=1, rollout_length=1)
    driver = Driver(address)
    options = {"agent": agent_options(address, explore=False, report_returns=False), "count": joiners // processes}
    children = [spawn("weight_subscribers", options) for _ in range(processes)]
    for child in children:
        assert child.hear() == "ready"
    driver.start()
    try:
        first = driver.reach(5)
        began = time.monotonic()
        for child in children:
            child.tell("join")
        joined = [child.hear() for child in children]
        driver.reach(first + 1)
    finally:
        last = driver.stop()
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
