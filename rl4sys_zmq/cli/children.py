"""The environment of actor processes that a command starts."""

from __future__ import annotations

from rl4sys_zmq.child_process import child_environment


def actor_environment() -> dict[str, str]:
    """Return environment variables for an actor process, so that it imports this package from the same folder as this process.

    Variables that set options of ``rl4sys-actor`` are left out: the command line of the process has all its options.
    """
    found = {k: v for k, v in child_environment().items() if not k.startswith("RL4SYS_ACTOR_")}
    return {**found, "PYTHONUNBUFFERED": "1"}
