"""Data stores: an actor's buffers of unsent data, and a trainer's replay buffers. They need only numpy.

- `DataStoreBase`: the contract, for stores of your own. `rl4sys_zmq.testing.check_data_store` checks it.
- `QueuedDataStore`: a bounded queue of any payload.
- `ReplayBuffer`: transitions, sampled one by one; equal images are stored once.
- `TrajectoryBuffer`: steps in order, sampled through `LatestSampler`, `SequenceSampler` and `FutureSampler`, and by priority
  with `PrioritySampler`. `DataShape` declares a column.
"""

from rl4sys_zmq.serving.data.base import DataStoreBase
from rl4sys_zmq.serving.data.layout import DataShape
from rl4sys_zmq.serving.data.queued import QueuedDataStore
from rl4sys_zmq.serving.data.replay import ReplayBuffer
from rl4sys_zmq.serving.data.samplers import FutureSampler, LatestSampler, PrioritySampler, SampledRows, Sampler, SequenceSampler
from rl4sys_zmq.serving.data.trajectory import TrajectoryBuffer

__all__ = [
    "DataShape",
    "DataStoreBase",
    "SampledRows",
    "FutureSampler",
    "LatestSampler",
    "PrioritySampler",
    "QueuedDataStore",
    "ReplayBuffer",
    "Sampler",
    "SequenceSampler",
    "TrajectoryBuffer",
]
