"""Names of a package that are imported at their first use. Most programs need only the actor or only the learner."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence

__all__ = ["lazy_getattr"]


def lazy_getattr(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return a `__getattr__` for a package.

    Args:
        package: The name of the package.
        homes: For each module of the package, the names to look up there.

    Returns:
        A function that imports the module of a name and stores the value in the package. It raises `AttributeError` for a name
        that is not listed.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
