"""The actor, which runs inside the host program, chooses actions, and sends the steps to the learner.

Host threads choose actions (`acting`) and record them in episodes (`trajectory`) and segments (`segments`). The I/O thread
(`io`) sends them. `agent` is the public interface, `components` the parts of one agent. `FrozenAgent` acts without a learner.
"""

from rl4sys_zmq.actor.action import RL4SysAction
from rl4sys_zmq.actor.agent import RL4SysAgent
from rl4sys_zmq.actor.frozen import FrozenAgent, FrozenTrajectory
from rl4sys_zmq.actor.trajectory import RL4SysTrajectory
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.policies import PolicyEntry, build_policy, register_policy

__all__ = [
    "AgentConfig",
    "FrozenAgent",
    "FrozenTrajectory",
    "PolicyEntry",
    "RL4SysAction",
    "RL4SysAgent",
    "RL4SysTrajectory",
    "build_policy",
    "register_policy",
]
