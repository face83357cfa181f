"""The registry entry of an algorithm: what commands and the learner need before the algorithm is built.

The parameters of an algorithm are one frozen dataclass, read like all other options. Declare each field with
`rl4sys_zmq.config.options.option`: its check, its default, its synonyms in other projects, and its meaning. `read_parameters`
converts a mapping from a configuration into the dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar, cast

from rl4sys_zmq.config.options import number, optional, parse_options
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.base import Algorithm
from rl4sys_zmq.names import check_name
from rl4sys_zmq.plugins import load_object
from rl4sys_zmq.values import PolicySpec, Space

__all__ = [
    "AlgorithmEntry",
    "AlgorithmFactory",
    "PolicyPlan",
    "Preset",
    "READ_ELSEWHERE",
    "gradient_norm",
    "parameter_table",
    "read_parameters",
    "readings",
]


T = TypeVar("T")

READ_ELSEWHERE = frozenset(
    {"input_size", "act_dim", "seed", "continuous", "act_limit", "observation_space", "action_space"}
    | {"max_policy_lag", "on_lag", "pacing_lag", "publish_every_updates"}
)
"""Keys that any algorithm's parameters can contain and that the learner itself reads: spaces and learning options."""


def read_parameters(cls: type[T], given: Mapping[str, object], *, algorithm: str) -> T:
    """Read `given` into the parameter dataclass `cls`.

    Args:
        cls: A dataclass whose fields were declared with `option`. Its optional class attribute ``ignored`` names keys that are
            accepted and have no effect.
        given: Parameters by name or synonym. Those that the learner itself reads are skipped.
        algorithm: The algorithm's name, for messages.

    Raises:
        ConfigError: If a key is unknown, a value has a wrong type or is out of range, or two names of one parameter disagree.
    """
    elsewhere = READ_ELSEWHERE | frozenset(getattr(cls, "ignored", ()))
    values = parse_options(cls, given, extra=elsewhere, section="algorithm_parameters", owner=algorithm)
    return cls(**{key: value for key, value in values.items() if key not in elsewhere})


def gradient_norm(value: object) -> float | None:
    """Return the largest norm of a gradient, or None (no limit) for null, 0 and less. Raise `InvalidValue` for anything else."""
    limit = optional(number(-1e18, 1e18))(value)
    return limit if limit is not None and limit > 0 else None


def readings(parameters: object) -> list[str]:
    """Return how an algorithm reads keys of other projects, one line each: the result of its parameters' method ``readings``."""
    found: list[str] = getattr(parameters, "readings", list)()
    return found


def parameter_table(cls: type[Any]) -> list[tuple[str, object, tuple[str, ...], str]]:
    """Return each parameter's name, default, synonyms and meaning, in the order of declaration."""
    return [
        (f.name, None if f.default is MISSING else f.default, f.metadata["names"], f.metadata["doc"])
        for f in fields(cls)
        if "check" in f.metadata
    ]


AlgorithmFactory = Callable[[Any, Space, Mapping[str, object], int], Algorithm]
"""``factory(observation_space, action_space, parameters, seed) -> Algorithm``. The first space is an `ObservationSpace`.

It raises ConfigError for bad parameters, and for a space that the algorithm does not support. `flat_space` of
`rl4sys_zmq.values.observations` refuses trees of observations.
"""

PolicyPlan = Callable[[Any, Space, Mapping[str, object]], PolicySpec]
"""``plan(observation_space, action_space, parameters) -> PolicySpec``. Returns the policy that would be trained.

It builds nothing.
"""


@dataclass(frozen=True, slots=True)
class Preset:
    """Tested settings with which an algorithm solves one Gymnasium task, for the demo, the benchmarks and the slow tests.

    Attributes:
        parameters: The ``algorithm_parameters``.
        num_envs: Environments per actor process.
        actors: Actor processes.
        pacing_lag: How many batches actors may collect ahead of the learner (k in the pacing rule).
        target_return: Mean return of 100 episodes at which the task counts as solved.
    """

    parameters: Mapping[str, object] = field(repr=False)
    num_envs: int
    actors: int
    pacing_lag: int
    target_return: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmEntry:
    """One algorithm in the registry.

    Importing the module that creates an entry must be cheap and must not import torch. For this reason the factory can be a
    string.

    Attributes:
        name: The name in configurations; case does not matter.
        factory: The factory, or ``"package.module:attribute"``, which is imported when the first algorithm is created.
        summary: One line of documentation.
        kind: ``onpolicy`` or ``offpolicy``; empty if not declared.
        parameters: The dataclass of the parameters, declared with `rl4sys_zmq.config.options.option`; None for an algorithm
            that reads its parameters itself.
        plan: Returns the policy that the algorithm would train. With it, `rl4sys-learner config check` builds nothing, and a
            policy that is too large is refused before it takes memory.
        presets: Settings that solve a task, by Gymnasium id.
        extra: The extra of this package that the factory needs, for the message if a module is missing; empty for none.
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
        """Return the factory. Import it now if it is a string.

        Raises:
            ConfigError: If it cannot be imported.
        """
        if not isinstance(self.factory, str):
            return self.factory
        try:
            return cast(AlgorithmFactory, load_object(self.factory))
        except (ImportError, AttributeError) as exc:
            remedy = f"pip install 'rl4sys-zmq[{self.extra}]'" if self.extra else "install what is missing, or correct the entry"
            raise ConfigError(
                f"algorithm {self.name} cannot be loaded from {self.factory} ({exc}): {remedy}", key="algorithm_name"
            ) from exc

    def read(self, parameters: Mapping[str, object]) -> object:
        """Return `parameters` as the entry's dataclass; None for an algorithm that reads its parameters itself.

        Raises:
            ConfigError: If a parameter is unknown, has a wrong type or is out of range.
        """
        return None if self.parameters is None else read_parameters(self.parameters, parameters, algorithm=self.name)
