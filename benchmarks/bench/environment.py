"""The environment of child processes that import ``bench``, such as an actor in an environment of this package."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["environment"]

FOLDER = Path(__file__).resolve().parents[1]


def environment() -> dict[str, str]:
    """Return the variables of this process, with the folder of ``bench`` first in PYTHONPATH."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])}
