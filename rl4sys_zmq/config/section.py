"""The base classes of groups of options and of whole configurations, and the options that actor and learner share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from typing import ClassVar, Self

from rl4sys_zmq.config.files import read_mapping
from rl4sys_zmq.config.options import (
    OBSERVATION_SPACE,
    SPACE,
    InvalidValue,
    as_json,
    check_fields,
    checked_arguments,
    integer,
    mapping,
    number,
    one_of,
    option,
    optional,
    parse_options,
)
from rl4sys_zmq.config.rl4sys import algorithm_name, algorithm_parameters, resolve_spaces
from rl4sys_zmq.values import ObservationSpace, Space


@dataclass(frozen=True, kw_only=True)
class ConfigSection:
    """A group of options in one mapping, such as the key ``evaluation``. A subclass is a dataclass of `option` fields.

    Raises:
        ConfigError: If the value of an option is invalid.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> Self:
        """Create the options from a mapping, such as the value of a key in a configuration file.

        Raises:
            ConfigError: If a key is unknown or a value is invalid.
        """
        return cls(**parse_options(cls, given))

    @classmethod
    def read(cls, value: object) -> Self:
        """Return options unchanged, or create them from a mapping."""
        return value if isinstance(value, cls) else cls.from_mapping(mapping(value))

    def to_json(self) -> dict[str, object]:
        """Return the options as JSON values that `from_mapping` can read."""
        return as_json(self)


@dataclass(frozen=True, kw_only=True)
class ProcessConfig(ConfigSection):
    """All options of one process. A configuration file can contain them."""

    @classmethod
    def load(cls, path: str | os.PathLike[str], **overrides: object) -> Self:
        """Read the configuration from a JSON or YAML file, also from one of the library RL4Sys.

        Args:
            path: The file.
            **overrides: Options, by name, that override those of the file. For an actor, also by synonym, and its
                ``algorithm_parameters`` are merged with those of the file; for a key in both, the override wins.

        Raises:
            ConfigError: If the file cannot be read, or a key or value is invalid.
        """
        return cls.from_mapping(read_mapping(path), source=str(path), **overrides)

    @classmethod
    def from_mapping(cls, given: Mapping[str, object], *, source: str = "", **overrides: object) -> Self:
        """Create a configuration from a mapping with the keys of a configuration file.

        Args:
            given: Values by key.
            source: The name of the source in error messages.
            **overrides: Options, by name, that override those in `given`, as for `load`.

        Raises:
            ConfigError: If a key or value is invalid.
        """
        raise NotImplementedError


AUTO = "auto"


def _level(value: object) -> int | str:
    if value == AUTO:
        return AUTO
    try:
        return integer(0, 1)(value)
    except InvalidValue as exc:
        raise InvalidValue(f"{exc}, or {AUTO!r}") from None


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class WeightsConfig(ConfigSection):
    """The options for the encoding of the weights that a learner sends to actors: the key ``weights`` in a configuration.

    The learner takes each option from the first source that sets the option: the learner's entry for the client, the client's
    first actor, the learner's own options, the default. An option that is None is not set.

    Raises:
        ConfigError: If the value of an option is invalid.
    """

    wire_dtype: str | None = option(optional(one_of("fp32", "bf16", "grid")), None)
    """Precision of the weights that actors compute with. ``fp32``: the learner's float32 weights, unchanged. ``bf16``: rounded
    to bfloat16. ``grid``: rounded to multiples of a power of two, chosen for each tensor. Numbers of a policy that are not
    weights, such as statistics of observations and the amount of exploration, are never rounded."""
    level: int | str | None = option(optional(_level), None)
    """Encoding of each new version of the weights. 0: all weights; the fastest on a fast network. 1: the difference from an
    earlier version, which has fewer bytes. ``auto``: 0 as long as all actors and relays of the client were on the learner's
    machine, then 1."""

    def over(self, other: WeightsConfig) -> WeightsConfig:
        """Return a copy of this object in which each option that is None has the value of `other`."""
        return WeightsConfig.from_mapping({**other.to_json(), **self.to_json()})


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(ConfigSection):
    """The options of a policy that an actor's file and the client's entry at the learner share.

    Instead of the two spaces, the sizes ``input_size`` and ``act_dim`` and the flag ``continuous`` can be given, as arguments
    or in `algorithm_parameters`.
    """

    FLAT: ClassVar = ("input_size", "act_dim", "continuous")

    algorithm_name: str | None = option(optional(algorithm_name), None, names=("algorithm",))
    """The name of the learning algorithm, such as ``PPO`` or ``sb3:TRPO``. Default: the other side names it."""
    algorithm_parameters: Mapping[str, object] = option(algorithm_parameters, {})
    """The algorithm's parameters. A parameter can have its own name or a synonym. Empty: the other side sets the parameters. A
    parameter ``seed`` seeds the training, not an actor."""
    type: str | None = option(optional(one_of("onpolicy", "offpolicy")), None, names=("algorithm_type",))
    """The expected type of the algorithm: ``onpolicy`` or ``offpolicy``. An actor logs a different type as a warning. Default: no
    expectation."""
    observation_space: ObservationSpace | None = option(OBSERVATION_SPACE, None)
    """The observation space. Default: the other side sets it."""
    action_space: Space | None = option(SPACE, None)
    """The action space. Default: the other side sets it."""
    act_limit: float | None = option(optional(number(0, 1e30, above=True)), None)
    """The bound of continuous actions that `act_dim` defines: from ``-act_limit`` to ``act_limit``. No effect otherwise."""
    input_size: InitVar[int | None] = None
    """Number of elements of an observation. The observation space becomes a float32 Box of this size."""
    act_dim: InitVar[int | None] = None
    """Number of discrete actions, or, if `continuous` is true, number of elements of a continuous action."""
    continuous: InitVar[bool | None] = None
    """True: the action space that `act_dim` defines is a Box, bounded by `act_limit`. Otherwise it is Discrete."""

    def __post_init__(self, input_size: int | None, act_dim: int | None, continuous: bool | None) -> None:
        super().__post_init__()
        flat = {"input_size": input_size, "act_dim": act_dim, "continuous": continuous, "act_limit": self.act_limit}
        resolve_spaces(self, flat)
