"""Names of a package that are loaded when first used: most programs are an actor or a learner, and need a part."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence

__all__ = ["load_late"]


def load_late(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """A `__getattr__` for a package.

    Args:
        package: its name.
        homes: for each module within it, the names that are looked up there.

    Returns:
        What loads the module of a name, and keeps the name's value in the package; it raises `AttributeError` for others.
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
