"""Algorithms by name. The two that ship are imported only when asked for, because they import torch."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import cast

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.base import Algorithm
from rl4sys_zmq.values import PolicySpec, Space

__all__ = [
    "AlgorithmFactory",
    "algorithm_names",
    "make_algorithm",
    "planned_policy",
    "register_algorithm",
    "require_algorithm",
    "resolve_algorithm",
]

AlgorithmFactory = Callable[[Space, Space, Mapping[str, object], int], Algorithm]
"""``factory(observation_space, action_space, parameters, seed) -> Algorithm``; raises ConfigError for bad parameters.

A factory may have a function ``plan(observation_space, action_space, parameters) -> PolicySpec``, which says what policy it would
build and builds nothing. Then one that is too large is refused before it takes memory.
"""

_SHIPPED = {"PPO": "rl4sys_zmq.learner.algorithms.ppo:PPO", "DQN": "rl4sys_zmq.learner.algorithms.dqn:DQN"}
_registered: dict[str, AlgorithmFactory] = {}


def register_algorithm(name: str, factory: AlgorithmFactory) -> None:
    """Makes an algorithm available to configurations under `name` (case does not matter); a later one replaces it."""
    _registered[name.upper()] = factory


def algorithm_names() -> list[str]:
    """All names that a configuration may use."""
    return sorted({*_SHIPPED, *_registered})


def require_algorithm(name: str) -> None:
    """Checks a name without importing anything.

    Raises:
        ConfigError: for an unknown name, with the nearest one.
    """
    key = name.upper()
    if key not in _registered and key not in _SHIPPED:
        near = difflib.get_close_matches(key, algorithm_names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown algorithm {name!r}; valid: {', '.join(algorithm_names())}{hint}", key="algorithm_name")


def resolve_algorithm(name: str) -> AlgorithmFactory:
    """The factory registered under `name`; the shipped ones are imported now, torch with them.

    Raises:
        ConfigError: for an unknown name, or when the shipped algorithms' extra is not installed.
    """
    require_algorithm(name)
    key = name.upper()
    if key in _registered:
        return _registered[key]
    module, attribute = _SHIPPED[key].split(":")
    try:
        return cast(AlgorithmFactory, getattr(importlib.import_module(module), attribute))
    except ModuleNotFoundError as exc:
        message = f"{name} needs the learner extra: pip install 'rl4sys-zmq[learner]' ({exc})"
        raise ConfigError(message, key="algorithm_name") from exc


def make_algorithm(
    name: str, observation_space: Space, action_space: Space, parameters: Mapping[str, object], seed: int
) -> Algorithm:
    """Builds the algorithm `name` for one client."""
    return resolve_algorithm(name)(observation_space, action_space, parameters, seed)


def planned_policy(
    name: str, observation_space: Space, action_space: Space, parameters: Mapping[str, object]
) -> PolicySpec | None:
    """The policy that the algorithm `name` would build, by arithmetic alone; None for one that does not say.

    Raises:
        ConfigError: for an unknown algorithm or bad parameters.
    """
    plan = getattr(resolve_algorithm(name), "plan", None)
    return None if plan is None else cast(PolicySpec, plan(observation_space, action_space, parameters))
