"""The names that programs for RL4Sys import. RL4Sys is an earlier library with the same calls; only imports must be changed.

`RL4SysAgent`, `RL4SysAction` and `RL4SysTrajectory` are those of `rl4sys_zmq`. The other names are RL4Sys's utilities, which
write files with the same names and columns. The profilers need the extra ``compat``.
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
