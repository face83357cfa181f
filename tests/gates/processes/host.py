"""A program with a control loop of 1 ms and, if the test requests it, an agent in the loop."""

import contextlib
import itertools
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness.talk import obey, options, say

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.actor.io.thread import ActorIOThread

PERIOD_S = 0.001
EPISODE_STEPS = 200

given = options()
turns = itertools.count()
turn = ActorIOThread._turn


def counted_turn(io: ActorIOThread) -> None:
    """Count a turn of the I/O thread's loop."""
    next(turns)
    turn(io)


setattr(ActorIOThread, "_turn", counted_turn)  # noqa: B010 a method cannot be assigned to
agent = RL4SysAgent(config=AgentConfig.from_mapping(given["agent"])) if given["agent"] is not None else None


def resident_kib() -> int:
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0])


def step(number: int, traj: Any) -> Any:
    """Do the work of one period: read a sensor and, with an agent, request an action and record the step."""
    observation = np.full(4, number % 7, dtype=np.float32)
    if agent is None:
        return None
    traj, action = agent.request_for_action(traj, observation)
    agent.add_to_trajectory(traj, action)
    action.update_reward(1.0)
    if number % EPISODE_STEPS == EPISODE_STEPS - 1:
        agent.mark_end_of_trajectory(traj, action)
    return traj


def run(steps: int) -> dict[str, Any]:
    """Run the loop. It skips no step: after a late step, the next ones start at once until the loop is on schedule again."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    try:
        return timed(steps)
    finally:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def timed(steps: int) -> dict[str, Any]:
    took, late = np.zeros(steps), np.zeros(steps)
    before, traj, done, first_turn = resident_kib(), None, 0, next(turns)
    began = time.perf_counter()
    try:
        for number in range(steps):
            due = began + number * PERIOD_S
            left = due - time.perf_counter()
            if left > 0:
                time.sleep(left)
            start = time.perf_counter()
            traj = step(number, traj)
            took[number] = time.perf_counter() - start
            late[number] = start - due
            done += 1
    except Exception as exc:
        return {"done": done, "error": repr(exc)}
    return {
        "done": done,
        "error": "",
        "median_ms": float(np.median(took)) * 1e3,
        "p999_ms": float(np.quantile(took, 0.999)) * 1e3,
        "worst_ms": float(took.max()) * 1e3,
        "missed": int((late >= PERIOD_S).sum()),
        "grown_kib": resident_kib() - before,
        "turns": next(turns) - first_turn - 1,
    }


def recover(generation: int) -> dict[str, Any]:
    """Act until the actor has a later generation than this and the learner accepts segments again. Return the statistics."""
    deadline = time.monotonic() + 60.0
    assert agent is not None
    number, traj, accepted = 0, None, agent.stats()["accepted"]
    while agent.generation <= generation or agent.version < 1 or agent.stats()["accepted"] <= accepted:
        assert time.monotonic() < deadline, agent.stats()
        traj = step(number, traj)
        number += 1
        time.sleep(PERIOD_S)
    agent.flush(60.0)
    return {**agent.stats(), "digest": agent.digest}


def fill_the_disk(largest_bytes: int) -> bool:
    """Limit the size of each file that this process writes. A file that is larger already cannot grow: writes fail."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_bytes, largest_bytes))
    return True


def stats() -> dict[str, Any]:
    assert agent is not None
    return agent.stats()


def hold() -> bool:
    """Block the I/O thread when it next notifies host threads."""
    assert agent is not None
    return agent._io.host.changed.acquire()


def release() -> None:
    assert agent is not None
    agent._io.host.changed.release()


say({"pid": os.getpid(), "generation": agent.generation if agent is not None else 0})
obey(
    run=run,
    recover=recover,
    stats=stats,
    fill_the_disk=fill_the_disk,
    hold=hold,
    release=release,
)
if agent is not None:
    agent.close()
