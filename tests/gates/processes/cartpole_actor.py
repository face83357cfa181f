"""An actor that plays CartPole at a given pace for a number of steps, and answers commands."""

import threading
import time
from typing import Any

import gymnasium
from harness.talk import obey, options, say

from rl4sys_zmq import AgentConfig, RL4SysAgent

given = options()
environment: Any = gymnasium.make("CartPole-v1")
config = AgentConfig(
    observation_space=environment.observation_space, action_space=environment.action_space, overflow="wait", **given["config"]
)
agent = RL4SysAgent(config=config)
returns: list[float] = []
state: dict[str, Any] = {"steps": 0, "error": ""}
stopping = threading.Event()


def play() -> None:
    """Play episodes until enough steps are made, or `stopping` is set."""
    period_s = 1.0 / given["rate"]
    due = time.monotonic()
    while not stopping.is_set() and state["steps"] < given["steps"]:
        observation, _ = environment.reset(seed=given["seed"] + len(returns))
        traj: Any = None
        total, over = 0.0, False
        while not over:
            traj, action = agent.request_for_action(traj, observation)
            observation, reward, terminated, truncated, _ = environment.step(action.act)
            action.update_reward(reward)
            agent.add_to_trajectory(traj, action)
            total += float(reward)
            state["steps"] += 1
            over = terminated or truncated
            due += period_s
            if (early_s := due - time.monotonic()) > 0:
                stopping.wait(early_s)
            else:
                due -= early_s  # the actor does not catch up on time that it spent waiting for the learner
        agent.mark_end_of_trajectory(traj, action, truncated=truncated and not terminated, final_obs=observation)
        returns.append(total)


def work() -> None:
    try:
        play()
    except Exception as exc:  # the status reports it to the test
        state["error"] = repr(exc)


def status() -> dict[str, Any]:
    return {**state, "done": not worker.is_alive(), "episodes": len(returns), "returns": returns[-100:], "stats": agent.stats()}


def finish(timeout_s: float) -> dict[str, Any]:
    stopping.set()
    worker.join(timeout_s)
    agent.flush(timeout_s)
    return status()


worker = threading.Thread(target=work, name="host")
worker.start()
say({"version": agent.version})
try:
    obey(status=status, finish=finish)
finally:
    stopping.set()
    worker.join(30.0)
    agent.close()
    environment.close()
