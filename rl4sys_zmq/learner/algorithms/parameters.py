"""Algorithm parameters: one frozen dataclass per algorithm, read like all other options.

Declare each field with `rl4sys_zmq.config.options.option`: its check, its default, its synonyms in other projects, and its
meaning. `read_parameters` converts a mapping from a configuration into the dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from rl4sys_zmq.config.options import gather

__all__ = ["READ_ELSEWHERE", "parameter_table", "read_parameters"]

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
    values = gather(cls, given, extra=elsewhere, section="algorithm_parameters", owner=algorithm)
    return cls(**{key: value for key, value in values.items() if key not in elsewhere})


def parameter_table(cls: type[Any]) -> list[tuple[str, object, tuple[str, ...], str]]:
    """Return each parameter's name, default, synonyms and meaning, in the order of declaration."""
    return [
        (f.name, None if f.default is MISSING else f.default, f.metadata["names"], f.metadata["doc"])
        for f in fields(cls)
        if "check" in f.metadata
    ]
