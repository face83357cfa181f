"""Declaration of configuration options with checks of their values, and conversion of a mapping to options.

A *check* converts a value from a file or an argument to the stored value, or raises `InvalidValue`, whose text describes a
valid value, such as "true or false".
"""

from __future__ import annotations

import functools
import math
import os
import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.names import NAME_RULE, is_name
from rl4sys_zmq.values import ObservationSpace, Space, observation_space_from, space_from, space_to_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Check = Callable[[object], T]

SIMILAR = 0.65
"""The lowest similarity of two words at which a message suggests one for the other. At 0.62, bytes_per_s would be suggested for
steps_per_update.
"""
MAX_TEXT = 256
MAX_COUNT = 1 << 40
"""Limit on counts and bytes, for options that have no smaller limit."""
MAX_NUMBER = 1e9
"""Limit on the absolute value of numbers, for options that have no smaller limit."""
MAX_SPAN_S = 10 * 365 * 86_400
"""Ten years."""
MAX_LAYERS, MAX_WIDTH = 64, 1 << 20


class InvalidValue(ValueError):
    """The value of an option is invalid. The text describes a valid value, such as "true or false"."""


def option(check: Check[T], default: object = None, *, names: tuple[str, ...] = (), doc: str = "", required: bool = False) -> T:
    """Declare one field of a configuration dataclass.

    Args:
        check: Converts a given value to the stored value, or raises `InvalidValue`.
        default: The value if none is given.
        names: Synonyms that a file can use as the key.
        doc: The meaning and the unit, for options that a command lists.
        required: True if the option must be given; `default` is then ignored.
    """
    metadata = {"check": check, "names": names, "doc": doc}
    if required:
        return cast(T, dataclass_field(metadata=metadata))
    if isinstance(default, dict):
        return cast(T, dataclass_field(default_factory=default.copy, metadata=metadata))
    return cast(T, dataclass_field(default=default, metadata=metadata))


def nullable(check: Check[T], *, names: tuple[str, ...] = (), doc: str = "") -> T | None:
    """Declare one field of a configuration dataclass whose default is None (null in a file), with the arguments of `option`."""
    return option(optional(check), names=names, doc=doc)


def text(value: object) -> str:
    """Return a value unchanged if it is text of 1 to 256 printable characters, else raise `InvalidValue`."""
    if not isinstance(value, str) or not value or len(value) > MAX_TEXT or not value.isprintable():
        raise InvalidValue(f"text of 1 to {MAX_TEXT} printable characters")
    return value


def name(value: object) -> str:
    """Return a value unchanged if it is a name (`rl4sys_zmq.names`), else raise `InvalidValue`."""
    if not is_name(value):
        raise InvalidValue(NAME_RULE)
    return cast(str, value)


def flag(value: object) -> bool:
    """Return a value unchanged if it is a bool, else raise `InvalidValue`."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidValue("true or false")
    return bool(value)


def integer(low: int, high: int = MAX_COUNT) -> Check[int]:
    """Return a check: a function that accepts an integer from `low` to `high`, but no bool, or raises `InvalidValue`."""

    def check(value: object) -> int:
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidValue(f"an integer from {low} to {high}")
        return int(value)

    return check


def whole_number(low: int, high: int = MAX_COUNT) -> Check[int]:
    """Return a check, as `integer` does, that accepts also a float such as ``1e5``."""
    plain = integer(low, high)

    def check(value: object) -> int:
        return plain(int(value) if isinstance(value, float) and value.is_integer() else value)

    return check


def sizes(value: object) -> tuple[int, ...]:
    """Convert a list of layer widths, positive integers, to a tuple."""
    if not isinstance(value, list | tuple) or not all(type(n) is int and 0 < n <= MAX_WIDTH for n in value):
        raise InvalidValue(f"a list of integers from 1 to {MAX_WIDTH}")
    if len(value) > MAX_LAYERS:
        raise InvalidValue(f"at most {MAX_LAYERS} integers from 1 to {MAX_WIDTH}")
    return tuple(value)


def number(low: float, high: float = MAX_SPAN_S, *, above: bool = False) -> Check[float]:
    """Return a check that accepts a finite number from `low` to `high`; with `above`, only one greater than `low`."""

    def check(value: object) -> float:
        right = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        # Compare before the conversion to float: an integer can be too large for a float.
        if not right or not low <= cast(float, value) <= high or (above and value == low):
            raise InvalidValue(
                f"a number {'above' if above else 'from'} {low:.12g} {'and at most' if above else 'to'} {high:.12g}"
            )
        return float(cast(float, value))

    return check


def one_of(*choices: str) -> Check[str]:
    """Return a check that accepts one of the given words."""

    def check(value: object) -> str:
        if value in choices:
            return str(value)
        near = closest(value, choices) if isinstance(value, str) else []
        raise InvalidValue(" or ".join(map(repr, choices)) + (f" (did you mean {near[0]!r}?)" if near else ""))

    return check


def compression(value: object) -> str:
    """Convert the value of the option ``compression``, which can be a bool, to ``off`` or ``zstd``."""
    return ("zstd" if value else "off") if isinstance(value, bool) else one_of("off", "zstd")(value)


def device_name(value: object) -> str:
    """Accept the name of a device for torch: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``."""
    if isinstance(value, str) and re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", value, re.ASCII):
        return value
    raise InvalidValue("'auto', 'cpu', 'cuda', or 'cuda:N' with the number N of a GPU")


def log_level(value: object) -> str:
    """Convert the name of a logging level, such as ``info``, to capitals."""
    return one_of("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")(value.upper() if isinstance(value, str) else value)


def logger_level(value: object) -> int | str:
    """Convert a log level, an integer or a name such as ``info``, to a value that `logging` accepts."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return log_level(value)
    except InvalidValue as exc:
        raise InvalidValue(f"{exc}, or the number of a level") from None


