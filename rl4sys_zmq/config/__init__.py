"""Configuration: frozen values, validated once, read from RL4Sys's JSON or the same in YAML.

- `AgentConfig`: what one actor process needs to know.
- `LearnerConfig`: what the learner process needs to know; `ClientConfig` is its entry for one client.
- `WeightsConfig`: how weights travel, in both.

A key that is unknown, of a wrong type or impossible is a `ConfigError` of one line that names the key, the file and the
nearest valid name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq._lazy import load_late

if TYPE_CHECKING:
    from rl4sys_zmq.config.agent import AgentConfig
    from rl4sys_zmq.config.client import ClientConfig
    from rl4sys_zmq.config.learner import LearnerConfig
    from rl4sys_zmq.config.weights import WeightsConfig

__all__ = ["AgentConfig", "ClientConfig", "LearnerConfig", "WeightsConfig"]

__getattr__ = load_late(
    __name__,
    {
        "agent": ("AgentConfig",),
        "client": ("ClientConfig",),
        "learner": ("LearnerConfig",),
        "weights": ("WeightsConfig",),
    },
)
