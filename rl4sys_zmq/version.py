"""The version of this package."""

from __future__ import annotations

import sys


def package_version() -> str:
    """Return the version of this package.

    Other modules call this function because they must not import from the package ``rl4sys_zmq`` itself. The function reads the
    package's ``__version__`` from `sys.modules`.
    """
    return str(sys.modules["rl4sys_zmq"].__version__)
