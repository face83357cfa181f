"""Reinforcement learning policies embedded in real, running systems, over ZeroMQ.

An actor (`RL4SysAgent`) runs inside a host program and chooses its actions. A learner trains the policy on another thread,
process or machine. `FrozenAgent` needs no learner: it acts with an exported policy. `train` runs a learner
and its actors in one call.

The rooms, each of which imports only from itself and from rooms before it:

- The core: `errors`, `interfaces` and other small modules; `values`; `config`, `wire`, `weights`; `layers`, `transports`,
  `delivery`, `replay`; `policies`, `security`; `rpc`; `actor` and `learner`, which exchange only messages.
- Batteries, which reach the core through registries: `algorithms`, `remote`, `relay`, `serving`, `compat`; `fleet`, `capacity`.
- Tools: `ops`, `testing`; `cli`.

Public names are loaded when first used. Importing this package never imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq._lazy import lazy_getattr

if TYPE_CHECKING:
    from rl4sys_zmq.actor import FrozenAgent, RL4SysAction, RL4SysAgent, RL4SysTrajectory
    from rl4sys_zmq.config import AgentConfig
    from rl4sys_zmq.errors import RL4SysError
    from rl4sys_zmq.ops.train import Evaluation, TrainResult, train

__version__ = "0.1.0"

__all__ = [
    "AgentConfig",
    "Evaluation",
    "FrozenAgent",
    "RL4SysAction",
    "RL4SysAgent",
    "RL4SysError",
    "RL4SysTrajectory",
    "TrainResult",
    "__version__",
    "train",
]

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
        "ops.train": ("Evaluation", "TrainResult", "train"),
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
