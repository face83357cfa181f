"""Services on top of calls, with the names and call shapes that agentlace's users know.

- `ActionServer`, `ActionClient`, `ActionConfig`: a robot, or anything that is observed and acts, as a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq.late import load_late

if TYPE_CHECKING:
    from rl4sys_zmq.serving.action import ActionClient, ActionServer
    from rl4sys_zmq.serving.action_config import ActionConfig

__all__ = ["ActionClient", "ActionConfig", "ActionServer"]

__getattr__ = load_late(
    __name__,
    {
        "action": ("ActionClient", "ActionServer"),
        "action_config": ("ActionConfig",),
    },
)
