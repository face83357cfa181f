"""A learner or an actor with keys. It is a separate process because libzmq can abort it."""

from __future__ import annotations

import time
from typing import Any

from harness.talk import obey, options, say
from kit import play as play_episode

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm


def play(agent: RL4SysAgent, episodes: int) -> int:
    for _ in range(episodes):
        play_episode(agent, 3)
    return int(agent.stats()["submitted"])


def settle(agent: RL4SysAgent) -> dict[str, Any]:
    began = time.monotonic()
    agent.flush(30.0)
    return {**agent.stats(), "took_s": time.monotonic() - began}


given = options()
if "agent" in given:
    with RL4SysAgent(config=AgentConfig.from_mapping(given["agent"])) as agent:
        say("joined")
        obey(play=lambda episodes: play(agent, episodes), settle=lambda: settle(agent))
else:
    register_algorithm("SIEGE", FakeAlgorithm.factory(steps_per_update=16, rollout_length=16))
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, keys=given["keys"])) as learner:
        say({"address": learner.address})
        obey(status=learner.status)
