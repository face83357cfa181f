"""Registries of named objects such as algorithms and policies, which plugins can extend.

An entry of a registry comes from one of three sources:

1. A program, or a module given with ``--plugin``, registers it.
2. This package contains it.
3. An installed distribution provides it as an entry point.

A *family* is a fourth source: a function that creates the entry of a name such as ``sb3:package.module:Class``. Such a name
contains the location of the user's own object.

If several sources have an entry of the same name, the first in this list is used. An entry is imported when its name is first
used.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import with_descriptor

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = get_logger(__name__)

_imported: dict[str, None] = {}


class NamedEntry(Protocol):
    """The type of a registry's entries: any object with a name."""

    @property
    def name(self) -> str:
        """The name of the entry, as users write it in a configuration."""


E = TypeVar("E", bound=NamedEntry)
F = TypeVar("F")


def load_object(target: str) -> Any:
    """Import and return the object that ``"package.module:attribute"`` names."""
    module, _, attribute = target.partition(":")
    return getattr(with_descriptor(lambda: importlib.import_module(module)), attribute)


def load_factory(factory: F | str, owner: str, key: str, extra: str = "") -> F:
    """Return a factory. If it is given as a path ``"package.module:attribute"``, import it.

    Args:
        factory: The factory or its path.
        owner: The entry with the factory, for the error message.
        key: The key of the error.
        extra: The optional dependency group of this package that the factory needs; empty if none.

    Raises:
        ConfigError: If the factory cannot be imported.
    """
    try:
        return cast(F, load_object(factory)) if isinstance(factory, str) else factory
    except (ImportError, AttributeError) as exc:
        remedy = f"pip install 'rl4sys-zmq[{extra}]'" if extra else "install what is missing, or correct the entry"
        raise ConfigError(f"{owner} cannot be loaded from {factory} ({exc}): {remedy}", key=key) from exc


