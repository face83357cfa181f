"""Configuration: frozen values, validated once, read from RL4Sys's JSON or the same in YAML.

- `AgentConfig`: what one actor process needs to know.
- `LearnerConfig`: what the learner process needs to know; `ClientConfig` is its entry for one client.

A key that is unknown, of a wrong type or impossible is a `ConfigError` of one line that names the key, the file and the
nearest valid name.
"""

from rl4sys_zmq.config.agent import AgentConfig
from rl4sys_zmq.config.client import ClientConfig
from rl4sys_zmq.config.learner import LearnerConfig

__all__ = ["AgentConfig", "ClientConfig", "LearnerConfig"]
