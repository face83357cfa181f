"""rl4sys_zmq: learned policies inside real, running systems, over ZeroMQ.

A map of the house, from the ground up; a module imports only from its own room and from lower floors:

- F0 `errors`, `resource`, `counters`: how things fail, who owns them, what is counted.
- F1 `values`: what flows: segments, policy specs, policy snapshots, spaces.
- F2 `config`: what users say. `wire`: how it is written. `weights`: diffs and digests.
- F3 `transports`: how it travels: tcp, ipc, inproc. `delivery`: the protocol, without I/O.
- F4 `actor` and `learner`: two wings with no connecting door; they meet only as bytes.
- F5 `ops`: status, plots. `testing`: public test tools.
- F6 `bench`: what benchmarks measure with.
- F7 `cli`: the commands ``rl4sys-learner`` and ``rl4sys-actor``.

The names below are loaded when first used; importing this package imports nothing heavy, and never torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl4sys_zmq.actor import RL4SysAction, RL4SysAgent, RL4SysTrajectory
    from rl4sys_zmq.config import AgentConfig
    from rl4sys_zmq.errors import RL4SysError

__version__ = "0.1.0"

__all__ = ["AgentConfig", "RL4SysAction", "RL4SysAgent", "RL4SysError", "RL4SysTrajectory", "__version__"]

_HOMES = {
    "AgentConfig": "rl4sys_zmq.config",
    "RL4SysAction": "rl4sys_zmq.actor",
    "RL4SysAgent": "rl4sys_zmq.actor",
    "RL4SysError": "rl4sys_zmq.errors",
    "RL4SysTrajectory": "rl4sys_zmq.actor",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
