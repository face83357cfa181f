"""What flows through the house: frozen values, numpy only.

- `Segment`: consecutive steps of one episode, as columns.
- `PolicySpec`: a policy described; `TensorSpec`: one of its tensors; `PolicySnapshot`: its weights at one version.
- `BoxSpace`, `DiscreteSpace`: observation and action spaces, read from Gymnasium's by `space_from`.
"""

from rl4sys_zmq.values.policy import ACTIVATIONS, FlatWeights, PolicySnapshot, PolicySpec, TensorSpec, feature_size
from rl4sys_zmq.values.segment import Segment
from rl4sys_zmq.values.spaces import DTYPES, BoxSpace, DiscreteSpace, Space, space_from, space_to_json

__all__ = [
    "ACTIVATIONS",
    "DTYPES",
    "BoxSpace",
    "DiscreteSpace",
    "FlatWeights",
    "PolicySnapshot",
    "PolicySpec",
    "Segment",
    "Space",
    "TensorSpec",
    "feature_size",
    "space_from",
    "space_to_json",
]
