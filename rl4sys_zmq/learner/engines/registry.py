"""The registry of engines: built-in ones, and those of installed packages."""

from __future__ import annotations

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.engines.base import EngineEntry
from rl4sys_zmq.plugins import Registry

ENGINES = Registry(
    EngineEntry,
    {
        "thread": "rl4sys_zmq.learner.engines.thread:ENTRY",
        "process": "rl4sys_zmq.learner.engines.process:ENTRY",
        "ray": "rl4sys_zmq.remote.ray_engine:ENTRY",
    },
    noun="engine",
    group="rl4sys_zmq.engines",
    key="engine",
    fold=str.lower,
)
"""The registry of all engines, by name.

To add an engine to this package, write a module that contains an `EngineEntry`, and add the location of the entry here.
"""


def check_engines(config: LearnerConfig) -> None:
    entries = {name: ENGINES.get(name) for name in config.engines}
    if config.resources is not None and not any(entry.reserves for entry in entries.values()):
        raise ConfigError(f"resources: the engine {config.engine} does not reserve resources; use engine ray", key="resources")
    for client_id, client in config.clients.items():
        engine = client.engine or config.engine
        if client.resources is not None and not entries[engine].reserves:
            key = f"clients.{client_id}.resources"
            raise ConfigError(f"{key}: the engine {engine} does not reserve resources; use engine ray", key=key)
    if config.ray_address is not None and all(entry.name != "ray" for entry in entries.values()):
        raise ConfigError("ray_address: no client has the engine ray; use engine ray", key="ray_address")
