"""The environment of actor processes that a command starts."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["child_environment"]


def child_environment() -> dict[str, str]:
    """Return environment variables for an actor process, so that it imports this package from the same folder as this process.

    Variables that set options of ``rl4sys-actor`` are left out: the command line of the process has all its options.
    """
    package = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH", "")]))
    ours = {k: v for k, v in os.environ.items() if not k.startswith("RL4SYS_ACTOR_")}
    return {**ours, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
