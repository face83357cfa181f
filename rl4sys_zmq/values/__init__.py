"""The immutable values that all parts of the library share. They need only NumPy.

- `Segment`: consecutive steps of one episode, as columns.
- `PolicySpec`: the description of a policy. `TensorSpec`: one of its tensors (`tensors`). `PolicySnapshot`: its weights at one
  version.
- `BoxSpace`, `DiscreteSpace` and eight more in `spaces`: observation and action spaces. `space_conversion` reads them from JSON
  and from Gymnasium: `space_from` those of a learner client, `any_space_from` all kinds.
- `trees`: the elements of spaces, nested structures of arrays.
"""

from rl4sys_zmq.values.policy import ACTIVATIONS, MAX_BLOB_BYTES, FlatWeights, PolicySnapshot, PolicySpec, feature_size
from rl4sys_zmq.values.segment import Segment
from rl4sys_zmq.values.space_conversion import space_from, space_to_json
from rl4sys_zmq.values.spaces import DTYPES, BoxSpace, DiscreteSpace, Space
from rl4sys_zmq.values.tensors import TensorSpec, other_bytes, other_views

__all__ = [
    "ACTIVATIONS",
    "DTYPES",
    "MAX_BLOB_BYTES",
    "BoxSpace",
    "DiscreteSpace",
    "FlatWeights",
    "PolicySnapshot",
    "PolicySpec",
    "Segment",
    "Space",
    "TensorSpec",
    "feature_size",
    "other_bytes",
    "other_views",
    "space_from",
    "space_to_json",
]
