"""The version of this package."""

from __future__ import annotations

import sys

__all__ = ["package_version"]


def package_version() -> str:
    """Return the version of this package.

    The package itself is above all other modules, so they cannot import the version from it. It is loaded when they are.
    """
    return str(sys.modules["rl4sys_zmq"].__version__)
