"""The immutable values that all parts of the library share. They need only NumPy.

- `Segment`: consecutive steps of one episode, as columns.
- `PolicySpec`: the description of a policy. `TensorSpec`: one of its tensors (`tensors`). `ColumnSpec`: one extra column of its
  segments. `PolicySnapshot`: its weights at one version.
- `BoxSpace`, `DiscreteSpace` and eight more in `spaces`: observation and action spaces. `space_conversion` reads them from JSON
  and from Gymnasium: `space_from` a Box or Discrete, `observation_space_from` those of a client's observations,
  `any_space_from` all kinds. `observations`: the leaves of a tree of observations.
- `trees`: the elements of spaces, nested structures of arrays.
"""

from rl4sys_zmq.values.column_spec import ColumnSpec
from rl4sys_zmq.values.policy import ACTIVATIONS, MAX_BLOB_BYTES, FlatWeights, PolicySnapshot, PolicySpec, feature_size
from rl4sys_zmq.values.segment import NO_EXTRAS, Segment
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
from rl4sys_zmq.values.tensors import TensorSpec, other_bytes, other_views

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
    "feature_size",
    "other_bytes",
    "other_views",
    "observation_space_from",
    "space_from",
    "space_to_json",
]
