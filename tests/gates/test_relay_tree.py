"""A tree of relays with one kill: every subscriber has the learner's weights, and the learner sends to its children only."""

import time
from typing import Any

import pytest
from kit import until

from rl4sys_zmq.testing import ChaosProxy
from rl4sys_zmq.transports import Address

from .conftest import SOAK, Child, Report, Spawn, StartLearner, Tier, agent_options, drive, join

pytestmark = pytest.mark.timeout(900 if SOAK else 120)

COUNTED_HOST = "127.0.0.2"
"""The host of a proxy that counts the bytes of the learner's PUB socket. Relays and actors take its port from the learner."""


def relay_of(spawn: Spawn, upstream: str) -> tuple[Child, str]:
    child = spawn("command", {"command": "learner", "arguments": ["relay", upstream, "--bind", "tcp://127.0.0.1:0"]})
    return child, child.find(r"relay at (\S+)")


def subscribers(spawn: Spawn, address: str, count: int, **options: Any) -> Child:
    """Start a process of actors that only subscribe to the policy."""
    agent = agent_options(address, explore=False, report_returns=False, **options)
    child = spawn("weight_subscribers", {"agent": agent, "count": count})
    assert child.hear() == "ready"
    assert child.ask("join")["failed"] == []
    return child


def test_a_tree_with_a_killed_relay(tier: Tier, seed: int, report: Report, spawn: Spawn, learner: StartLearner) -> None:
    direct, count = (4, 64) if tier.long else (2, 8)
    versions = tier.size(24, 300, least=60)
    process, address = learner(hidden=5000 if tier.long else 500, steps_per_update=1, rollout_length=1, forgetful=True)
    port, pub_port = Address.parse(address).port, Address.parse(process.ask("status")["pub"]).port
    counted = f"tcp://{COUNTED_HOST}:{port}"

    def digests(state: dict[str, Any]) -> tuple[int, int]:
        return state["digest"], process.ask("digest", state["version"])

    with (
        ChaosProxy(address, seed=seed, listen=(COUNTED_HOST, port or 0)),
        ChaosProxy(f"tcp://127.0.0.1:{pub_port}", seed=seed, listen=(COUNTED_HOST, pub_port or 0)) as pub,
        join(address, overflow="wait") as driver,
    ):
        first = [relay_of(spawn, counted) for _ in range(direct)]
        second = [relay_of(spawn, upstream) for _, upstream in first]
        tree = [where for pair in zip(first, second, strict=True) for _, where in pair]
        groups = [
            subscribers(spawn, address, count // len(tree), relays=[*tree[n:], *tree[:n]]) for n in range(len(tree))
        ]  # half of them behind two relays
        drive(driver, 4)
        for group in groups:
            group.ask("wait", driver.version)
        states = [state for group in groups for state in group.ask("state")]
        assert [state["relay"] for state in states] == [where for where in tree for _ in range(count // len(tree))]
        before, at = pub.counters.get("bytes.down"), driver.version
        half = driver.version + versions // 2
        while driver.version < half:
            drive(driver, min(10, half - driver.version))
            for group in groups:
                assert all(own == learners for own, learners in map(digests, group.ask("state")))
        for group in groups:
            group.ask("wait", half)
        sent, sent_versions = pub.counters.get("bytes.down") - before, driver.version - at
        first[0][0].kill()
        killed = time.monotonic()
        gone = {tree[0], tree[1]}  # the relay behind it has no upstream now

        def moved() -> bool:
            return not gone & {state["relay"] for group in groups for state in group.ask("state")}

        moved_s = 0.0
        while driver.version < half + versions - versions // 2:
            drive(driver, 10)
            moved_s = moved_s or (time.monotonic() - killed if moved() else 0.0)
        until(moved, "another relay", every_s=0.1)
        moved_s = moved_s or time.monotonic() - killed
        drive(driver, 2)
        for group in groups:
            group.ask("wait", driver.version)
        states = [state for group in groups for state in group.ask("state")]
        digest = process.ask("digest", driver.version)
        baseline = subscribers(spawn, counted, 4, relays=[])
        baseline.ask("wait", driver.version)
        at, before = driver.version, pub.counters.get("bytes.down")
        drive(driver, 10)
        baseline.ask("wait", driver.version)
        relayed = direct - 1
        each = (pub.counters.get("bytes.down") - before) / (driver.version - at) / (4 + relayed)
    per_version = sent / sent_versions
    report(
        subscribers=count,
        relays=len(tree),
        versions=driver.version,
        moved_s=round(moved_s, 2),
        bytes_a_version=round(per_version),
        bytes_a_version_and_subscriber=round(each),
        share=round(per_version / (count * each), 4),
        of_subscribers=round(direct / count, 4),
    )
    assert {(state["version"], state["digest"]) for state in states} == {(at, digest)}
    assert per_version / (count * each) < 1.3 * direct / count
    if tier.long:
        assert moved_s < 15.0
