"""The registry of algorithms: built-in ones, those a program registers, and those of installed distributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import overload

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.base import Algorithm
from rl4sys_zmq.learner.algorithms.entry import AlgorithmEntry, AlgorithmFactory
from rl4sys_zmq.plugins import Registry
from rl4sys_zmq.values import ObservationSpace, PolicySpec, Space

__all__ = ["ALGORITHMS", "make_algorithm", "planned_policy", "register_algorithm"]

ALGORITHMS = Registry(
    AlgorithmEntry,
    {
        "PPO": "rl4sys_zmq.learner.algorithms.ppo_parameters:ENTRY",
        "DQN": "rl4sys_zmq.learner.algorithms.dqn_parameters:ENTRY",
    },
    noun="algorithm",
    group="rl4sys_zmq.algorithms",
    key="algorithm_name",
    fold=str.upper,
)
"""All algorithms. To add one to this package, write a module with its entry and add its name here."""


@overload
def register_algorithm(entry: AlgorithmEntry, /) -> None: ...


@overload
def register_algorithm(name: str, factory: AlgorithmFactory, /) -> None: ...


def register_algorithm(entry: AlgorithmEntry | str, factory: AlgorithmFactory | None = None, /) -> None:
    """Make an algorithm available to configurations in this process. It replaces an earlier one of the same name.

    Args:
        entry: The entry, or a name in any case.
        factory: With a name, the factory of the algorithm. Its attribute ``plan``, if present, becomes the entry's.

    Raises:
        ConfigError: If a name comes without a factory, or an entry with one.
    """
    if isinstance(entry, str) and factory is not None:
        entry = AlgorithmEntry(name=entry, factory=factory, plan=getattr(factory, "plan", None))
    elif isinstance(entry, str) or factory is not None:
        raise ConfigError("register_algorithm takes an AlgorithmEntry, or a name and a factory", key="algorithm_name")
    ALGORITHMS.add(entry, replace=True)


def make_algorithm(
    name: str, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
) -> Algorithm:
    """Build the algorithm `name` for one client.

    Raises:
        ConfigError: If the algorithm is unknown or cannot be loaded, or a parameter is invalid.
    """
    return ALGORITHMS.get(name).load()(observation_space, action_space, parameters, seed)


def planned_policy(
    name: str, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object]
) -> PolicySpec | None:
    """Return the policy that the algorithm `name` would train, without building it; None if its entry has no plan.

    Raises:
        ConfigError: If the algorithm is unknown or a parameter is invalid.
    """
    plan = ALGORITHMS.get(name).plan
    return None if plan is None else plan(observation_space, action_space, parameters)
