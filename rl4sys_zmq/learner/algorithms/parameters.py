"""Reading an algorithm's parameters: one frozen dataclass per algorithm, synonyms from three other projects, no surprises.

A parameter is declared with `parameter`, which carries its synonyms, its range and its meaning; `read_parameters` turns a
mapping as a user wrote it into the dataclass, and refuses what it does not know by the nearest name that it does.
"""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar, cast

from rl4sys_zmq.errors import ConfigError

__all__ = ["Rule", "parameter", "parameter_table", "read_parameters"]

T = TypeVar("T")

MAX_COUNT = 1 << 40
MAX_NUMBER = 1e9
"""No parameter is further from 0 than these, whatever its own range."""

MAX_LAYERS, MAX_WIDTH = 64, 1 << 20
"""Of a list of layers."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a parameter accepts.

    Attributes:
        kind: ``int``, ``float``, ``bool``, ``str`` or ``sizes`` (a list of positive integers).
        low: the least value allowed.
        high: the greatest value allowed.
        optional: whether null is allowed.
        choices: for ``str``, the values allowed; empty for any.
        names: the synonyms that are accepted, other projects' names for the same thing.
        doc: what it means, with its unit.
    """

    kind: str
    low: float = -math.inf
    high: float = math.inf
    optional: bool = False
    choices: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    doc: str = ""


def parameter(
    default: T,
    doc: str,
    *,
    kind: str | None = None,
    low: float = -math.inf,
    high: float = math.inf,
    optional: bool = False,
    choices: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
) -> T:
    """Declares one parameter of a dataclass; `kind` follows from the default where it can."""
    guessed = kind or {bool: "bool", int: "int", float: "float", str: "str", tuple: "sizes"}[type(default)]
    most = float(MAX_COUNT) if guessed == "int" else MAX_NUMBER
    bounds = low if math.isfinite(low) else -most, high if math.isfinite(high) else most
    rule = Rule(guessed, *bounds, optional or default is None, choices, names, doc)
    return field(default=default, metadata={"rule": rule})


def read_parameters(cls: type[T], given: Mapping[str, object], *, algorithm: str, extra: frozenset[str] = frozenset()) -> T:
    """Reads `given` into the parameter dataclass `cls`.

    Args:
        cls: a dataclass whose fields were declared with `parameter`.
        given: parameters by name or synonym.
        algorithm: its name, for messages.
        extra: further keys that are valid but read elsewhere (spaces, for instance).

    Raises:
        ConfigError: for an unknown key, a wrong type, an impossible value, or two names for one parameter that disagree.
    """
    rules = {f.name: cast(Rule, f.metadata["rule"]) for f in fields(cast(Any, cls))}
    by_name = {name: key for key, rule in rules.items() for name in (key, *rule.names)}
    values: dict[str, object] = {}
    said: dict[str, str] = {}
    for name, raw in given.items():
        if name in extra:
            continue
        if name not in by_name:
            near = difflib.get_close_matches(name, [*by_name, *extra], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; valid: {', '.join(sorted(rules))}"
            key = f"algorithm_parameters.{name}"
            raise ConfigError(f"{key}: {algorithm} has no such parameter{hint}", key=key)
        key = by_name[name]
        value = _check(name, raw, rules[key])
        if key in values and values[key] != value:
            raise ConfigError(
                f"algorithm_parameters.{name}: {value!r} contradicts {said[key]!r}: {values[key]!r}, which is the same parameter",
                key=f"algorithm_parameters.{name}",
            )
        values[key], said[key] = value, name
    return cls(**values)


def parameter_table(cls: type[Any]) -> list[tuple[str, object, tuple[str, ...], str]]:
    """Each parameter's name, default, synonyms and meaning, in declaration order."""
    rows = []
    for f in fields(cls):
        rule = cast(Rule, f.metadata["rule"])
        rows.append((f.name, None if f.default is MISSING else f.default, rule.names, rule.doc))
    return rows


def _check(name: str, value: object, rule: Rule) -> object:
    key = f"algorithm_parameters.{name}"

    def fail(expected: str) -> ConfigError:
        return ConfigError(f"{key}: expected {expected}, not {reprlib.repr(value)}", key=key)

    if value is None:
        if rule.optional:
            return None
        raise fail(rule.kind)
    if rule.kind == "bool":
        if type(value) is not bool:
            raise fail("true or false")
        return value
    if rule.kind == "str":
        if not isinstance(value, str) or (rule.choices and value not in rule.choices):
            raise fail("one of " + ", ".join(rule.choices) if rule.choices else "a string")
        return value
    if rule.kind == "sizes":
        if not isinstance(value, (list, tuple)) or not all(type(n) is int and 0 < n <= MAX_WIDTH for n in value):
            raise fail(f"a list of integers from 1 to {MAX_WIDTH}")
        if len(value) > MAX_LAYERS:
            raise fail(f"at most {MAX_LAYERS} integers")
        return tuple(value)
    kind = "an integer" if rule.kind == "int" else "a number"
    within = f"{kind} from {_said(rule.low)} to {_said(rule.high)}"
    if type(value) not in (int, float):
        raise fail(within)
    number = cast(float, value)
    if not rule.low <= number <= rule.high or (rule.kind == "int" and number != int(number)):
        raise fail(within)
    return int(number) if rule.kind == "int" else float(number)


def _said(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) and abs(bound) < 1e15 else f"{bound:g}"
