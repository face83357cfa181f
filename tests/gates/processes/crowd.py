"""A given number of agents that act and submit, each in its own thread at a steady pace. The delays of acks are measured."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from harness.talk import obey, options, say

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.delivery import ActorSession

EPISODE_STEPS = 50

given = options()
latencies: list[float] = []
errors: list[str] = []
over = threading.Event()


def time_the_acks() -> None:
    """Record for each segment the delay from its first transmission to the ack that it is durable."""
    take, on_message = ActorSession.take, ActorSession.on_message

    def timed_take(self: Any, now: float, packed: Any, ahead_steps: int = 0) -> Any:
        sent = self.__dict__.setdefault("sent_at", {})
        for number in range(len(packed)):
            sent[self._next_seq + number] = now
        return take(self, now, packed, ahead_steps)

    def timed_message(self: Any, now: float, message: Any) -> Any:
        before = self.durable
        actions = on_message(self, now, message)
        sent = self.__dict__.setdefault("sent_at", {})
        latencies.extend(now - sent.pop(seq) for seq in range(before, self.durable) if seq in sent)
        return actions

    ActorSession.take, ActorSession.on_message = timed_take, timed_message  # type: ignore[method-assign]


def act(agent: RL4SysAgent, rng: np.random.Generator) -> None:
    pace_s = 1.0 / given["steps_per_s"]
    due = time.monotonic() + rng.uniform(0.0, EPISODE_STEPS * pace_s)
    try:
        while not over.wait(max(0.0, due - time.monotonic())):
            traj = action = None
            for _ in range(EPISODE_STEPS):
                traj, action = agent.request_for_action(traj, rng.standard_normal(4, dtype=np.float32))
                action.update_reward(1.0)
                agent.add_to_trajectory(traj, action)
            assert traj is not None
            agent.mark_end_of_trajectory(traj, action)
            due += EPISODE_STEPS * pace_s
        agent.flush(60.0)
    except Exception as exc:
        errors.append(repr(exc))


def join() -> bool:
    for number in range(given["count"]):
        agents.append(RL4SysAgent(config=AgentConfig.from_mapping(given["agent"])))
        threads.append(threading.Thread(target=act, args=(agents[-1], np.random.default_rng([given["seed"], number]))))
    for thread in threads:
        thread.start()
    return True


def end() -> dict[str, Any]:
    over.set()
    for thread in threads:
        thread.join()
    stats = [agent.stats() for agent in agents]
    for agent in agents:
        agent.close()
    numbers = ("submitted", "dropped_at_source", "in_actor", "refused", "accepted", "in_doubt")
    return {
        "errors": errors,
        **{name: sum(s[name] for s in stats) for name in numbers},
        "resent": sum(s["counters"].get("resent_messages", 0) for s in stats),
        "digests": sorted({(agent.version, agent.digest) for agent in agents}),
        "latencies_s": latencies,
    }


agents: list[RL4SysAgent] = []
threads: list[threading.Thread] = []
time_the_acks()
say({})
obey(join=join, end=end)
