"""The actor: a light client that lives in somebody else's program. Never imports torch.

- `RL4SysAgent`: what the host calls. `RL4SysTrajectory`, `RL4SysAction`: what it holds.
- `policies`: policies in numpy, built from a `PolicySpec`.

`agent` is a facade. `context` is what an agent consists of in one process. `acting` chooses actions; `fallback` does where no
policy can, `remote` asks the learner. `trajectory` begins, cuts and ends episodes; `segments` writes the columns and waits for
late rewards; `inputs` checks what the host gives. `outbox` is the bounded queue to the I/O thread. `io` is that thread and owns
the sockets. There `weight_subscriber` keeps the policy current, `batch_sender` decides which segments leave, from a
`segment_queue` (the outbox itself, or the spool), and `io_scheduler` when the thread rests.
"""

from rl4sys_zmq.actor.action import RL4SysAction
from rl4sys_zmq.actor.agent import RL4SysAgent
from rl4sys_zmq.actor.trajectory import RL4SysTrajectory
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.policies import PolicyEntry, build_policy, register_policy

__all__ = ["AgentConfig", "PolicyEntry", "RL4SysAction", "RL4SysAgent", "RL4SysTrajectory", "build_policy", "register_policy"]
