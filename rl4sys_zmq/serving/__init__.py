"""Services: what runs elsewhere, called as if it were here.

- `GymEnvServer` serves any Gymnasium environment; `RemoteEnv` is one of them as a `gymnasium.Env`, `RemoteVectorEnv` several as a
  `gymnasium.vector.VectorEnv`. `GymEnvServerWrapper` and `GymEnvClientWrapper`: the same with agentlace's calls.
- `InferenceServer`, `InferenceClient`: functions by name, batched over callers.

Over `rl4sys_zmq.calls`: payloads are trees of numpy arrays, scalars, strings and bytes; nothing is ever pickled or unpickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq.late import load_late

if TYPE_CHECKING:
    from rl4sys_zmq.calls import Batching
    from rl4sys_zmq.serving.environments import GymEnvServer
    from rl4sys_zmq.serving.gym_wrappers import GymEnvClientWrapper, GymEnvServerWrapper
    from rl4sys_zmq.serving.inference import InferenceClient, InferenceServer
    from rl4sys_zmq.serving.remote_env import RemoteEnv
    from rl4sys_zmq.serving.remote_vector import RemoteVectorEnv
    from rl4sys_zmq.serving.stacking import stack, unstack

__all__ = [
    "Batching",
    "GymEnvClientWrapper",
    "GymEnvServer",
    "GymEnvServerWrapper",
    "InferenceClient",
    "InferenceServer",
    "RemoteEnv",
    "RemoteVectorEnv",
    "stack",
    "unstack",
]

__getattr__ = load_late(
    __name__,
    {
        "environments": ("GymEnvServer",),
        "gym_wrappers": ("GymEnvClientWrapper", "GymEnvServerWrapper"),
        "inference": ("Batching", "InferenceClient", "InferenceServer"),
        "remote_env": ("RemoteEnv",),
        "remote_vector": ("RemoteVectorEnv",),
        "stacking": ("stack", "unstack"),
    },
)
