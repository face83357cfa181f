"""The check that a replay fits in the memory of the machine that trains."""

from __future__ import annotations

from rl4sys_zmq.errors import ConfigError


def check_replay_size(steps: int, size: int, available: int, files: str = "") -> None:
    """Check that a full replay is not larger than the memory that the process can have."""
    if size > available:
        raise ConfigError(
            f"algorithm_parameters.buffer_size: a full replay of {steps:,} steps needs {size:,} bytes, and the learner's machine "
            f"has {available:,} bytes of memory; use a smaller buffer_size{files and f', or {files}'}",
            key="algorithm_parameters.buffer_size",
        )
