"""The extension module with the compiled functions, if it is here: `load` returns it, and `reason` says why it is not used."""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from types import ModuleType

VARIABLE = "RL4SYS_NATIVE"
"""The environment variable whose value is the default of the option ``native``: ``auto``, ``always`` or ``never``."""


def default() -> str:
    """Return the word of the environment; ``auto`` without one."""
    word = os.environ.get(VARIABLE, "auto")
    return word if word in ("always", "never") else "auto"


def load() -> ModuleType | None:
    """Return the extension module, or None if this process uses the pure Python form."""
    return _find()[0]


def require() -> ModuleType:
    """Return the extension module, which must be there."""
    module = load()
    assert module is not None
    return module


def reason() -> str:
    """Return the reason why `load` returns None; empty if it returns the module."""
    return _find()[1]


@cache
def _find() -> tuple[ModuleType | None, str]:
    try:
        import zmq  # noqa: F401 - the module uses the libzmq that this import loads

        _native = importlib.import_module("._native", __package__)  # the package itself stands on the highest floor
    except ImportError as exc:
        return None, f"the extension was not built, or cannot be loaded: {exc}"
    version = str(sys.modules["rl4sys_zmq"].__version__)
    if version != _native.VERSION:
        return None, f"the extension is of version {_native.VERSION}, and the package of version {version}"
    missing = _native.missing()
    return (None, missing) if missing else (_native, "")
