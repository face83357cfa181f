"""The registry entries of the algorithms of this package, whose parameters plan the policy. This module imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry, read_parameters
from rl4sys_zmq.values import ObservationSpace, PolicySpec, Space


class PolicyParameters(Protocol):
    """The parameters of an algorithm that determine its policy."""

    def policy(self, name: str, observation_space: ObservationSpace, action_space: Space, /) -> PolicySpec:
        """Return the specification of the policy of the algorithm `name`.

        Raises:
            ConfigError: If the algorithm does not support the spaces with these parameters.
        """


def own_entry(name: str, parameters: type[PolicyParameters], factory: str, **described: Any) -> AlgorithmEntry:
    """Return the registry entry of an algorithm of this package.

    Args:
        name: The name of the algorithm.
        parameters: The dataclass of its parameters.
        factory: The path of its factory below `rl4sys_zmq.algorithms`.
        described: The other attributes of the entry.
    """

    def plan(observation_space: ObservationSpace, action_space: Space, given: Mapping[str, object]) -> PolicySpec:
        return read_parameters(parameters, given, algorithm=name).policy(name, observation_space, action_space)

    factory = f"rl4sys_zmq.algorithms.{factory}"
    return AlgorithmEntry(name=name, factory=factory, parameters=parameters, plan=plan, extra="learner", **described)
