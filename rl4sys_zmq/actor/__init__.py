"""The actor, which runs inside the host program, chooses actions, and sends the steps to the learner.

It never imports torch. An episode is sent in segments: runs of consecutive steps, stored as columns. The modules:

- `agent`: `RL4SysAgent`, the public interface. `components`: the parts of an agent in one process.
- `acting`: chooses actions, also when no policy can choose. `remote`: gets actions from the learner's inference service.
- `trajectory`: begins and ends episodes, and cuts them into segments. `segments`: writes the columns of a segment and waits for
  late rewards. `inputs`: checks observations and masks.
- `io`: the I/O thread, which owns the sockets. `weight_subscriber` keeps its policy current, `batch_sender` decides which
  segments it sends, and `io_scheduler` decides when it sleeps.
- `frozen`: `FrozenAgent`, which acts with an exported policy and has no learner.
- `segment_queue`: the bounded queue from host threads to the I/O thread, in memory. `spool`: the same queue on disk.
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
