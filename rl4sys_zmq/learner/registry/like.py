"""The parameter ``like``: an algorithm takes the parameters of another library, and converts them to those of this one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from rl4sys_zmq.config.options import InvalidValue, check_value, closest, number, unknown_key
from rl4sys_zmq.errors import config_error

__all__ = ["LIKE", "Libraries", "Library", "ForeignParameter", "ambiguous_names", "falling"]
__all__ += ["libraries_of", "our_name", "times", "translated"]

LIKE = "like"
"""The parameter that names a library."""
OURS = "rl4sys_zmq"
"""The value of `LIKE` for this library. It silences the report of ambiguous names."""
FALLING = "lin_"
"""The beginning of a value that falls linearly to 0, as RL Baselines3 Zoo writes it."""
SECTION = "algorithm_parameters"

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ForeignParameter:
    """The description of one parameter of another library, and the rule that converts its value.

    Attributes:
        default: The default in the other library; ``...`` if there is none, so that this library's default applies.
        note: The rule of the conversion, or the meaning in the other library.
        ours: The name in this library, or several with commas; empty if the other library's name is a synonym here.
        convert: A function from the value and all parameters by name to ours. It raises `InvalidValue`. None without a rule.
        differs: True if, without ``like``, the name has another meaning in this library.
    """

    default: object
    note: str
    ours: str = ""
    convert: Callable[[Any, Values], dict[str, object]] | None = None
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Library:
    """The table of the parameters that another library has for one algorithm.

    Attributes:
        title: The name of the library, and its class or file.
        names: By name there, a `ForeignParameter`; or the default alone (``...`` for none) if only the name can differ.
        rules: Values of this library's parameters that reproduce a rule of the other library for which it has no parameter.
        absent: The reason and the remedy for each parameter without a counterpart here, if it is not in `names`.
        differences: The remaining differences, as sentences.
        marks: Names that only files of the other library have. If one of them is given, no name is ambiguous.
        numbers: The kind of actions that the defaults are for: True for a Box, False for discrete actions, None for all.
    """

    title: str
    names: Values
    rules: Values
    absent: Mapping[str, str]
    differences: str
    marks: frozenset[str] = frozenset()
    numbers: bool | None = None

    def row(self, name: str) -> ForeignParameter:
        """Return the entry of `names` for a name, as a `ForeignParameter`."""
        known = self.names[name]
        return known if isinstance(known, ForeignParameter) else ForeignParameter(known, "")


Libraries = Mapping[str, Library]
"""The tables of an algorithm, by the value of ``like``."""


def our_name(cls: type[Any], library: Library, name: str) -> str:
    """Return this library's name of a parameter of another library, or several names with commas."""
    synonyms = (f.name for f in fields(cls) if name == f.name or name in f.metadata.get("names", ()))
    return library.row(name).ours or next(synonyms, name)


