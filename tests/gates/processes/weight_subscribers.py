"""A given number of agents that only subscribe to the policy. They all join at once, at the test's command."""

import threading
import time
from dataclasses import replace
from typing import Any

from harness.talk import obey, options, say

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.actor.io import weight_subscriber

given = options()
agents: list[RL4SysAgent] = []


def follow_elsewhere(pub: str) -> None:
    """Make agents subscribe to a proxy instead of the address that the learner gives."""
    join = weight_subscriber.WeightSubscriber.join

    def elsewhere(self: Any, welcome: Any, poller: Any) -> None:
        join(self, replace(welcome, pub=pub), poller)

    setattr(weight_subscriber.WeightSubscriber, "join", elsewhere)  # noqa: B010 a method cannot be assigned to


def join() -> dict[str, Any]:
    """Connect all agents at once. Return the time until the slowest has joined, and the errors."""
    config = AgentConfig.from_mapping(given["agent"])
    ready = threading.Barrier(given["count"])
    failed: list[str] = []

    def one() -> None:
        ready.wait()
        try:
            agents.append(RL4SysAgent(config=config))
        except Exception as exc:
            failed.append(repr(exc))

    threads = [threading.Thread(target=one) for _ in range(given["count"])]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"took_s": time.monotonic() - began, "failed": failed}


def wait(version: int) -> bool:
    for agent in agents:
        agent.wait_version(version, 60.0)
    return True


def state() -> list[dict[str, Any]]:
    found = []
    for agent in agents:
        stats = agent.stats()
        counters = stats["counters"]
        counted = {name: counters.get(name, 0) for name in ("weights_applied", "fetches", "resyncs.beacon")}
        found.append({"version": agent.version, "digest": agent.digest, "relay": stats["relay"], **counted})
    return found


if given.get("pub"):
    follow_elsewhere(given["pub"])
say("ready")
obey(join=join, wait=wait, state=state)
for agent in agents:
    agent.close(0.0)