def import_plugins(modules: Iterable[str], file: str | os.PathLike[str] | None = None) -> None:
    """Import modules that register algorithms or policies when they are imported.

    `file` is the configuration file that names them, for the error message. Raise ConfigError if an import fails.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as exc:  # a foreign module can raise anything; it is raised again as our error
            message = f"plugin {module!r} cannot be imported: {_reason(exc)}; {_remedy(module, exc, file)}"
            raise ConfigError(message, key="plugins") from exc
        _imported[module] = None


def _remedy(module: str, error: Exception, file: str | os.PathLike[str] | None) -> str:
    path = Path(module)
    if path.suffix == ".py" or len(path.parts) > 1:
        return f"give the module's name, {path.stem}, and start with PYTHONPATH={path.parent}"
    top = module.partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name == top:
        for folder in (Path(file or ".").parent, Path()):
            if (folder / f"{top}.py").is_file() or (folder / top).is_dir():
                return f"Python does not look in the folder of {folder / top}: start with PYTHONPATH={folder}"
    return "install it, or add its folder to PYTHONPATH"


def imported_plugins() -> list[str]:
    """Return the names of the modules that `import_plugins` has imported in this process, in the order of the first import."""
    return list(_imported)


class Registry(Generic[E]):
    """A collection of entries of one type, such as all algorithms, by name. Each entry is loaded once, at its first use.

    If the entry point of an installed distribution cannot be loaded, `get` raises for this name. An entry point whose name is
    already in use is ignored. In both cases `faults` lists the problem, and all other entries work.

    Attributes:
        noun: The word for an entry in messages, such as ``algorithm``.
    """

    def __init__(
        self,
        entry_type: type[E],
        shipped: Mapping[str, str],
        *,
        noun: str,
        group: str,
        key: str,
        fold: Callable[[str], str] = str,
        families: Mapping[str, str] | None = None,
    ) -> None:
        """Create a registry.

        Args:
            entry_type: The class of the entries.
            shipped: The location of each entry in this package, by name.
            noun: The word for an entry in messages.
            group: The group of entry points in which installed distributions offer entries.
            key: The configuration key for `ConfigError`.
            fold: A function that converts a name to the form that is compared and stored.
            families: The location of each family's function, by the prefix of its names.
        """
        self.noun = noun
        self._type = entry_type
        self._shipped = dict(shipped)
        self._group = group
        self._key = key
        self._fold = fold
        self._families = dict(families or {})
        self._entries: dict[str, E] = {}
        self._points: dict[str, EntryPoint] | None = None
        self._broken: dict[str, str] = {}
        self._clashes: list[str] = []

    def add(self, entry: E, *, replace: bool) -> None:
        """Add an entry. With `replace`, the entry takes the place of an existing one of the same name."""
        name = self._fold(entry.name)
        if not replace and (name in self._shipped or self._entries.get(name, entry) != entry):
            raise ConfigError(f"{self.noun} {name!r} is registered already; choose another name", key=self._key)
        self._entries[name] = entry

    def names(self) -> list[str]:
        """Return all names, sorted. This reads the metadata of distributions but imports none of their modules."""
        return sorted({*self._entries, *self._shipped, *self._found()})

    def has(self, name: str) -> bool:
        """Return True if there is an entry of this name. Nothing is imported."""
        key = self._fold(name)
        return key in self._entries or key in self._shipped or key in self._found() or self._family(key) is not None

    def locates(self, name: str) -> bool:
        """Return True for a name with a module path, such as ``sb3:package.module:Class``, which is imported with the entry."""
        key = self._fold(name)
        return key not in self._entries and key not in self._shipped and self._family(key) is not None

    def require(self, name: str) -> None:
        """Raise ConfigError if there is no entry of a name. Nothing is imported."""
        if self.has(name):
            return
        import difflib  # imported late: needed only for a mistyped name

        names = self.names()
        near = difflib.get_close_matches(self._fold(name), names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown {self.noun} {name!r}; valid: {', '.join(names)}{hint}", key=self._key)

    def get(self, name: str) -> E:
        """Return the entry of a name."""
        key = self._fold(name)
        entry = self._entries.get(key)
        if entry is None:
            self.require(name)
            entry = self._load(key)
        return entry

    def loadable(self) -> Iterator[tuple[str, E]]:
        """Yield the name and the entry of each that can be loaded, sorted. `faults` lists the others."""
        for name in self.names():
            try:
                yield name, self.get(name)
            except ConfigError:
                continue

    def faults(self) -> list[str]:
        """Load the entry points (plugins) of installed distributions, and return a message for each that cannot be used."""
        for key in self._found():
            if key not in self._entries and key not in self._broken:
                try:
                    self._load(key)
                except ConfigError:
                    continue  # kept in `_broken`
        return [*self._clashes, *self._broken.values()]

    def _load(self, key: str) -> E:
        if key in self._broken:
            raise ConfigError(self._broken[key], key=self._key)
        target, family = self._shipped.get(key), self._family(key)
        if target is not None:
            entry = cast(E, load_object(target))
        elif family is not None:
            entry = cast(E, load_object(family)(key))
        else:
            entry = self._load_point(key, self._found()[key])
        # Two threads can load at the same time. Both get the entry that was stored first.
        return self._entries.setdefault(key, entry)

    def _family(self, key: str) -> str | None:
        """Return the location of the function that creates the entry of a name; None if the name belongs to no family."""
        first, _, target = key.partition(":")
        return self._families.get(first) if ":" in target else None

    def _load_point(self, key: str, point: EntryPoint) -> E:
        problem = ""
        cause: Exception | None = None
        try:
            entry = point.load()
        except Exception as exc:  # noqa: BLE001  # a foreign module can raise anything; it is raised again as our error
            problem, cause = _reason(exc), exc
        else:
            if not isinstance(entry, self._type):
                problem = f"it is a {type(entry).__name__}, not a {self._type.__name__}"
            elif self._fold(entry.name) != key:
                problem = f"its entry has the name {entry.name!r}"
            else:
                return entry
        message = f"{self.noun} {key!r} cannot be loaded from {_origin(point)}: {problem}; repair or uninstall that distribution"
        if self._broken.setdefault(key, message) is message:
            log.warning("%s", message)
        raise ConfigError(message, key=self._key) from cause

    def _found(self) -> Mapping[str, EntryPoint]:
        """Return the entry points (plugins) of installed distributions by name, without those whose name is in use."""
        if self._points is None:
            from importlib.metadata import entry_points  # imported late: it takes some milliseconds

            found: dict[str, EntryPoint] = {}
            clashes: list[str] = []
            # A distribution can be on the path twice. Its entry points are then equal.
            for point in sorted(set(entry_points(group=self._group)), key=_origin):
                name = self._fold(point.name)
                owner = "this package" if name in self._shipped else _origin(found[name]) if name in found else ""
                if owner:
                    clashes.append(
                        f"{self.noun} {name!r} of {_origin(point)} is not used: {owner} has that name; uninstall one of the two"
                    )
                    log.warning("%s", clashes[-1])
                else:
                    found[name] = point
            self._clashes, self._points = clashes, found
        return self._points


def _origin(point: EntryPoint) -> str:
    distribution = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unnamed distribution"
    return f"{distribution} ({point.value})"


def _reason(exc: Exception) -> str:
    return " ".join(f"{type(exc).__name__}: {exc}".split())
