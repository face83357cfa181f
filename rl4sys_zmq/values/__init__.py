"""The immutable values that all parts of the library share. They need only NumPy.

- `Segment`: consecutive steps of one episode, as columns.
- `PolicySpec`: the description of a policy, with a `TensorSpec` for each tensor, and a `ColumnSpec` for each extra column that
  the policy adds to segments. `PolicySnapshot`: the weights of a policy at one version.
- `spaces`: ten kinds of spaces, such as `BoxSpace`. `space_conversion`: reads them from JSON and from Gymnasium.
- `observations`: nested observations as lists of arrays, and back. `features`: the numbers that a network gets for them.
- `action_layout`: the parts of an action, and their order in the outputs of a network.
- `trees`: functions for nested dicts, lists and tuples of arrays.
"""

from rl4sys_zmq.values.features import feature_size
from rl4sys_zmq.values.policy import (
    ACTIVATIONS,
    MAX_BLOB_BYTES,
    FlatWeights,
    PolicySnapshot,
    PolicySpec,
    TensorSpec,
    other_bytes,
    other_views,
)
from rl4sys_zmq.values.segment import NO_EXTRAS, ColumnSpec, Segment, evaluation_of
from rl4sys_zmq.values.space_conversion import observation_space_from, space_from, space_to_json
from rl4sys_zmq.values.spaces import (
    DTYPES,
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    ObservationSpace,
    Space,
    TupleSpace,
)

__all__ = [
    "ACTIVATIONS",
    "DTYPES",
    "MAX_BLOB_BYTES",
    "NO_EXTRAS",
    "BoxSpace",
    "ColumnSpec",
    "DictSpace",
    "DiscreteSpace",
    "FlatWeights",
    "MultiBinarySpace",
    "MultiDiscreteSpace",
    "ObservationSpace",
    "PolicySnapshot",
    "PolicySpec",
    "Segment",
    "Space",
    "TensorSpec",
    "TupleSpace",
    "evaluation_of",
    "feature_size",
    "other_bytes",
    "other_views",
    "observation_space_from",
    "space_from",
    "space_to_json",
]
