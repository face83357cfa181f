"""The configuration of the encoding of weights between the learner and its actors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from rl4sys_zmq.config.options import check_fields, integer, mapping, one_of, option, optional, parse_options

__all__ = ["WeightsConfig", "weights_options"]


@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """The options under the key ``weights``. None means that an option is not set here.

    Raises:
        ConfigError: If an option refuses its value.
    """

    wire_dtype: str | None = option(optional(one_of("fp32", "bf16", "grid")), None)
    """Precision of the weights that actors compute with: the learner's float32 weights, or these rounded to bf16 or to a grid."""
    level: int | None = option(optional(integer(0, 2)), None)
    """Encoding of versions. 0: the whole state, the fastest on a fast network. 1: diffs that are encoded fast. 2: smaller diffs
    that take about ten times as long to encode, twenty times for a large bf16 policy."""

    def __post_init__(self) -> None:
        check_fields(self)

    def over(self, other: WeightsConfig) -> WeightsConfig:
        """Return these options, with those of `other` where an option is None here."""
        return WeightsConfig.from_mapping({**other.to_json(), **self.to_json()})

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> Self:
        """Read a mapping with the content of a configuration file.

        Raises:
            ConfigError: If a key is unknown or a value is invalid.
        """
        return cls(**parse_options(cls, given))  # type: ignore[arg-type]

    def to_json(self) -> dict[str, object]:
        """Return the options that are set as JSON values that `from_mapping` can read."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in said.items() if value is not None}


def weights_options(value: object) -> WeightsConfig:
    """Return a `WeightsConfig` from one, or from its mapping."""
    return value if isinstance(value, WeightsConfig) else WeightsConfig.from_mapping(mapping(value))
