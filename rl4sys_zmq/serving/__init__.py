"""Services over `rl4sys_zmq.rpc` (inference, environments, devices such as robots, trainers), and data stores.

- `InferenceServer`, `InferenceClient`: remote calls of named functions. Calls of several callers can be joined to one batch
  (`BatchLimits`, `stack`, `unstack`).
- `GymEnvServer`, `RemoteEnv`, `RemoteVectorEnv`: remote Gymnasium environments. `GymEnvServerWrapper`, `GymEnvClient` and
  `GymEnvClientWrapper` do the same for a single environment; the names are those of the library agentlace.
- `ActionServer`, `ActionClient`, `ActionConfig`: a robot, or anything else that can be observed and can act.
- `TrainerServer`, `TrainerClient`, `TrainerConfig`: copy actors' data stores to a trainer, and send networks back.
  `TrainerSMInterface` does the same within one process. `UpdateResult` is the result of one update.
- `DataStoreBase`: the contract of a data store. `QueuedDataStore`, `ReplayBuffer` and `TrajectoryBuffer` implement it.
  `ReplayBufferDataStore`, `MemoryEfficientReplayBufferDataStore`, `TrajectoryBufferDataStore` and
  `make_default_trajectory_buffer` have the arguments of jaxrl and SERL. `DataShape` declares a value of an item.
  `LatestSampler`, `SequenceSampler` and `FutureSampler` choose the steps of a sample.
- `mat_to_jpeg`, `jpeg_to_mat`: convert one image, with colours in OpenCV's order, to a JPEG file and back.

A payload is a tree: nested dicts, lists and tuples of numpy arrays, numbers, strings and bytes. Nothing is pickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq._lazy import lazy_getattr

if TYPE_CHECKING:
    from rl4sys_zmq.rpc import BatchLimits
    from rl4sys_zmq.serving.action import ActionClient, ActionServer
    from rl4sys_zmq.serving.config import ActionConfig, TrainerConfig
    from rl4sys_zmq.serving.data import (
        DataShape,
        DataStoreBase,
        FutureSampler,
        LatestSampler,
        MemoryEfficientReplayBufferDataStore,
        QueuedDataStore,
        ReplayBuffer,
        ReplayBufferDataStore,
        SequenceSampler,
        TrajectoryBuffer,
        TrajectoryBufferDataStore,
        make_default_trajectory_buffer,
    )
    from rl4sys_zmq.serving.environments import GymEnvServer
    from rl4sys_zmq.serving.gym_wrappers import GymEnvClient, GymEnvClientWrapper, GymEnvServerWrapper
    from rl4sys_zmq.serving.image_coding import jpeg_to_mat, mat_to_jpeg
    from rl4sys_zmq.serving.inference import InferenceClient, InferenceServer, stack, unstack
    from rl4sys_zmq.serving.remote_env import RemoteEnv
    from rl4sys_zmq.serving.remote_vector import RemoteVectorEnv
    from rl4sys_zmq.serving.trainer_client import TrainerClient
    from rl4sys_zmq.serving.trainer_local import TrainerSMInterface
    from rl4sys_zmq.serving.trainer_server import TrainerServer
    from rl4sys_zmq.serving.trainer_transfer import UpdateResult

__all__ = [
    "ActionClient",
    "ActionConfig",
    "ActionServer",
    "BatchLimits",
    "DataShape",
    "DataStoreBase",
    "FutureSampler",
    "GymEnvClient",
    "GymEnvClientWrapper",
    "GymEnvServer",
    "GymEnvServerWrapper",
    "InferenceClient",
    "InferenceServer",
    "LatestSampler",
    "MemoryEfficientReplayBufferDataStore",
    "QueuedDataStore",
    "RemoteEnv",
    "RemoteVectorEnv",
    "ReplayBuffer",
    "ReplayBufferDataStore",
    "SequenceSampler",
    "TrainerClient",
    "TrainerConfig",
    "TrainerSMInterface",
    "TrainerServer",
    "TrajectoryBuffer",
    "TrajectoryBufferDataStore",
    "UpdateResult",
    "jpeg_to_mat",
    "make_default_trajectory_buffer",
    "mat_to_jpeg",
    "stack",
    "unstack",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "action": ("ActionClient", "ActionServer"),
        "config": ("ActionConfig", "TrainerConfig"),
        "data": (
            "DataShape",
            "DataStoreBase",
            "FutureSampler",
            "LatestSampler",
            "MemoryEfficientReplayBufferDataStore",
            "QueuedDataStore",
            "ReplayBuffer",
            "ReplayBufferDataStore",
            "SequenceSampler",
            "TrajectoryBuffer",
            "TrajectoryBufferDataStore",
            "make_default_trajectory_buffer",
        ),
        "environments": ("GymEnvServer",),
        "gym_wrappers": ("GymEnvClient", "GymEnvClientWrapper", "GymEnvServerWrapper"),
        "image_coding": ("jpeg_to_mat", "mat_to_jpeg"),
        "inference": ("BatchLimits", "InferenceClient", "InferenceServer", "stack", "unstack"),
        "remote_env": ("RemoteEnv",),
        "remote_vector": ("RemoteVectorEnv",),
        "trainer_client": ("TrainerClient",),
        "trainer_local": ("TrainerSMInterface",),
        "trainer_server": ("TrainerServer",),
        "trainer_transfer": ("UpdateResult",),
    },
)
