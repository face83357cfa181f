"""Lazy import: a package's public names are imported at their first use, since most programs need only some of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence


def lazy_getattr(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return a module-level `__getattr__` function that imports a package's names at their first use.

    Args:
        package: The name of the package.
        homes: A dict from each module of the package to the public names that it defines.

    Returns:
        A function that takes a name, imports the module that defines it, stores the value in the package and returns it. A
        module of the table is such a name too. The function raises `AttributeError` for a name that is not listed.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> object:
        if name in homes:
            return importlib.import_module(f"{package}.{name}")
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
