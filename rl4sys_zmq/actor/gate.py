"""What the I/O thread lets waiting hosts know."""

from __future__ import annotations

from dataclasses import dataclass

from rl4sys_zmq.errors import RL4SysError

__all__ = ["Gate"]


@dataclass(frozen=True, slots=True)
class Gate:
    """What a host that waits must know, as one value.

    Attributes:
        limit_steps: it may start a segment while it has finished fewer steps than this, counted since the start.
        generation: of the policy to start with.
        min_version: the least version of it.
        error: why nothing will come, or None.
        stage: what the I/O thread is waiting for, for messages.
    """

    limit_steps: int
    generation: int
    min_version: int
    error: RL4SysError | None
    stage: str
