"""Options for the encoding of the weights that a learner sends to its actors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from rl4sys_zmq.config.options import check_fields, checked_arguments, integer, mapping, one_of, option, optional, parse_options

__all__ = ["WeightsConfig", "weights_options"]


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """The options for the encoding of the weights that a learner sends to actors: the key ``weights`` in a configuration.

    The learner takes each option from the first of these that sets it: its entry for the client (a policy with its learner),
    the client's first actor, its own options, the default. An option that is None is not set.

    Raises:
        ConfigError: If the value of an option is invalid.
    """

    wire_dtype: str | None = option(optional(one_of("fp32", "bf16", "grid")), None)
    """Precision of the weights that actors compute with. ``fp32``: the learner's float32 weights, unchanged. ``bf16``: rounded to
    bfloat16. ``grid``: rounded to multiples of a power of two, chosen for each tensor."""
    level: int | None = option(optional(integer(0, 2)), None)
    """Encoding of each new version of the weights. 0: all weights; the fastest on a fast network. 1: the difference from an
    earlier version, encoded fast. 2: a smaller difference, which takes about ten times as long to encode (for a large bf16
    policy, twenty times)."""

    def __post_init__(self) -> None:
        check_fields(self)

    def over(self, other: WeightsConfig) -> WeightsConfig:
        """Return a copy of these options, in which options that are None take the value of `other`."""
        return WeightsConfig.from_mapping({**other.to_json(), **self.to_json()})

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> Self:
        """Create the options from a mapping: the value of the key ``weights`` in a configuration file.

        Raises:
            ConfigError: If a key is unknown or a value is invalid.
        """
        return cls(**parse_options(cls, given))  # type: ignore[arg-type]

    def to_json(self) -> dict[str, object]:
        """Return a dict of the options that are not None, as JSON values. `from_mapping` reads it back."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in said.items() if value is not None}


def weights_options(value: object) -> WeightsConfig:
    """Return a `WeightsConfig` (options for the encoding of weights) unchanged, or create one from a mapping."""
    return value if isinstance(value, WeightsConfig) else WeightsConfig.from_mapping(mapping(value))
