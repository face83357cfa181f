"""The parameters of the actor's session, and the conditions that a waiting host thread checks."""

from __future__ import annotations

from dataclasses import dataclass

from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.wire.messages import Welcome

__all__ = ["CreditGate", "SessionParameters"]


@dataclass(frozen=True, slots=True)
class SessionParameters:
    """The session parameters that the learner sent last, or that the policy cache kept. Each field is as in `Welcome`."""

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
        """Return the parameters of a `Welcome`, with `max_segment_steps` raised to 1 if it is lower."""
        said = {name: getattr(welcome, name) for name in cls.__slots__}
        return cls(**{**said, "max_segment_steps": max(1, welcome.max_segment_steps)})


@dataclass(frozen=True, slots=True)
class CreditGate:
    """The conditions that a waiting host thread checks, as one immutable value.

    Attributes:
        limit_steps: A segment can start while fewer steps than this are finished, counted since the start.
        generation: The number of the learner thread that trains the policy. A policy of another generation is out of date.
        min_version: The lowest version that the policy can have.
        error: The error that ends all waits, or None.
        stage: What the I/O thread waits for, for messages.
    """

    limit_steps: int
    generation: int
    min_version: int
    error: RL4SysError | None
    stage: str
