"""The extension module with the compiled functions, if it is here: `load` returns it, and `reason` says why it is not used."""

from __future__ import annotations

import os
import sys
from functools import cache
from types import ModuleType

from rl4sys_zmq.errors import ConfigError

VARIABLE = "RL4SYS_NATIVE"
"""The environment variable whose value is the default of the option ``native``: ``auto``, ``always`` or ``never``."""

HOW = "a C++ compiler and Python's headers at the time of the install build it"


def default() -> str:
    """Return the word of the environment; ``auto`` without one.

    Raises:
        ConfigError: The environment has another word.
    """
    word = os.environ.get(VARIABLE) or "auto"
    if word not in ("auto", "always", "never"):
        raise ConfigError(f"the environment variable {VARIABLE} is {word!r}; it must be auto, always or never")
    return word


def load() -> ModuleType | None:
    """Return the extension module, or None if this process uses the pure Python form."""
    return None if default() == "never" else _find()[0]


def require() -> ModuleType:
    """Return the extension module, which must be there."""
    module = load()
    assert module is not None
    return module


def reason() -> str:
    """Return the reason why `load` returns None; empty if it returns the module."""
    return f"the environment has {VARIABLE}=never" if default() == "never" else _find()[1]


def form() -> str:
    """Return the form of this process, for people: ``compiled``, or ``pure`` with the reason."""
    return f"pure: {reason()}" if load() is None else "compiled"


@cache
def _find() -> tuple[ModuleType | None, str]:
    try:
        import zmq  # noqa: F401 - the module uses the libzmq that this import loads

        from rl4sys_zmq import _native
    except ImportError as exc:
        # A file that is there has an error of its own; without one, Python only says that the name is unknown.
        cause = f"the extension does not load: {exc}" if _file_exists() else f"the extension was not built; {HOW}"
        return None, cause
    version = str(sys.modules["rl4sys_zmq"].__version__)
    if version != _native.VERSION:
        return None, f"the extension is of version {_native.VERSION}, and the package of version {version}; install it again"
    missing = _native.missing()
    return (None, missing) if missing else (_native, "")


def _file_exists() -> bool:
    return os.path.exists(os.path.join(os.path.dirname(__file__), "_native.abi3.so"))
