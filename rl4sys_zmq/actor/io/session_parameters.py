"""The parameters of the actor's session, and the conditions under which a host thread can start a segment."""

from __future__ import annotations

from dataclasses import dataclass

from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.wire.messages import Welcome


@dataclass(frozen=True, slots=True)
class SessionParameters:
    """The parameters of the session, from the learner's `Welcome`, which describes the fields, or the policy cache."""

    generation: int
    algorithm_name: str
    algorithm_type: str
    rollout_length: int
    max_policy_lag: int
    on_lag: str
    max_message_bytes: int
    max_segment_steps: int
    inference: str
    no_masks: str = ""

    @classmethod
    def of(cls, welcome: Welcome) -> SessionParameters:
        """Return the session parameters in `welcome`. `max_segment_steps` becomes at least 1."""
        said = {name: getattr(welcome, name) for name in cls.__slots__}
        return cls(**{**said, "max_segment_steps": max(1, welcome.max_segment_steps)})


@dataclass(frozen=True, slots=True)
class SegmentStartConditions:
    """The conditions under which a host thread can start a segment with ``overflow: wait``: the credit gate."""

    limit_steps: int  # credit: a segment can start while the actor has finished fewer steps than this, counted since its start
    generation: int  # generation that the actor's policy must have
    min_version: int  # lowest version that the actor's policy must have
    error: RL4SysError | None  # error that ends the waits of all host threads, or None
    stage: str  # event that the I/O thread waits for, as text for error messages
