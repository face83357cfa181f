"""The names that programs for RL4Sys, an earlier library with the same calls, import: only their imports change.

`RL4SysAgent`, `RL4SysAction` and `RL4SysTrajectory` are those of `rl4sys_zmq`. The others are RL4Sys's utilities, which write
its files and columns. The profilers need the extra ``compat``.
"""

from __future__ import annotations

from rl4sys_zmq.actor import RL4SysAction, RL4SysAgent, RL4SysTrajectory
from rl4sys_zmq.compat.utilities import (
    CPUProfiler,
    LogLevel,
    MemoryProfiler,
    RL4SysLogConfig,
    StepPerSecLogger,
    StructuredLogger,
    compute_field_statistics,
    setup_rl4sys_logging,
)

__all__ = ["CPUProfiler", "LogLevel", "MemoryProfiler", "RL4SysAction", "RL4SysAgent", "RL4SysLogConfig", "RL4SysTrajectory"]
__all__ += ["StepPerSecLogger", "StructuredLogger", "compute_field_statistics", "setup_rl4sys_logging"]
