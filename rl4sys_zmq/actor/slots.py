"""The bases of the objects of a step, with the fields that compiled code reads and writes where it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl4sys_zmq import native

_native = None if native.default() == "never" else native.load()

COMPILED = _native is not None
"""True if compiled code knows the places of the fields."""

if TYPE_CHECKING or _native is None:

    class ActionSlots:
        """The fields of `RL4SysAction`."""

        __slots__ = ("done", "env_act", "known_reward", "log_prob", "mask", "obs", "raw", "row", "stamp", "writer")

    class TrajectorySlots:
        """Fields of `RL4SysTrajectory`."""

        __slots__ = ("completed", "episodes", "last", "policy", "requested", "selected_under", "writer")

    class WriterSlots:
        """Fields of `SegmentWriter`."""

        __slots__ = ("left", "limit", "masks", "missing", "pending", "rows", "stamp", "steps")

        def bind_columns(self, *columns: Any) -> None:
            """Do nothing. Only compiled code needs the memory of the columns."""

else:
    ActionSlots, TrajectorySlots, WriterSlots = _native.ActionSlots, _native.TrajectorySlots, _native.WriterSlots
