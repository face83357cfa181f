"""How weights travel from the learner to its actors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from rl4sys_zmq.config.options import check_fields, gather, integer, mapping, one_of, option, optional

__all__ = ["WeightsConfig", "weights_options"]


@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """What may stand under ``weights``; what is None is not said here.

    Raises:
        ConfigError: for a value that an option refuses.
    """

    wire_dtype: str | None = option(optional(one_of("fp32", "bf16", "grid")), None)
    """What actors compute with: the learner's float32 weights, or these rounded, to bf16 or to a grid."""
    level: int | None = option(optional(integer(0, 2)), None)
    """How versions are written. 0: whole, which takes the least time on a fast link. 1: as diffs, written fast. 2: as
    diffs that take about ten times as long, twenty for a large bf16 policy, for fewer bytes."""

    def __post_init__(self) -> None:
        check_fields(self)

    def over(self, other: WeightsConfig) -> WeightsConfig:
        """What this says, and where it says nothing, what `other` says."""
        return WeightsConfig(**{**other.to_json(), **self.to_json()})

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> Self:
        """Reads a mapping as it would stand in a file.

        Raises:
            ConfigError: for an unknown key, or as the class says.
        """
        return cls(**gather(cls, given))  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """JSON values that `from_mapping` reads back; what is not said is left out."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in said.items() if value is not None}


def weights_options(value: object) -> WeightsConfig:
    """A `WeightsConfig`, or its mapping."""
    return value if isinstance(value, WeightsConfig) else WeightsConfig.from_mapping(mapping(value))
