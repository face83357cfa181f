"""The description of an algorithm in the registry: everything that is needed before the algorithm is built.

Its parameters are a frozen dataclass, whose fields `rl4sys_zmq.config.options.option` declares. `read_parameters` converts a dict
from a configuration into it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast, dataclass_transform

from rl4sys_zmq.config.options import number, option, optional, parse_options
from rl4sys_zmq.errors import ConfigError, config_error
from rl4sys_zmq.interfaces import Algorithm
from rl4sys_zmq.learner.registry.algorithm_protocols import PACING_LAG
from rl4sys_zmq.learner.registry.like import libraries_of, translated
from rl4sys_zmq.names import check_name
from rl4sys_zmq.plugins import load_factory
from rl4sys_zmq.values import ObservationSpace, PolicySpec, Space

T = TypeVar("T")

LEAST_EPSILON = 1e-20
"""The smallest epsilon of an optimizer. With 0, a weight whose gradients were all 0 would get the step 0 / 0."""

READ_ELSEWHERE = frozenset(
    {"input_size", "act_dim", "seed", "continuous", "act_limit", "observation_space", "action_space"}
    | {"max_policy_lag", "on_lag", "pacing_lag", "publish_every_updates"}
)
"""Keys in the parameters of any algorithm that the learner reads: the spaces, the seed and options of the learner."""


CHOOSE_NETWORK = "A2C, A3C, C51, DDPG, DQN, IMPALA, PPO, REINFORCE, RPO, SAC, TD3"
"""The algorithms of this package with the parameter ``network``, for error messages."""


def read_parameters(cls: type[T], given: Mapping[str, object], *, algorithm: str) -> T:
    """Check the parameters from a configuration, and return them as an instance of the dataclass `cls`.

    Args:
        cls: A dataclass whose fields were declared with `option`. Its optional class attribute ``ignored`` is a set of keys that
            are accepted without effect. Its optional class attribute ``libraries`` has the tables of ``like``.
        given: Parameters by name or synonym; with ``like``, by name in that library. The keys in `READ_ELSEWHERE` are skipped.
        algorithm: The algorithm's name, for error messages.

    Raises:
        ConfigError: If a key is unknown, a value has a wrong type or is out of range, two names of one parameter disagree, or the
            dataclass raises an exception.
    """
    elsewhere = READ_ELSEWHERE | frozenset(getattr(cls, "ignored", ()))
    if "network" in given and "network" not in elsewhere and not _has_network(cls):
        raise parameter_error("network", f"{algorithm} cannot choose a kind of network; those that can: {CHOOSE_NETWORK}")
    given = translated(cls, given, elsewhere, algorithm)
    problem, hint = f"{algorithm} has no such parameter", "`rl4sys-learner algorithms` lists them"
    if tables := libraries_of(cls):
        hint += f"; a name of another library needs like: {' or '.join(tables)}"
    values = parse_options(cls, given, extra=elsewhere, section="algorithm_parameters", problem=problem, hint=hint)
    with _as_config_error(f"{algorithm} refuses its parameters", "algorithm_parameters"):
        return cls(**{key: value for key, value in values.items() if key not in elsewhere})


@contextmanager
def _as_config_error(problem: str, key: str) -> Iterator[None]:
    """Convert each exception in the ``with`` block, which runs a plugin's code, to a `ConfigError`."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as exc:
        raise ConfigError(f"{problem}: {type(exc).__name__}: {exc!s:.400}", key=key) from exc


def _has_network(cls: type[Any] | None) -> bool:
    return cls is not None and any(f.name == "network" for f in fields(cls))


def parameter_error(name: str, problem: str) -> ConfigError:
    """Return the error of a parameter, with its name as the key."""
    return config_error(f"algorithm_parameters.{name}", problem)


def gradient_norm(value: object) -> float | None:
    """Return a limit on the norm of a gradient, or None for no limit: null, 0 and negative numbers.

    Raises:
        InvalidValue: If the value is neither null nor a number.
    """
    limit = optional(number(-1e18, 1e18))(value)
    return limit if limit is not None and limit > 0 else None


def inherited(cls: type[Any], name: str, default: object, *, names: tuple[str, ...] | None = None, doc: str = "") -> Any:
    """Declare a parameter that another dataclass has too, with another default.

    Args:
        cls: The other dataclass. It can be a base class of the one that is declared.
        name: The name of the parameter.
        default: The default value.
        names: The synonyms; None for those of the other dataclass.
        doc: The meaning; empty for that of the other dataclass.
    """
    (known,) = (f.metadata for f in fields(cls) if f.name == name)
    return option(known["check"], default, names=known["names"] if names is None else names, doc=doc or known["doc"])


