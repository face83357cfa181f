"""Actors with a rate each, in one process. It reports the steps of whole episodes that the learner has accepted from each."""

import threading
import time
from contextlib import ExitStack

from harness.talk import obey, options, say

from rl4sys_zmq import AgentConfig, RL4SysAgent

CATCH_UP_S = 0.05

given = options()
over, going = threading.Event(), threading.Event()


class Member:
    """One actor that tries to collect `hz` steps per second, as many as possible with 0."""

    def __init__(self, agent: RL4SysAgent, hz: float, episode: int = 50) -> None:
        self.agent, self.hz, self.episode = agent, hz, episode

    def act(self) -> None:
        """Play episodes while the crew goes, until the process ends."""
        next_at = time.monotonic()
        while not over.is_set():
            if not going.is_set():
                over.wait(0.01)
                continue
            traj = action = None
            for _ in range(self.episode):
                if self.hz:
                    next_at = max(next_at + 1 / self.hz, time.monotonic() - CATCH_UP_S)
                    over.wait(max(0.0, next_at - time.monotonic()))
                traj, action = self.agent.request_for_action(traj, [0.0, 0.1, 0.2, 0.3])
                action.update_reward(1.0)
                self.agent.add_to_trajectory(traj, action)
            if traj is not None:
                self.agent.mark_end_of_trajectory(traj, action)


def begin() -> bool:
    going.set()
    return True


def rest() -> bool:
    going.clear()
    return True


with ExitStack() as stack:
    crew = [
        Member(stack.enter_context(RL4SysAgent(config=AgentConfig.from_mapping(one.pop("agent")))), **one)
        for one in given["actors"]
    ]
    threads = [threading.Thread(target=member.act) for member in crew]
    for thread in threads:
        thread.start()
    say("ready")
    obey(
        begin=begin,
        rest=rest,
        steps=lambda: [int(member.agent.stats()["accepted"]) * member.episode for member in crew],
        stats=lambda: [member.agent.stats() for member in crew],
    )
    over.set()
    for thread in threads:
        thread.join()
