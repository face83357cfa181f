"""The merge of an algorithm's parameters from several sources, the check of changes, and their text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from rl4sys_zmq.config.options import parse_options
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry import AlgorithmEntry
from rl4sys_zmq.learner.registry.algorithm_entry import READ_ELSEWHERE
from rl4sys_zmq.learner.registry.like import LIKE, libraries_of, our_name

LEARNING_KEYS = ("max_policy_lag", "on_lag", "pacing_lag", "publish_every_updates")
"""Options of the learner that a user can also set among the parameters of an algorithm."""

ParameterChanges = dict[str, list[Any]]
"""Changed parameters by name. Each value is a list ``[old value, new value]`` of JSON values."""


def algorithm_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that the algorithm receives: all except `seed` and the learner's options."""
    return {key: value for key, value in parameters.items() if key not in (*LEARNING_KEYS, "seed")}


def merged(kind: AlgorithmEntry, *layers: Mapping[str, Any], like: object = None) -> dict[str, Any]:
    """Merge dicts of an algorithm's parameters: later `layers` override earlier ones.

    `like` is the value of the parameter ``like`` if no layer has it.
    """
    library = libraries_of(kind.parameters).get(str(next((layer[LIKE] for layer in reversed(layers) if LIKE in layer), like)))

    def name(key: str) -> str:
        other = library is not None and kind.parameters is not None and key in library.names
        return our_name(kind.parameters, library, key) if other else kind.name_of(key)  # type: ignore[arg-type]

    result: dict[str, Any] = {}
    for layer in layers:
        names = {name(key) for key in layer}
        result = {**{key: value for key, value in result.items() if name(key) not in names}, **layer}
    return result


def by_name(kind: AlgorithmEntry, parameters: Mapping[str, Any], like: object) -> dict[str, Any]:
    """Return JSON values of parameters, with names in place of synonyms.

    If `like`, the parameter ``like``, names another library, the names stay as they are.
    """
    return {kind.name_of(key) if like is None else key: plain(value) for key, value in parameters.items()}


def effective_parameters(kind: AlgorithmEntry, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters of the algorithm as JSON values, with defaults. The names are this library's, also with ``like``.

    If the algorithm's entry does not declare its parameters, only the given ones are returned.
    """
    values = algorithm_parameters(parameters)
    read = kind.read(values)
    if read is not None:
        values = {f.name: getattr(read, f.name) for f in fields(read) if "check" in f.metadata}  # type: ignore[arg-type]
    return {str(key): plain(value) for key, value in values.items()}


def parameters_shown(kind: AlgorithmEntry, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of `effective_parameters`, or, if a parameter is invalid, the given parameters only."""
    try:
        return effective_parameters(kind, parameters)
    except ConfigError:
        return dict(plain(algorithm_parameters(parameters)))


def read_change(kind: AlgorithmEntry, values: Mapping[str, Any], in_force: Mapping[str, Any]) -> dict[str, Any]:
    """Check new values for the parameters in force of an algorithm that is training, and return them by name."""
    if not values:
        raise ConfigError("no parameter was given; expected at least one NAME=VALUE", key="algorithm_parameters")
    possible = ", ".join(sorted(kind.changeable)) or "none"
    if kind.parameters is None or LIKE in values:
        fixed = list(values) if kind.parameters is None else [LIKE]
    elif in_force.get(LIKE) is not None:
        before = effective_parameters(kind, in_force)
        after = effective_parameters(kind, merged(kind, in_force, values))
        fixed = [name for name in changes_between(before, after) if name not in kind.changeable]
    else:
        problem = f"{kind.name} has no such parameter"
        values = parse_options(kind.parameters, values, extra=READ_ELSEWHERE, section="algorithm_parameters", problem=problem)
        fixed = [name for name in values if name not in kind.changeable]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)}: cannot change in a running client of {kind.name}; parameters that can: {possible}; for another "
            "value, start a client with another name",
            key=f"algorithm_parameters.{fixed[0]}",
        )
    return dict(values)


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> ParameterChanges:
    """Return the parameters that are new or differ in `after`."""
    return {name: [before.get(name), value] for name, value in after.items() if name not in before or before[name] != value}


def change_text(changes: Mapping[str, Iterable[Any]]) -> str:
    """Return changes as text, such as ``learning_rate 0.0003 -> 0.001, gamma 0.99 -> 0.98``."""
    return ", ".join(f"{name} {' -> '.join(json.dumps(value) for value in pair)}" for name, pair in changes.items())


def plain(value: Any) -> Any:
    """Return a copy of a value for JSON: arrays and tuples become lists, and the keys of mappings become strings."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return value