def callback(value: object) -> Callable[..., Any]:
    """Return a value unchanged if it is callable, else raise `InvalidValue`."""
    if not callable(value):
        raise InvalidValue("a function")
    return value


def instance_of(cls: type[T]) -> Check[T]:
    """Return a check that accepts objects of a class."""

    def check(value: object) -> T:
        if not isinstance(value, cls):
            raise InvalidValue(f"an object of the class {cls.__name__}")
        return value

    return check


def optional(check: Check[T]) -> Check[T | None]:
    """Return a check that accepts None (null in a file) and all values that `check` accepts."""

    def either(value: object) -> T | None:
        if value is None:
            return None
        try:
            return check(value)
        except InvalidValue as exc:
            raise InvalidValue(f"{exc}, or null") from None

    return either


def mapping(value: object) -> dict[str, object]:
    """Return a copy of a mapping with text keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidValue("a mapping")
    return dict(value)


def parameters(value: object) -> dict[str, object]:
    """Return a copy of a mapping with text keys, such as the parameters of an algorithm.

    Raises:
        InvalidValue: If the value is not a mapping with text keys.
        ConfigError: If a number is NaN or infinite, at any depth.
    """
    entries = mapping(value)
    for key, item in entries.items():
        _check_finite(key, item)
    return entries


def _check_finite(key: str, value: object) -> None:
    if isinstance(value, float | np.floating) and not math.isfinite(value):
        raise ConfigError(f"{key}: {float(value)} is not a finite number", key=key)
    if isinstance(value, np.ndarray) and value.dtype.kind in "fc" and not np.isfinite(value).all():
        raise ConfigError(f"{key}: contains a number that is not finite", key=key)
    if isinstance(value, Mapping):
        for inner, item in value.items():
            _check_finite(f"{key}.{inner}", item)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            _check_finite(f"{key}[{place}]", item)


def modules(value: object) -> tuple[str, ...]:
    """Convert one dotted module name, or a list of them, to a tuple."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(m, str) for m in given):
        raise InvalidValue("a list of Python modules, such as my_package.plugin")
    if not all(part.isidentifier() for module in given for part in module.split(".")):
        raise InvalidValue("a list of Python modules, such as my_package.plugin")
    return tuple(given)


