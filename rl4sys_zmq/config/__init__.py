"""Configuration classes: frozen, validated once, and read from RL4Sys's JSON files or the same in YAML.

- `AgentConfig`: the options of one actor process.
- `LearnerConfig`: the options of the learner process; `ClientConfig` is its entry for one client.
- `WeightsConfig`: the encoding of weights, for both.

For an unknown key or an invalid value they raise a `ConfigError` of one line, with the key, the file and the nearest valid key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq._lazy import lazy_getattr

if TYPE_CHECKING:
    from rl4sys_zmq.config.agent import AgentConfig
    from rl4sys_zmq.config.client import ClientConfig
    from rl4sys_zmq.config.learner import LearnerConfig
    from rl4sys_zmq.config.weights import WeightsConfig

__all__ = ["AgentConfig", "ClientConfig", "LearnerConfig", "WeightsConfig"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "agent": ("AgentConfig",),
        "client": ("ClientConfig",),
        "learner": ("LearnerConfig",),
        "weights": ("WeightsConfig",),
    },
)
