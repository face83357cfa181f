"""Reinforcement learning policies embedded in real, running systems, over ZeroMQ.

An actor (`RL4SysAgent`) runs inside a host program and chooses its actions. A learner trains the policy on another thread,
process or machine. `FrozenAgent` acts with a policy that was exported from a learner, without one.

The subpackages form layers. A module imports only from its own subpackage and from lower layers:

- F0 `errors`, `resource`, `counters` and other small modules: exceptions, base classes for threads, counters.
- F1 `values`: segments, policy specs, policy snapshots (weights) and spaces.
- F2 `config`: options and configuration files. `wire`: the message format. `weights`: weight diffs and digests.
- F3 `transports`: ZeroMQ sockets over tcp, ipc and inproc. `delivery`: the delivery protocol for segments, without I/O.
  `policies`: inference in numpy.
- F4 `security`: user keys, the access list, authentication and authorization.
- F5 `rpc`: remote calls with deadlines, calls that run at most once, and publish-subscribe.
- F6 `actor` and `learner`: the two sides. Neither imports the other; they exchange only messages.
- F7 `serving`: inference, environments, actions and trainers as services. `ops`: status, diagnosis and plots.
  `testing`: public test tools. `compat`: further names that programs for RL4Sys import.
- F8 `cli`: the commands ``rl4sys-learner`` and ``rl4sys-actor``.

Public names are loaded when first used. Importing this package never imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq._lazy import lazy_getattr

if TYPE_CHECKING:
    from rl4sys_zmq.actor import FrozenAgent, RL4SysAction, RL4SysAgent, RL4SysTrajectory
    from rl4sys_zmq.config import AgentConfig
    from rl4sys_zmq.errors import RL4SysError

__version__ = "0.1.0"

__all__ = ["AgentConfig", "FrozenAgent", "RL4SysAction", "RL4SysAgent", "RL4SysError", "RL4SysTrajectory", "__version__"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "actor": (
            "FrozenAgent",
            "RL4SysAction",
            "RL4SysAgent",
            "RL4SysTrajectory",
        ),
        "config": ("AgentConfig",),
        "errors": ("RL4SysError",),
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
