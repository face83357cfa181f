"""A fleet: many actors that one process starts, restarts after a failure, drains, and counts.

- `engine` has the interface of an engine and the report of an actor, `process` the engine for processes of this machine.
- `ray_engine` is the engine for the nodes of a Ray cluster, with `ray_driver` and `ray_worker`.
- `sizing` has the rule that grows or shrinks a fleet, a pure function.
- `supervisor` has the fleet itself.

This package imports neither torch nor Gymnasium.
"""

from rl4sys_zmq.fleet.engine import ActorEngine, ActorHandle, ActorReport
from rl4sys_zmq.fleet.process import ProcessEngine
from rl4sys_zmq.fleet.sizing import SizeLimits
from rl4sys_zmq.fleet.supervisor import Fleet, FleetConfig, FleetStatus

__all__ = [
    "ActorEngine",
    "ActorHandle",
    "ActorReport",
    "Fleet",
    "FleetConfig",
    "FleetStatus",
    "ProcessEngine",
    "SizeLimits",
]