class Setting(NamedTuple):
    """The arguments of `inherited` for a parameter that gets another default and also another meaning or other synonyms."""

    default: object
    doc: str = ""
    names: tuple[str, ...] | None = None


@dataclass_transform(frozen_default=True)
def with_settings(**settings: object) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes a class of parameters a frozen dataclass in which inherited parameters have other defaults.

    Args:
        settings: By the name of a parameter, its default or a `Setting`.
    """

    def declare(cls: type[T]) -> type[T]:
        types = {f.name: f.type for f in fields(cast(Any, cls))}
        for name, given in settings.items():
            setting = given if isinstance(given, Setting) else Setting(given)
            setattr(cls, name, inherited(cls, name, setting.default, names=setting.names, doc=setting.doc))
        cls.__annotations__ = {**{name: types[name] for name in settings}, **inspect.get_annotations(cls)}
        return dataclass(frozen=True, slots=True)(cls)

    return declare


def rl4sys_notes(parameters: object) -> list[str]:
    """Return lines for the log about parameters whose names come from other projects, with their meaning here."""
    notes: list[str] = getattr(parameters, "rl4sys_notes", list)()
    return notes


def parameter_table(cls: type[Any]) -> list[tuple[str, object, tuple[str, ...], str]]:
    """Return a tuple (name, default, synonyms, meaning) for each parameter, in the order of declaration."""
    return [
        (f.name, None if f.default is MISSING else f.default, f.metadata["names"], f.metadata["doc"])
        for f in fields(cls)
        if "check" in f.metadata
    ]


def default_pacing_lag(entry: AlgorithmEntry, kind: str) -> int | None:
    """Return the default of ``pacing_lag``, in batches: that of the entry, else of the kind of algorithm, else None."""
    if entry.staleness is not None and entry.staleness.pacing_lag is not None:
        return entry.staleness.pacing_lag
    return PACING_LAG.get(kind)


AlgorithmFactory = Callable[[Any, Space, Mapping[str, object], int], Algorithm]
"""A callable that builds an algorithm: ``factory(observation_space, action_space, parameters, seed) -> Algorithm``.

The observation space is an `ObservationSpace`. A factory must raise `ConfigError` for invalid parameters, and for a space that
the algorithm does not support, as `flat_space` of `rl4sys_zmq.values.observations` does for Dict and Tuple observations.
"""


class NamedFactory(NamedTuple):
    """A factory that calls a builder with an algorithm's name. Several algorithms can share the builder.

    Attributes:
        builder: The function that builds the algorithms, or its path. Its first argument is `name`.
        name: The name of the algorithm, as the builder needs it.
    """

    builder: Callable[..., Algorithm] | str
    name: str


PolicyPlan = Callable[[Any, Space, Mapping[str, object]], PolicySpec]
"""``plan(observation_space, action_space, parameters) -> PolicySpec``: the policy that an algorithm would train.

