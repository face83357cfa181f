"""The actor: a light client that lives in somebody else's program. Never imports torch.

- `RL4SysAgent`: what the host calls. `RL4SysTrajectory`, `RL4SysAction`: what it holds.
- `policies`: policies in numpy, built from a `PolicySpec`.

An agent's storeys: `core`, `standins`, `acting`, `batch`, `agent`; `hosts` is what each host thread has of its own. `io` owns
the sockets in a thread of its own; there `follower` keeps the policy current, `shipping` decides which segments leave, from a
`supply` (the outbox itself, or the spool), and `pace` when the thread rests. `outbox` is the bounded queue to the thread;
`builder` writes a segment's columns; `handover` waits for late rewards; `inputs` checks what the host gives.
"""

from rl4sys_zmq.actor.agent import RL4SysAgent
from rl4sys_zmq.actor.trajectory import RL4SysAction, RL4SysTrajectory
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.policies import PolicyEntry, build_policy, register_policy

__all__ = ["AgentConfig", "PolicyEntry", "RL4SysAction", "RL4SysAgent", "RL4SysTrajectory", "build_policy", "register_policy"]
