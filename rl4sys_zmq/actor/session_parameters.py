"""What an actor knows of its learner: the rules of the session, and what a waiting host thread looks at."""

from __future__ import annotations

from dataclasses import dataclass

from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.wire.messages import Welcome

__all__ = ["CreditGate", "SessionParameters"]


@dataclass(frozen=True, slots=True)
class SessionParameters:
    """The rules that the learner said last, or that the policy cache kept. Each as in `Welcome`."""

    generation: int
    algorithm_name: str
    algorithm_type: str
    rollout_length: int
    max_policy_lag: int
    on_lag: str
    max_message_bytes: int
    max_segment_steps: int
    inference: str

    @classmethod
    def of(cls, welcome: Welcome) -> SessionParameters:
        """Those that a learner says; a host can't act in segments of no steps."""
        said = {name: getattr(welcome, name) for name in cls.__slots__}
        return cls(**{**said, "max_segment_steps": max(1, welcome.max_segment_steps)})


@dataclass(frozen=True, slots=True)
class CreditGate:
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