It builds no network.
"""


@dataclass(frozen=True, slots=True)
class TaskPreset:
    """Tested settings with which an algorithm solves one Gymnasium task, for the demo, the benchmarks and the slow tests.

    Attributes:
        parameters: The parameters of the algorithm (the option ``algorithm_parameters``).
        num_envs: Number of environments in each actor process.
        actors: Number of actor processes.
        pacing_lag: Number of batches that actors can collect ahead of the learner's training.
        target_return: The task counts as solved when the mean return of 100 episodes reaches this value.
    """

    parameters: Mapping[str, object] = field(repr=False)
    num_envs: int
    actors: int
    pacing_lag: int
    target_return: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """The largest policy lag of the data that an algorithm can learn from, and its correction for the lag."""

    max_policy_lag: int | None
    correction: str
    pacing_lag: int | None = None

    def __str__(self) -> str:
        if self.max_policy_lag is None:
            return f"data of any age; {self.correction}"
        return f"data up to {self.max_policy_lag} versions old, older data are dropped; {self.correction}"


ANY_AGE = Staleness(max_policy_lag=None, correction="none needed, because it learns from any policy's data in the replay")
"""The `Staleness` of an off-policy algorithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmEntry:
    """The description of one learning algorithm: its name, the function that builds it, its parameters and tested settings.

    The import of a module that creates an entry must be fast and must not import torch. So the factory can be given as a string.

    Attributes:
        name: The name for configurations. Case does not matter. A colon follows the name of a library, as in ``sb3:TRPO``.
        factory: The function or class that builds the algorithm, its path ``"package.module:attribute"``, or a
            `NamedFactory`.
        summary: One line of documentation.
        kind: ``onpolicy`` or ``offpolicy``; empty if not declared.
        parameters: The dataclass of the parameters; None if the factory checks its parameters itself. Its optional class
            attribute ``changeable`` is the set of names of those parameters that can change during training. The algorithm must
            then have the method of `TunableAlgorithm`.
        plan: A function that returns the specification of the policy that the algorithm would train; None if there is none. With
            it, `rl4sys-learner config check` builds no network, and a policy that is too large is refused before it takes memory.
        count: A function with the arguments of `plan` that returns the number of parameters of the networks beside the policy,
            without building one; None if there is none.
        staleness: The age of the data that the algorithm can learn from; None if not declared.
        presets: Tested settings that solve a task, by the Gymnasium id of the task.
        extra: The optional dependency group of this package that the factory needs, such as ``learner``; empty if none.
        spaces: One line about the spaces that the algorithm supports.
        reference: The source of the algorithm: authors, year and title. Empty if not declared.
        isolated: True if the algorithm draws from global random generators, and so needs an engine with a process per client.
        takes_masks: True if the training respects the action masks that actors send; False if it would ignore them, so that
            actors must not send any; None if not declared.
    """

    name: str
    factory: AlgorithmFactory | NamedFactory | str
    summary: str = ""
    kind: str = ""
    parameters: type[Any] | None = None
    plan: PolicyPlan | None = None
    count: Callable[[Any, Space, Mapping[str, object]], int] | None = None
    staleness: Staleness | None = None
    presets: Mapping[str, TaskPreset] = field(default_factory=dict, repr=False)
    extra: str = ""
    spaces: str = ""
    reference: str = ""
    isolated: bool = False
    takes_masks: bool | None = None

    def __post_init__(self) -> None:
        for part in self.name.split(":"):
            check_name(part, "algorithm_name")

    @property
    def chooses_network(self) -> bool:
        """True if the algorithm has the parameter ``network``."""
        return _has_network(self.parameters)

    @property
    def network_forms(self) -> tuple[str, ...]:
        """The forms of networks that the algorithm trains (`NetworkEntry.serves`)."""
        forms: tuple[str, ...] = getattr(self.parameters, "network_forms", (self.kind,) if self.kind else ())
        return forms

    def load(self) -> AlgorithmFactory:
        """Return the function or class that builds the algorithm, after its import.

        Raises:
            ConfigError: If the factory cannot be imported.
        """
        owner, key = f"algorithm {self.name}", "algorithm_name"
        if isinstance(self.factory, NamedFactory):
            return partial(load_factory(self.factory.builder, owner, key, self.extra), self.factory.name)
        return load_factory(self.factory, owner, key, self.extra)

    @property
    def changeable(self) -> frozenset[str]:
        """The names of the parameters that can change during training."""
        return frozenset(getattr(self.parameters, "changeable", ()))

    def name_of(self, key: str) -> str:
        """Return the name of a parameter, given its name or a synonym. An unknown `key` is returned unchanged."""
        options = fields(self.parameters) if self.parameters is not None else ()
        return next((f.name for f in options if key == f.name or key in f.metadata.get("names", ())), key)

    def planned(self, observation_space: Any, action_space: Space, parameters: Mapping[str, object]) -> PolicySpec | None:
        """Return the specification of the policy that the algorithm would train; None if the entry has no `plan`.

        Raises:
            ConfigError: If a parameter is invalid, the policy does not fit the spaces, or `plan` raises another exception.
        """
        if self.plan is None:
            return None
        with _as_config_error(f"{self.name} cannot plan its policy", "algorithm_name"):
            return self.plan(observation_space, action_space, parameters)

    def read(self, parameters: Mapping[str, object]) -> object:
        """Check the parameters, and return them as the entry's dataclass; None if the entry has no dataclass.

        Raises:
            ConfigError: If a parameter is unknown, has a wrong type or is out of range.
        """
        return None if self.parameters is None else read_parameters(self.parameters, parameters, algorithm=self.name)


def own_entry(name: str, parameters: type[Any], factory: str, **described: Any) -> AlgorithmEntry:
    """Return the registry entry of an algorithm of this package.

    Args:
        name: The name of the algorithm.
        parameters: The dataclass of its parameters, whose method ``policy(name, observation_space, action_space)`` returns the
            specification of the policy.
        factory: The path of its factory below `rl4sys_zmq.algorithms`.
        described: The other attributes of the entry.
    """

    def plan(observation_space: ObservationSpace, action_space: Space, given: Mapping[str, object]) -> PolicySpec:
        spec: PolicySpec = read_parameters(parameters, given, algorithm=name).policy(name, observation_space, action_space)
        return spec

    factory = f"rl4sys_zmq.algorithms.{factory}"
    return AlgorithmEntry(name=name, factory=factory, parameters=parameters, plan=plan, extra="learner", **described)