def translated(cls: type[Any], given: Values, elsewhere: Collection[str], algorithm: str) -> Values:
    """Return the parameters of an algorithm with the names and the meaning of this library.

    Without ``like``, they are unchanged. With it, a missing parameter has the other library's default, and this library's names
    are accepted where the other library has none. The keys in `elsewhere` are passed on unchecked.

    Raises:
        ConfigError: If there is no table of this library, a name is unknown, has no counterpart or contradicts one of this
            library's names, or a value is invalid.
    """
    libraries, like, rest = libraries_of(cls), given.get(LIKE), {key: value for key, value in given.items() if key != LIKE}
    if like is None or (like == OURS and libraries):
        return rest
    if not isinstance(like, str) or like not in libraries:
        near = closest(str(like)[:40], libraries)
        advice = f"it has {', '.join([*libraries, OURS])}" if libraries else "leave it out"
        problem = f"{algorithm} has no table of {like!r:.60}; " + (f"did you mean {near[0]!r}?" if near else advice)
        raise config_error(f"{SECTION}.{LIKE}", problem)
    library = libraries[like]
    own = {*(f.name for f in fields(cls)), *elsewhere}
    ours = {key: value for key, value in rest.items() if key not in library.names}
    for key in ours:
        if key in library.absent:
            problem = f"it has no counterpart here ({library.title}): {library.absent[key]}"
            raise config_error(f"{SECTION}.{key}", problem)
        if key not in own:
            problem, hint = f"{library.title} has no such parameter", "`rl4sys-learner algorithms` lists them"
            raise unknown_key(key, [*library.names, *own], SECTION, problem=problem, hint=hint)
    values = {name: default for name in library.names if (default := library.row(name).default) is not ...} | rest
    converted, chosen = dict(library.rules), set(ours)
    for name in filter(values.__contains__, library.names):
        key, rule = f"{SECTION}.{name}", library.row(name).convert
        part = {our_name(cls, library, name): values[name]}
        if rule is not None:
            part = check_value(key, values[name], lambda value, rule=rule: rule(value, values))  # type: ignore[misc]
        if name in given and (both := chosen & part.keys()):
            raise config_error(key, f"it contradicts {min(both)}; give only one of them")
        chosen |= part.keys() if name in given else set()
        converted |= part
    if given.get("network") is not None:  # its options are its own
        converted = {key: value for key, value in converted.items() if key not in ("hidden_sizes", "activation") or key in chosen}
    return converted | ours


def ambiguous_names(cls: type[Any] | None, given: Values, numbers: bool | None) -> list[str]:
    """Return warnings about given parameters: one line for each name whose meaning differs between libraries.

    If the parameter ``like`` is given, it settles the meaning of all names. Then the only warning is that the defaults of the
    library in ``like`` are for continuous actions and the client's are discrete, or the reverse. `numbers` is True if the
    client's actions have a Box, False if they do not, None if they are not known.
    """
    libraries, like = libraries_of(cls), given.get(LIKE)
    if isinstance(like, str) and like in libraries:
        other = None not in (numbers, libraries[like].numbers) and numbers is not libraries[like].numbers
        better = [f"like: {key}" for key, of in libraries.items() if of.numbers is numbers] or ["a value for each name"]
        return [f"like: {like} has the defaults of {libraries[like].title} for other actions; give {better[0]}"] if other else []
    if like is not None or any(of.marks & given.keys() for of in libraries.values()):
        return []
    rows = {name: [(key, of.row(name)) for key, of in libraries.items() if name in of.names] for name in given}
    said = {name: [f"like: {key}: {row.note}" for key, row in each if row.differs] for name, each in rows.items()}
    keep = f"Choose one by like, or keep the meaning here by like: {OURS}"
    return [f"{name}: {'; '.join(notes)}. {keep}" for name, notes in said.items() if notes]


def falling(default: float, ours: str, schedule: Values) -> ForeignParameter:
    """Return the entry of a number that the other library lets fall linearly to 0 if the value asks for that.

    `ours` is this library's name. If the number falls, this library's parameters get the values of `schedule`.
    """

    def convert(value: Any, values: Values) -> dict[str, object]:
        try:
            falls = isinstance(value, str) and value.startswith(FALLING)
            return {ours: number(0.0, 1e9)(float(value[len(FALLING) :]) if falls else value), **(schedule if falls else {})}
        except ValueError:
            raise InvalidValue(f"a number from 0, or {FALLING} and a number that falls to 0") from None

    return ForeignParameter(default, f"{FALLING} and a number: from it to 0, by {', '.join(schedule)}", ours, convert)


def times(factor: float, name: str, default: object, note: str) -> ForeignParameter:
    """Return the entry of a number whose value here is `factor` times that in the other library. Null stays null."""
    read = number(0.0, 1e9)
    return ForeignParameter(default, note, "", lambda value, _: {name: None if value is None else factor * read(value)}, True)


def libraries_of(cls: type[Any] | None) -> Libraries:
    """Return an algorithm's tables of other libraries, by library, given the dataclass of its parameters."""
    libraries: Libraries = getattr(cls, "libraries", {})
    return libraries
