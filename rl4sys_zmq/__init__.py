"""rl4sys_zmq: learned policies inside real, running systems, over ZeroMQ.

A map of the house, from the ground up; a module imports only from its own room and from lower floors:

- F0 `errors`, `resource`, `counters`, `late`: how things fail, who owns them, what is counted, what loads when it is first used.
- F1 `values`: what flows: segments, policy specs, policy snapshots, spaces.
- F2 `config`: what users say. `wire`: how it is written. `weights`: diffs and digests.
- F3 `transports`: how it travels: tcp, ipc, inproc. `delivery`: the protocol of trajectories, without I/O. `policies`: acting
  in numpy.
- F4 `security`: keys, the access list, authentication and authorization.
- F5 `calls`: how one asks another: calls with deadlines, at most once, and notices.
- F6 `actor` and `learner`: two wings with no connecting door; they meet only as bytes.
- F7 `serving`: inference, environments, actions and trainers as services. `ops`: status, plots. `testing`: public test tools.
- F8 `bench`: what benchmarks measure with.
- F9 `cli`: the commands ``rl4sys-learner`` and ``rl4sys-actor``.

The names below are loaded when first used; importing this package imports nothing heavy, and never torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq._lazy import load_late

if TYPE_CHECKING:
    from rl4sys_zmq.actor import RL4SysAction, RL4SysAgent, RL4SysTrajectory
    from rl4sys_zmq.config import AgentConfig
    from rl4sys_zmq.errors import RL4SysError

__version__ = "0.1.0"

__all__ = ["AgentConfig", "RL4SysAction", "RL4SysAgent", "RL4SysError", "RL4SysTrajectory", "__version__"]

__getattr__ = load_late(
    __name__,
    {
        "actor": (
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
