"""Algorithm parameters: a frozen dataclass for each algorithm, read by the reader that reads all other options.

Declare each field with `rl4sys_zmq.config.options.option`: its check, its default, the names that other projects have for it,
and its meaning. `read_parameters` turns a mapping as a user wrote it into the dataclass.
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
"""Keys that may stand among any algorithm's parameters, and that the learner itself reads: spaces and learning options."""


def read_parameters(cls: type[T], given: Mapping[str, object], *, algorithm: str) -> T:
    """Read `given` into the parameter dataclass `cls`.

    Args:
        cls: a dataclass whose fields were declared with `option`. Its class attribute ``ignored``, if there is one, names keys
            that are accepted and have no effect.
        given: parameters by name or synonym; those that the learner itself reads are left out.
        algorithm: its name, for messages.

    Raises:
        ConfigError: for an unknown key, a wrong type, an impossible value, or two names for one parameter that disagree.
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
