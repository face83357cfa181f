"""An algorithm's entry in the registry: everything that commands and the learner know of it before it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.base import Algorithm
from rl4sys_zmq.learner.algorithms.parameters import read_parameters
from rl4sys_zmq.names import check_name
from rl4sys_zmq.plugins import load_object
from rl4sys_zmq.values import PolicySpec, Space

__all__ = ["AlgorithmEntry", "AlgorithmFactory", "PolicyPlan", "Preset"]

AlgorithmFactory = Callable[[Space, Space, Mapping[str, object], int], Algorithm]
"""``factory(observation_space, action_space, parameters, seed) -> Algorithm``; raises ConfigError for bad parameters."""

PolicyPlan = Callable[[Space, Space, Mapping[str, object]], PolicySpec]
"""``plan(observation_space, action_space, parameters) -> PolicySpec``: the policy that would be trained; nothing is built."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings that are known to solve one task, for the demo, the benchmarks and the slow tests.

    Attributes:
        parameters: ``algorithm_parameters``.
        num_envs: environments per actor process.
        actors: actor processes.
        pacing_lag: how many batches actors may collect ahead of the learner (the k of the pacing rule).
        target_return: the mean return of 100 episodes at which the task counts as solved.
    """

    parameters: Mapping[str, object] = field(repr=False)
    num_envs: int
    actors: int
    pacing_lag: int
    target_return: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmEntry:
    """One algorithm as the registry holds it.

    Importing the module that makes an entry must be cheap: no torch. The factory may be a string for that reason.

    Attributes:
        name: what configurations call it; case does not matter.
        factory: the factory, or ``"package.module:attribute"``, which is imported when the first algorithm is made.
        summary: one line of documentation.
        kind: ``onpolicy`` or ``offpolicy``; empty if the entry does not say.
        parameters: the dataclass of its parameters, declared with `rl4sys_zmq.config.options.option`; None for an algorithm
            that reads them in its own way.
        plan: the policy that it would train. With it, `rl4sys-learner config check` builds nothing, and a policy that is too
            large is refused before it takes memory.
        presets: by Gymnasium id, settings that solve a task.
        extra: the extra of this package that the factory needs, for the message when a module is missing; empty for none.
    """

    name: str
    factory: AlgorithmFactory | str
    summary: str = ""
    kind: str = ""
    parameters: type[Any] | None = None
    plan: PolicyPlan | None = None
    presets: Mapping[str, Preset] = field(default_factory=dict, repr=False)
    extra: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, "algorithm_name")

    def load(self) -> AlgorithmFactory:
        """Return the factory; a string is imported now.

        Raises:
            ConfigError: when it cannot be imported.
        """
        if not isinstance(self.factory, str):
            return self.factory
        try:
            return cast(AlgorithmFactory, load_object(self.factory))
        except (ImportError, AttributeError) as exc:
            remedy = f"pip install 'rl4sys-zmq[{self.extra}]'" if self.extra else "install what it needs, or correct its entry"
            raise ConfigError(
                f"algorithm {self.name} cannot be loaded from {self.factory} ({exc}): {remedy}", key="algorithm_name"
            ) from exc

    def read(self, parameters: Mapping[str, object]) -> object:
        """Return the parameter dataclass that `parameters` make; None for an algorithm that reads them in its own way.

        Raises:
            ConfigError: for a parameter that is unknown, of a wrong type or impossible.
        """
        return None if self.parameters is None else read_parameters(self.parameters, parameters, algorithm=self.name)
