"""The base class of small groups of options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from rl4sys_zmq.config.options import as_json, check_fields, mapping, parse_options


@dataclass(frozen=True, kw_only=True)
class ConfigSection:
    """Options in one mapping, such as those under the key ``evaluation``. A subclass is a dataclass of `option` fields.

    Raises:
        ConfigError: If the value of an option is invalid.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> Self:
        """Create the options from a mapping, such as the value of their key in a file.

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
