"""Data stores: buffers of an actor's unsent data, and replay buffers of a trainer. The only dependency is numpy.

`DataStoreBase` is the base class for a store of your own, which `rl4sys_zmq.testing.check_data_store` tests.
"""

from rl4sys_zmq.replay.layout import DataShape
from rl4sys_zmq.serving.data.base import DataStoreBase, QueuedDataStore
from rl4sys_zmq.serving.data.jaxrl import (
    MemoryEfficientReplayBufferDataStore,
    ReplayBufferDataStore,
    TrajectoryBufferDataStore,
    make_default_trajectory_buffer,
)
from rl4sys_zmq.serving.data.replay import ReplayBuffer
from rl4sys_zmq.serving.data.samplers import FutureSampler, LatestSampler, PrioritySampler, SampledRows, Sampler, SequenceSampler
from rl4sys_zmq.serving.data.trajectory import TrajectoryBuffer

__all__ = [
    "DataShape",
    "DataStoreBase",
    "SampledRows",
    "FutureSampler",
    "LatestSampler",
    "MemoryEfficientReplayBufferDataStore",
    "PrioritySampler",
    "QueuedDataStore",
    "ReplayBuffer",
    "ReplayBufferDataStore",
    "Sampler",
    "SequenceSampler",
    "TrajectoryBuffer",
    "TrajectoryBufferDataStore",
    "make_default_trajectory_buffer",
]
