"""A frozen subscriber and one with a slow connection cost the publisher a bounded queue. Other subscribers are not affected."""

import signal
import time

from kit import until

from rl4sys_zmq.learner.gateway.gateway import PUB_HWM
from rl4sys_zmq.testing import ChaosProxy, NetworkFaults

from .conftest import Report, Spawn, StartLearner, Tier, agent_options, drive, join, resident_kib

HEALTHY = 3
RING = 64
"""The number of diffs that the learner keeps in any case."""

CATCH_UP_S = 3.0
SLOW_BYTES_S = 1_000_000


def test_slow_subscribers_cost_a_bounded_queue(
    tier: Tier, seed: int, report: Report, spawn: Spawn, learner: StartLearner
) -> None:
    versions = tier.size(20, 300, least=60)
    policy_bytes = 1_000_000 if tier.long else 100_000
    process, address = learner(hidden=policy_bytes // 28, steps_per_update=1, rollout_length=1)
    pub = process.ask("status")["pub"]
    evaluate = {"agent": agent_options(address, explore=False, report_returns=False)}
    with ChaosProxy(pub, seed=seed) as proxy, join(address, overflow="wait") as driver:
        healthy = spawn("weight_subscribers", {**evaluate, "count": HEALTHY})
        frozen = spawn("weight_subscribers", {**evaluate, "count": 1})
        slow = spawn("weight_subscribers", {**evaluate, "count": 1, "pub": proxy.address})
        for child in (healthy, frozen, slow):
            assert child.hear() == "ready"
            assert child.ask("join")["failed"] == []
        drive(driver, RING + 8 if tier.long else 4)
        for child in (healthy, frozen, slow):
            child.ask("wait", driver.version)
        before = healthy.ask("state")
        base_kib = peak_kib = resident_kib(process.pid)
        frozen.signal(signal.SIGSTOP)
        proxy.faults = NetworkFaults(rate_bytes_s=SLOW_BYTES_S)
        began = time.monotonic()
        for _ in range(versions):
            drive(driver, 1)
            peak_kib = max(peak_kib, resident_kib(process.pid))
        took = time.monotonic() - began
        healthy.ask("wait", driver.version)
        after = healthy.ask("state")
        digest = process.ask("digest", driver.version)
        behind = driver.version - slow.ask("state")[0]["version"]
        frozen.signal(signal.SIGCONT)
        proxy.faults = NetworkFaults()
        woken = time.monotonic()
        for child in (frozen, slow):
            until(lambda child=child: child.ask("state")[0]["version"] == driver.version, "catching up", every_s=0.1)  # type: ignore[misc]
        caught_up_s = time.monotonic() - woken
        late = [child.ask("state")[0] for child in (frozen, slow)]
    report(
        versions=versions,
        policy_bytes=policy_bytes,
        per_second=round(versions / took, 1),
        publisher_kib=base_kib,
        grown_kib=peak_kib - base_kib,
        in_policies=round(1024 * (peak_kib - base_kib) / policy_bytes, 1),
        slow_was_behind=behind,
        caught_up_s=round(caught_up_s, 2),
        fetches_of_the_late=[state["fetches"] for state in late],
    )
    for held, had in zip(after, before, strict=True):
        # Each diff needs the version before it, and its digest is verified. With this many diffs and no fetch, none was missed.
        assert held["weights_applied"] - had["weights_applied"] == versions
        assert held["fetches"] == had["fetches"] == 1
        assert (held["version"], held["digest"]) == (driver.version, digest)
    assert [state["digest"] for state in late] == [digest] * 2
    assert 1024 * (peak_kib - base_kib) < 5 * PUB_HWM * policy_bytes
    if tier.long:
        assert behind > 0
        assert caught_up_s < CATCH_UP_S
