"""Configuration: frozen values, validated once, read from RL4Sys's JSON or the same in YAML.

- `AgentConfig`: what one actor process needs to know.
- `LearnerConfig`: what the learner process needs to know; `ClientConfig` is its entry for one client.
- `WeightsConfig`: how weights travel, in both.
- `AccessList`: which keys may do what, from ``clients.toml``: a `Peer` with its `Quota` for each.

A key that is unknown, of a wrong type or impossible is a `ConfigError` of one line that names the key, the file and the
nearest valid name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl4sys_zmq.config.access import AccessList, Peer, Quota, load_access
    from rl4sys_zmq.config.agent import AgentConfig
    from rl4sys_zmq.config.client import ClientConfig
    from rl4sys_zmq.config.learner import LearnerConfig
    from rl4sys_zmq.config.weights import WeightsConfig

__all__ = ["AccessList", "AgentConfig", "ClientConfig", "LearnerConfig", "Peer", "Quota", "WeightsConfig", "load_access"]

_HOMES = {
    "AccessList": "access",
    "AgentConfig": "agent",
    "ClientConfig": "client",
    "LearnerConfig": "learner",
    "Peer": "access",
    "Quota": "access",
    "WeightsConfig": "weights",
    "load_access": "access",
}
"""The module of each name that is loaded when first used: most programs are an actor or a learner, and need a part."""


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return value
