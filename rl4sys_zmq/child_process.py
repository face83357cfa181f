"""Helpers for a program that starts modules of this package as child processes."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

__all__ = ["child_environment", "end_text"]


def child_environment() -> dict[str, str]:
    """Return the environment variables for a child: those of this process, with this package's folder in ``PYTHONPATH``.

    This program can have found the package by a change of `sys.path`, which the child does not inherit.
    """
    root = str(Path(__file__).resolve().parents[1])
    environment = dict(os.environ)
    if not root.endswith(("site-packages", "dist-packages")):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), root]))
    return environment


def end_text(code: int) -> str:
    """Return the end of a process as text, such as ``signal 6 (SIGABRT)``.

    Args:
        code: The exit status; the negative number of the signal if a signal ended the process.
    """
    if code >= 0:
        return f"exit status {code}"
    with contextlib.suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"
