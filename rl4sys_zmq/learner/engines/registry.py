"""The registry of engines (ways to run the code that trains a client): built-in ones, and those of installed Python packages."""

from __future__ import annotations

from rl4sys_zmq.learner.engines.base import EngineEntry
from rl4sys_zmq.plugins import Registry

__all__ = ["ENGINES"]

ENGINES = Registry(
    EngineEntry,
    {
        "thread": "rl4sys_zmq.learner.engines.thread:ENTRY",
        "process": "rl4sys_zmq.learner.engines.process:ENTRY",
    },
    noun="engine",
    group="rl4sys_zmq.engines",
    key="engine",
    fold=str.lower,
)
"""The registry of all engines, by name.

To add an engine to this package, write a module that contains an `EngineEntry`, and add the location of the entry here.
"""
