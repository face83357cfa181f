"""Splits other than actor and learner, as services: environments that are stepped from elsewhere.

- `GymEnvServer` serves any Gymnasium environment; `RemoteEnv` is one of them as a `gymnasium.Env`, `RemoteVectorEnv` several as a
  `gymnasium.vector.VectorEnv`. `GymEnvServerWrapper` and `GymEnvClientWrapper`: the same with agentlace's calls.
- `leases` says who has which environment; `spaces` how spaces and their elements travel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq.late import load_late

if TYPE_CHECKING:
    from rl4sys_zmq.serving.environments import GymEnvServer
    from rl4sys_zmq.serving.gym_wrappers import GymEnvClientWrapper, GymEnvServerWrapper
    from rl4sys_zmq.serving.remote_env import RemoteEnv
    from rl4sys_zmq.serving.remote_vector import RemoteVectorEnv

__all__ = ["GymEnvClientWrapper", "GymEnvServer", "GymEnvServerWrapper", "RemoteEnv", "RemoteVectorEnv"]

__getattr__ = load_late(
    __name__,
    {
        "environments": ("GymEnvServer",),
        "gym_wrappers": ("GymEnvClientWrapper", "GymEnvServerWrapper"),
        "remote_env": ("RemoteEnv",),
        "remote_vector": ("RemoteVectorEnv",),
    },
)
