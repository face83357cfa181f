"""Services: what runs elsewhere, called as if it were here.

- `InferenceServer`, `InferenceClient`: functions by name, batched over callers.

Over `rl4sys_zmq.calls`: payloads are trees of numpy arrays, scalars, strings and bytes; nothing is ever pickled or unpickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq.late import load_late

if TYPE_CHECKING:
    from rl4sys_zmq.calls import Batching
    from rl4sys_zmq.serving.inference import InferenceClient, InferenceServer
    from rl4sys_zmq.serving.stacking import stack, unstack

__all__ = ["Batching", "InferenceClient", "InferenceServer", "stack", "unstack"]

__getattr__ = load_late(
    __name__,
    {
        "inference": ("Batching", "InferenceClient", "InferenceServer"),
        "stacking": ("stack", "unstack"),
    },
)
