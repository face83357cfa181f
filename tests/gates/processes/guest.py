"""A host program that uses its agent in difficult ways, and ends as the test requests."""

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from harness.talk import obey, options, say

from rl4sys_zmq import AgentConfig, RL4SysAgent

CHILD_S = 30

given = options()


def make() -> RL4SysAgent:
    return RL4SysAgent(config=AgentConfig.from_mapping(given["agent"]))


def play(player: RL4SysAgent, episodes: int | None) -> None:
    """Play episodes of one step. Without a number, play without end."""
    for _ in itertools.count() if episodes is None else range(episodes):
        traj, action = player.request_for_action(None, [0.0, 0.1, 0.2, 0.3])
        action.update_reward(1.0)
        player.mark_end_of_trajectory(traj, action)


def in_background(count: int) -> bool:
    before = agent.stats()["submitted"]
    for _ in range(count):
        threading.Thread(target=play, args=(agent, None), daemon=True).start()
    while agent.stats()["submitted"] < before + 1000:
        time.sleep(0.001)
    return True


def forked(body: Callable[[], Any]) -> dict[str, Any]:
    """Run `body` in a forked child, which then exits normally. Return the result of `body` and the exit code."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(CHILD_S)  # SIGALRM ends a child that hangs
        os.close(reader)
        os.write(writer, json.dumps(body()).encode())
        raise SystemExit(0)  # a normal exit of the interpreter: finalisers and atexit handlers run
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    return {"said": json.loads(said or b"null"), "code": os.waitstatus_to_exitcode(status)}


def fork_with_its_own(episodes: int) -> dict[str, Any]:
    def body() -> dict[str, Any]:
        with make() as own:
            play(own, episodes)
            own.flush(20.0)
            return {**own.stats(), "inherited": agent.actor_id}

    return forked(body)


def fork_with_inherited(episodes: int) -> dict[str, Any]:
    """Fork. The child continues with the inherited agent, which becomes another actor there."""

    def body() -> dict[str, Any]:
        before = agent.stats()["accepted"]
        play(agent, episodes)
        agent.flush(20.0)
        stats = agent.stats()
        began = time.monotonic()
        agent.close()
        return {"actor_id": agent.actor_id, "before": before, **stats, "close_s": time.monotonic() - began}

    return forked(body)


def stats() -> dict[str, Any]:
    return agent.stats()


agent = make()
say({"actor_id": agent.actor_id})
obey(
    play=lambda episodes: play(agent, episodes),
    flush=lambda: agent.flush(60.0),
    stats=stats,
    in_background=in_background,
    fork_with_its_own=fork_with_its_own,
    fork_with_inherited=fork_with_inherited,
)
match given["ending"]:
    case "close":
        agent.close()
    case "raise":
        raise ZeroDivisionError("made to raise")
    case "exit":
        raise SystemExit(3)
    case "nothing":
        pass
