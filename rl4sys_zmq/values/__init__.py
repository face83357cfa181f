"""What flows through the house: frozen values, numpy only.

- `Segment`: consecutive steps of one episode, as columns.
- `PolicySpec`: a policy described; `TensorSpec`: one of its tensors; `PolicySnapshot`: its weights at one version.
- `BoxSpace`, `DiscreteSpace` and eight more in `spaces`: observation and action spaces. `space_forms` reads them from JSON and
  from Gymnasium's: `space_from` those of a learner client, `any_space_from` all. `trees`: their elements.
"""

from rl4sys_zmq.values.policy import ACTIVATIONS, FlatWeights, PolicySnapshot, PolicySpec, TensorSpec, feature_size
from rl4sys_zmq.values.segment import Segment
from rl4sys_zmq.values.space_forms import space_from, space_to_json
from rl4sys_zmq.values.spaces import DTYPES, BoxSpace, DiscreteSpace, Space

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
