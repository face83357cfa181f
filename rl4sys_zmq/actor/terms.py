"""What an actor must know of its learner's rules."""

from __future__ import annotations

from dataclasses import dataclass

from rl4sys_zmq.wire.messages import Welcome

__all__ = ["Terms"]


@dataclass(frozen=True, slots=True)
class Terms:
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
    def of(cls, welcome: Welcome) -> Terms:
        """Those that a learner says; a host can't act in segments of no steps."""
        said = {name: getattr(welcome, name) for name in cls.__slots__}
        return cls(**{**said, "max_segment_steps": max(1, welcome.max_segment_steps)})
