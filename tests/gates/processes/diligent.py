"""One actor that acts as fast as the learner accepts its segments. It reports the number of accepted steps."""

from __future__ import annotations

import threading
from typing import Any

from harness.talk import obey, options, say

from rl4sys_zmq import AgentConfig, RL4SysAgent

EPISODE_STEPS = 50

given = options()
over = threading.Event()


def act(agent: RL4SysAgent) -> None:
    while not over.is_set():
        traj = action = None
        for _ in range(EPISODE_STEPS):
            traj, action = agent.request_for_action(traj, [0.0, 0.1, 0.2, 0.3])
            action.update_reward(1.0)
            agent.add_to_trajectory(traj, action)
        if traj is not None:
            agent.mark_end_of_trajectory(traj, action)


def steps() -> int:
    return int(agent.stats()["accepted"]) * EPISODE_STEPS


def stats() -> Any:
    found = agent.stats()
    return {**{key: found[key] for key in ("submitted", "accepted", "state", "error")}, "counters": found["counters"]}


with RL4SysAgent(config=AgentConfig.from_mapping(given["agent"])) as agent:
    say("ready")
    thread = threading.Thread(target=act, args=(agent,))
    thread.start()
    obey(steps=steps, stats=stats)
    over.set()
    thread.join()
