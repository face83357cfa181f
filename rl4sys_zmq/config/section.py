"""The base classes of groups of options and of whole configurations; and `WeightsConfig`, which actor and learner share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from rl4sys_zmq.config.files import read_mapping
from rl4sys_zmq.config.options import (
    as_json,
    check_fields,
    checked_arguments,
    integer,
    mapping,
    one_of,
    option,
    optional,
    parse_options,
)


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
class ConfigFile(ConfigSection):
    """The options of one process. A configuration file can contain all of them."""

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
            **overrides: As for `load`.

        Raises:
            ConfigError: If a key or value is invalid.
        """
        raise NotImplementedError


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
    level: int | None = option(optional(integer(0, 1)), None)
    """Encoding of each new version of the weights. 0: all weights; the fastest on a fast network. 1: the difference from an
    earlier version, which has fewer bytes."""

    def over(self, other: WeightsConfig) -> WeightsConfig:
        """Return a copy of this object in which each option that is None has the value of `other`."""
        return WeightsConfig.from_mapping({**other.to_json(), **self.to_json()})
