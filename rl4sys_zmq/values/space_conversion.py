"""Conversion of spaces to and from JSON, and from Gymnasium's spaces, without importing Gymnasium.

These are the forms, with optional parts in brackets::

    {"type": "Box", "shape": [2], ["dtype": "float32", "low": -1 or [-1, "-inf"], "high": 1]}
    {"type": "Discrete", "n": 4, ["start": 0, "dtype": "int64"]}
    {"type": "MultiDiscrete", "nvec": [3, 4], ["start": [0, 0], "shape": [2], "dtype": "int64"]}
    {"type": "MultiBinary", "n": 5 or [2, 3]}
    {"type": "Text", "max_length": 8, "min_length": 1, "characters": "abc"}
    {"type": "Dict", "spaces": {"camera": SPACE}}
    {"type": "Tuple", "spaces": [SPACE]}
    {"type": "OneOf", "spaces": [SPACE]}
    {"type": "Sequence", "space": SPACE, ["stack": false]}
    {"type": "Graph", "nodes": SPACE, ["edges": SPACE or null]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from math import prod
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.values import spaces as sp
from rl4sys_zmq.values.observations import leaves_of
from rl4sys_zmq.values.spaces import DTYPES, MAX_DEPTH, AnySpace, Bound, BoxSpace, DiscreteSpace, ObservationSpace, Space

MAX_TEXT = 1 << 22
"""The largest number of characters of a space as JSON text. A Box can have two bounds for each array element."""
MAX_CLIENT_DIMENSIONS = 7
"""The largest number of dimensions of one observation or action. The array of many steps has one more."""
MAX_LEAVES = 32
"""The largest number of arrays in one observation, and in one action. Each is a column of the segment."""

_BY_NAME = {np.dtype(d).name: d for d in DTYPES} | {d: d for d in DTYPES}
_CLASSES: dict[str, type[AnySpace]] = {cls.KIND: cls for cls in get_args(AnySpace)}
_KINDS = ", ".join(_CLASSES)
_ALWAYS = {("Box", "dtype"), ("Discrete", "start")}
"""Fields, as (kind, field), that `space_to_json` writes even if they have their default value."""


def space_from(value: object) -> Space:
    """Convert a value, such as a Gymnasium space, to a space for the actions of a policy.

    Args:
        value: A space in any form that `any_space_from` accepts.

    Raises:
        ConfigError: If the value is not a space, learners do not support actions of this kind, or the space has more than
            `MAX_LEAVES` arrays.
    """
    return _client_space(value, "action")


def observation_space_from(value: object) -> ObservationSpace:
    """Convert a value, such as a Gymnasium space, to a space for the observations of a policy, as `space_from` does."""
    return _client_space(value, "observation")


def _client_space(value: object, role: str) -> Space:
    key = f"{role}_space"
    space: Space = _supported(any_space_from(value), "space", key)
    count = len(leaves_of(space).spaces)
    if count > MAX_LEAVES:
        raise ConfigError(f"the {role} space has {count} arrays; the limit is {MAX_LEAVES}", key=key)
    return space


def _supported(space: AnySpace, path: str, key: str) -> Any:
    match space:
        case sp.DictSpace() | sp.TupleSpace() if not space.spaces:
            raise ConfigError(f"{path} is an empty {space.KIND}; expected at least one space in it", key=key)
        case sp.DictSpace():
            return sp.DictSpace({name: _supported(part, f"{path}[{name!r}]", key) for name, part in space.spaces.items()})
        case sp.TupleSpace():
            return sp.TupleSpace(tuple([_supported(part, f"{path}[{i}]", key) for i, part in enumerate(space.spaces)]))
        case BoxSpace() | DiscreteSpace() | sp.MultiDiscreteSpace() | sp.MultiBinarySpace():
            return _leaf(space, path)
    kinds = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    raise ConfigError(f"{path} is of type {space.KIND}, which learner clients do not support: use {kinds}", key="type")


def _leaf(space: sp.LeafSpace, path: str) -> sp.LeafSpace:
    if isinstance(space, DiscreteSpace):
        return space if space.dtype == "<i8" else replace(space, dtype="<i8")
    if isinstance(space, sp.MultiDiscreteSpace):
        replace(space, dtype="<i8")  # raises if an integer is larger than that
    if len(space.shape) > MAX_CLIENT_DIMENSIONS or not all(space.shape):
        text = f"{path} can have at most {MAX_CLIENT_DIMENSIONS} dimensions, all positive; not {space.shape!s:.80}"
        raise ConfigError(text, key="shape")
    return space


def any_space_from(value: object, path: str = "space") -> AnySpace:
    """Convert a Gymnasium space, or the JSON form of a space, to an `AnySpace`."""
    if isinstance(value, tuple(_CLASSES.values())):
        return value  # type: ignore[return-value]
    try:
        if isinstance(value, Mapping) and not hasattr(value, "sample"):  # Gymnasium's Dict is also a mapping
            return _from_json(value, path, 1)
        return _from_gymnasium(value, path, 1)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as exc:
        raise ConfigError(f"{path} cannot be read: {type(exc).__name__}: {exc!s:.120}") from exc


def space_to_json(space: AnySpace) -> dict[str, Any]:
    """Return the JSON form of a space, which `any_space_from` reads. Most fields with their default value are left out.

    The values are valid in strict JSON: an infinite bound is the text ``inf`` or ``-inf``.
    """
    form: dict[str, Any] = {"type": space.KIND}
    for field in fields(space):
        value = getattr(space, field.name)
        if (space.KIND, field.name) in _ALWAYS or field.default is MISSING or value != field.default:
            form[field.name] = _plain(value) if field.name != "dtype" else np.dtype(value).name
    return form


def space_to_text(space: AnySpace) -> str:
    """Return the JSON form of a space as text."""
    text = json.dumps(space_to_json(space), allow_nan=False, separators=(",", ":"))
    _check_text(text)
    return text


def space_from_text(text: str) -> AnySpace:
    """Return the space that a JSON text describes. The text can come from an untrusted peer."""
    _check_text(text)
    try:
        form = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"the space is not valid JSON: {exc!s:.120}", key="space") from exc
    if not isinstance(form, dict):
        raise ConfigError(f"the space must be a JSON object, not {type(form).__name__}", key="space")
    return any_space_from(form)


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise ConfigError(f"the JSON form of the space has {len(text)} characters; the limit is {MAX_TEXT}", key="space")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    return value if value is None or isinstance(value, (int, str)) else space_to_json(value)


def _from_json(form: Any, path: str, depth: int) -> AnySpace:
    """Convert the JSON form of a space. For some faults it raises TypeError, which the caller converts to ConfigError."""
    if not isinstance(form, Mapping):
        raise TypeError(f"{path} must be a JSON object, not {type(form).__name__}")
    kind = form.get("type")
    if type(kind) is not str or kind not in _CLASSES:
        raise ConfigError(f'{path} needs a "type" that is one of {_KINDS}, not {kind!r:.60}', key="type")
    if depth > MAX_DEPTH:
        raise ConfigError(f"{path:.60} has more than {MAX_DEPTH} levels of nested spaces", key="type")
    cls = _CLASSES[kind]
    valid = {field.name for field in fields(cls)}
    for key in form:
        if key != "type" and key not in valid:
            raise ConfigError(f"unknown key {key!r:.60} in a {kind} space; use type, {', '.join(sorted(valid))}", key=str(key))
    for field in fields(cls):
        if field.default is MISSING and field.name not in form:
            raise TypeError(f"a {kind} space needs {field.name!r}")
    given = {key: _value(kind, key, form, f"{path}.{key}", depth) for key in form if key != "type"}
    return cls(**given)


def _value(kind: str, key: str, form: Mapping[str, Any], path: str, depth: int) -> Any:
    """Convert the field `key` of a space's JSON form to the argument of the space's class."""
    value = form[key]
    match key:
        case "dtype":
            return _dtype(value)
        case "shape" | "nvec":
            return _integers(value)
        case "start" if kind == "MultiDiscrete":
            return _integers(value)
        case "n" if isinstance(value, Sequence):
            return _integers(value)
        case "low" | "high":
            return _bound(value, _integers(form["shape"]))
        case "spaces" if kind == "Dict":
            if not isinstance(value, Mapping):
                raise TypeError(f"{path} must be a JSON object, not {type(value).__name__}")
            return {name: _from_json(part, f"{path}[{name!r:.40}]", depth + 1) for name, part in value.items()}
        case "spaces":
            if not isinstance(value, list | tuple):
                raise TypeError(f"{path} must be a list, not {type(value).__name__}")
            return tuple([_from_json(part, f"{path}[{i}]", depth + 1) for i, part in enumerate(value)])
        case "edges" if value is None:
            return None
        case "space" | "nodes" | "edges":
            return _from_json(value, path, depth + 1)
        case "stack":
            if type(value) is not bool:
                raise TypeError(f"{path} must be a boolean, not {value!r:.40}")
    return value


def _dtype(name: object) -> str:
    """Look a dtype up by its name. `numpy.dtype` itself would parse arbitrary text."""
    if type(name) is not str or name not in _BY_NAME:
        raise ConfigError(f"dtype {name!r:.60} is not supported; use one of {', '.join(sorted(_BY_NAME))}", key="dtype")
    return _BY_NAME[name]


def _integers(value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not all(type(n) is int for n in value):
        raise TypeError(f"expected a list of integers, not {value!r:.60}")
    return tuple(value)


def _bound(value: Any, shape: tuple[int, ...]) -> Bound:
    if isinstance(value, (int, float, str)):
        return _number(value)
    numbers = [_number(n) for n in np.asarray(value, dtype=object).ravel()]
    if len(numbers) != prod(shape):
        raise ValueError(f"a bound has {len(numbers)} numbers, which does not match the shape {shape}")
    return _bounds_of(np.array(numbers, dtype=object))


def _number(value: Any) -> float:
    """Return a bound as a float, or as an integer if no float has exactly its value."""
    number = float(value)
    return number if isinstance(value, str) or number == value else int(value)


def _from_gymnasium(value: Any, path: str, depth: int) -> AnySpace:
    """Convert a Gymnasium space, whose kind is recognised by the name of its class."""
    cls = type(value)
    kind = cls.__name__
    if kind not in _CLASSES or any(base.__name__ == kind for base in cls.__mro__[1:]):  # a subclass can add meaning
        raise ConfigError(f"{path} is a {cls.__module__}.{kind}, which is not supported; use one of {_KINDS}")
    if depth > MAX_DEPTH:
        raise ConfigError(f"{path:.60} has more than {MAX_DEPTH} levels of nested spaces", key="type")

    def part(held: Any, name: str) -> AnySpace:
        return _from_gymnasium(held, path + name, depth + 1)

    match kind:
        case "Box":
            low, high = np.asarray(value.low), np.asarray(value.high)
            dtype = _little(getattr(value, "dtype", low.dtype))
            return BoxSpace(tuple(int(n) for n in low.shape), dtype, _bounds_of(low), _bounds_of(high))
        case "Discrete":
            dtype = _little(getattr(value, "dtype", None) or np.int64)
            return DiscreteSpace(int(value.n), int(getattr(value, "start", 0)), dtype)
        case "MultiBinary":
            return sp.MultiBinarySpace(
                tuple(int(n) for n in value.n) if isinstance(value.n, Sequence | np.ndarray) else int(value.n)
            )
        case "MultiDiscrete":
            nvec = np.asarray(value.nvec)
            start = getattr(value, "start", np.zeros_like(nvec)).ravel().tolist()
            return sp.MultiDiscreteSpace(tuple(nvec.ravel().tolist()), tuple(start), nvec.shape, _little(value.dtype))
        case "Text":
            return sp.TextSpace(value.max_length, value.min_length, "".join(value.character_list))
        case "Dict":
            for key in value.spaces:
                if type(key) is not str:
                    raise ConfigError(f"{path} is a Dict with the key {key!r:.60}; expected a string", key=path)
            return sp.DictSpace({key: part(held, f"[{key!r}]") for key, held in value.spaces.items()})
        case "Tuple" | "OneOf":
            parts = tuple([part(held, f"[{i}]") for i, held in enumerate(value.spaces)])
            return sp.TupleSpace(parts) if kind == "Tuple" else sp.OneOfSpace(parts)
        case "Sequence":
            return sp.SequenceSpace(part(value.feature_space, "[0]"), bool(value.stack))
    edges = None if value.edge_space is None else part(value.edge_space, ".edges")
    return sp.GraphSpace(part(value.node_space, ".nodes"), edges)


def _little(dtype: Any) -> str:
    return str(np.dtype(dtype).newbyteorder("<").str)


def _bounds_of(array: NDArray[Any]) -> Bound:
    first = array.ravel()[:1].tolist()
    if first and np.all(array == first[0]):  # the bounds of an image would be longer than the image
        return _number(first[0])
    return tuple(_number(n) for n in array.ravel().tolist())