def path(value: object) -> Path:
    """Convert text or a path-like object to a `Path`."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or isinstance(os.fspath(value), bytes):
        raise InvalidValue("a path")
    return Path(cast(str, value))


TIMEOUT_S: Check[float] = number(0)
"""A time to wait, in seconds: at most ten years. Infinity and NaN are refused."""
CALL_TIMEOUT_S: Check[float] = number(0, 86_400, above=True)
"""A time to wait for an answer over the network, in seconds: at most one day."""
CALL_TIMEOUT_MS: Check[float] = number(0, 86_400_000, above=True)
SPACE: Check[Space | None] = optional(space_from)
OBSERVATION_SPACE: Check[ObservationSpace | None] = optional(observation_space_from)


def check_value(key: str, value: object, check: Check[T]) -> T:
    """Return the value of the option `key`, as `check` converts it.

    Raises:
        ConfigError: If the check refuses the value. The message begins with `key`.
    """
    try:
        return check(value)
    except InvalidValue as exc:
        raise ConfigError(f"{key}: expected {exc}, not {reprlib.repr(value)}", key=key) from None
    except ConfigError as exc:
        message = str(exc)
        nested = bool(exc.key) and message.startswith(f"{exc.key}: ")
        if nested:
            raise ConfigError(f"{key}.{message}", key=f"{key}.{exc.key}") from None
        raise ConfigError(f"{key}: {message}", key=key) from None


def check_fields(config: DataclassInstance) -> None:
    """Check every field of a frozen configuration object, and replace each value by the result of its check."""
    for field in fields(config):
        if "check" in field.metadata:
            object.__setattr__(config, field.name, check_value(field.name, getattr(config, field.name), field.metadata["check"]))


def parse_options(
    cls: type[Any],
    given: Mapping[str, object],
    *,
    extra: Collection[str] = (),
    partial: bool = False,
    section: str = "",
    problem: str = "no such key",
    hint: str = "",
) -> dict[str, object]:
    """Convert the keys and values of a file to the arguments of the configuration class `cls`.

    Args:
        cls: A dataclass whose fields were declared with `option`.
        given: Values by name or synonym.
        extra: Keys that are passed on unchecked.
        partial: True if required keys may be missing, because `given` is only a part of the options.
        section: The key under which `given` stands in its file. Messages show ``section.key``.
        problem: The description of the error in the message about an unknown key.
        hint: The remedy in that message if no valid key has a similar spelling.

    Raises:
        ConfigError: If a key is unknown, a check refuses a value, a required key is missing, or two names of one option have
            different values.
    """
    options = {f.name: f for f in fields(cls) if "check" in f.metadata}
    by_name = {name: f for f in options.values() for name in (f.name, *f.metadata["names"])}
    values: dict[str, object] = {}
    said: dict[str, str] = {}
    for key, raw in given.items():
        if key in extra:
            values[key] = raw
            continue
        if key not in by_name:
            raise unknown_key(key, [*by_name, *extra], section, problem=problem, hint=hint)
        field, dotted = by_name[key], _dotted(section, key)
        value = check_value(dotted, raw, field.metadata["check"])
        if field.name in values and values[field.name] != value:
            other = said[field.name]
            raise ConfigError(
                f"{dotted}: {raw!r} contradicts {other!r}, which means the same: {values[field.name]!r}", key=dotted
            )
        values[field.name], said[field.name] = value, key
    for field in options.values():
        if field.name not in values and _is_required(field) and not partial:
            dotted = _dotted(section, field.name)
            raise ConfigError(f"{dotted} is missing; give it in the file or as an argument", key=dotted)
    return values


def _dotted(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


PARAMETER_HINT = "if it is a parameter of the algorithm, put it under 'algorithm_parameters'"
"""The advice about an unknown key of an actor or a client that resembles no valid key."""

_MEANT = dict.fromkeys(("port", "host", "address", "server", "learner", "listen"), ("bind", "train_server_address"))
"""Words that users try for options with other names."""


def closest(word: str, choices: Collection[str]) -> list[str]:
    """Return a list with the choice whose spelling is most similar to `word`; an empty list if none is similar."""
    import difflib  # rarely needed: only for a message about a typing error

    near = difflib.get_close_matches(word, choices, n=3, cutoff=SIMILAR)
    return sorted(near, key=lambda choice: choice[:3] != word[:3])[:1]  # a word that begins in the same way is more likely


def unknown_key(
    key: str, valid: Collection[str], section: str = "", *, problem: str = "no such key", hint: str = ""
) -> ConfigError:
    """Return the `ConfigError` for an unknown key.

    Args:
        key: The unknown key.
        valid: The valid keys. The message names the one with a similar spelling.
        section: The section of the file in which `key` stands; empty for the top level.
        problem: The description of the error.
        hint: The remedy if no valid key has a similar spelling. If `hint` is empty, the message lists the valid keys.
    """
    near = closest(key, valid) or [name for name in _MEANT.get(key, ()) if name in valid]
    advice = f"did you mean {near[0]!r}?" if near else hint or f"the valid ones are {', '.join(sorted(valid))}"
    dotted = _dotted(section, key)
    return ConfigError(f"{dotted}: {problem}; {advice}", key=dotted)


def checked_arguments(cls: type[T]) -> type[T]:
    """Make the constructor of a dataclass raise `ConfigError`, not TypeError, for unknown and missing keyword arguments.

    Synonyms are valid only in files. The message about a synonym as an argument names the option.
    """
    known = {f.name: f for f in cls.__dataclass_fields__.values()}  # type: ignore[attr-defined]
    synonyms = {other: f.name for f in known.values() for other in f.metadata.get("names", ())}
    required = [f.name for f in known.values() if f.kw_only and _is_required(f)]
    create = cls.__init__

    @functools.wraps(create)
    def __init__(self: Any, *args: Any, **given: Any) -> None:
        for key in given:
            if key in synonyms:
                problem = f"no such argument; did you mean {synonyms[key]!r}?"
                raise ConfigError(f"{key}: {problem} {key!r} is its name in files", key=key)
            if key not in known:
                hint = PARAMETER_HINT if "algorithm_parameters" in known else ""
                raise unknown_key(key, known, problem=f"{cls.__name__} has no such argument", hint=hint)
        for key in required:
            if key not in given:
                raise ConfigError(f"{key} is missing; give it as an argument", key=key)
        create(self, *args, **given)

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


@contextmanager
def with_source(source: str) -> Iterator[None]:
    """Return a context manager that adds `source`, usually a path, to each `ConfigError` without a source."""
    try:
        yield
    except ConfigError as exc:
        if exc.source or not source:
            raise
        raise ConfigError(str(exc), key=exc.key, source=source) from None


def as_json(config: DataclassInstance) -> dict[str, object]:
    """Return a configuration as JSON values, without options whose value and default are None."""

    def plain(value: object) -> object:
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if hasattr(value, "to_json"):
            return value.to_json()
        return str(value) if isinstance(value, Path) else value

    out: dict[str, object] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if "check" in field.metadata and (value is not None or field.default is not None):
            is_space = field.metadata["check"] in (SPACE, OBSERVATION_SPACE)
            out[field.name] = space_to_json(value) if is_space else plain(value)
    return out


def _is_required(field: Field[object]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING
