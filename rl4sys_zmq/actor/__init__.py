"""The actor: a light client inside the host program. It never imports torch.

- `agent`: `RL4SysAgent`, the public interface. `context`: the parts of an agent in one process.
- `acting`: chooses actions. `fallback`: actions for when no policy can choose. `remote`: actions from the learner's service.
- `trajectory`: begins, cuts and ends episodes. `segments`: writes the columns and waits for late rewards. `inputs`: checks
  observations and masks.
- `outbox`: the bounded queue from host threads to the I/O thread.
- `io`: the I/O thread, which owns the sockets. It uses `weight_subscriber` (keeps the policy current), `batch_sender` (decides
  which segments leave), `segment_queue` (the outbox itself, or the spool) and `io_scheduler` (decides when the thread rests).
"""

from rl4sys_zmq.actor.action import RL4SysAction
from rl4sys_zmq.actor.agent import RL4SysAgent
from rl4sys_zmq.actor.trajectory import RL4SysTrajectory
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.policies import PolicyEntry, build_policy, register_policy

__all__ = ["AgentConfig", "PolicyEntry", "RL4SysAction", "RL4SysAgent", "RL4SysTrajectory", "build_policy", "register_policy"]
