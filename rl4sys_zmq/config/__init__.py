"""Immutable configuration classes, validated when they are created. JSON and YAML files, also RL4Sys's, are a source.

- `AgentConfig`, `LearnerConfig`, `RelayConfig`: the options of an actor, a learner and a relay process.
- `ClientConfig`: the learner's options for one client, with `EvaluationConfig` and `DemonstrationsConfig`.
- `WeightsConfig`, `ResourcesConfig`, `AlarmsConfig`, `RelayAddress`, `RelayRule`: groups of options in these classes.

For an unknown key or an invalid value, each class raises a `ConfigError` of one line: the key, the file, and the valid key that
is spelled most similarly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq._lazy import lazy_getattr

if TYPE_CHECKING:
    from rl4sys_zmq.config.addresses import RelayAddress, RelayRule
    from rl4sys_zmq.config.agent import AgentConfig
    from rl4sys_zmq.config.client import ClientConfig, DemonstrationsConfig, EvaluationConfig, ResourcesConfig
    from rl4sys_zmq.config.learner import AlarmsConfig, LearnerConfig
    from rl4sys_zmq.config.relay import RelayConfig
    from rl4sys_zmq.config.section import WeightsConfig

__all__ = [
    "AgentConfig",
    "AlarmsConfig",
    "ClientConfig",
    "DemonstrationsConfig",
    "EvaluationConfig",
    "LearnerConfig",
    "RelayAddress",
    "RelayConfig",
    "RelayRule",
    "ResourcesConfig",
    "WeightsConfig",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "agent": ("AgentConfig",),
        "addresses": ("RelayAddress", "RelayRule"),
        "client": ("ClientConfig", "DemonstrationsConfig", "EvaluationConfig", "ResourcesConfig"),
        "learner": ("AlarmsConfig", "LearnerConfig"),
        "relay": ("RelayConfig",),
        "section": ("WeightsConfig",),
    },
)
