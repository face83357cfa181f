"""The description of a policy (`PolicySpec`) and its weights at one version (`PolicySnapshot`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.names import check_name
from rl4sys_zmq.values.column_spec import ColumnSpec, check_columns
from rl4sys_zmq.values.spaces import BoxSpace, DiscreteSpace, ObservationSpace, Space

__all__ = ["ACTIVATIONS", "FlatWeights", "PolicySnapshot", "PolicySpec", "TensorSpec", "feature_size"]

FlatWeights = NDArray[np.float32]
"""All tensors of a policy in one array, in the order of `PolicySpec.tensors`, float32 ``[spec.size]``."""

ACTIVATIONS = ("tanh", "relu", "elu", "silu", "gelu", "leaky_relu", "identity")
MAX_NODES, MAX_DEPTH = 4096, 8
"""The most JSON values in the document of a policy, and its deepest nesting."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The name and shape of one tensor of a policy. The dtype is float32."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """The description from which an actor builds a policy, without any code from the learner.

    Attributes:
        observation_space: The space of observations.
        action_space: The space of actions.
        kind: The name in the policy registry of the function that builds the policy, on the actor's side.
        document: Further parameters for that function, which validates them. JSON values: null, true, false, finite numbers,
            text, lists, and mappings with text keys. At most `MAX_NODES` values and `MAX_DEPTH` levels.
        tensors: The float32 tensors to transfer, in this order; at least one.
        columns: The extra columns of its segments. A policy that has some is a `rl4sys_zmq.policies.ColumnPolicy`.

    Raises:
        ConfigError: If the kind is not a valid name, the document is not JSON or is too large, tensors are missing, two tensors
            or two columns have the same name, or there are too many columns.
    """

    observation_space: ObservationSpace
    action_space: Space
    kind: str
    document: Mapping[str, Any] = field(default_factory=dict, hash=False)
    tensors: tuple[TensorSpec, ...] = ()
    columns: tuple[ColumnSpec, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.kind, "kind")
        if type(self.document) is not dict or _nodes(self.document, 0) > MAX_NODES:
            raise ConfigError(f"the document of a policy must be a dict of at most {MAX_NODES} values", key="document")
        names = {tensor.name for tensor in self.tensors}
        if not self.tensors or len(names) != len(self.tensors):
            raise ConfigError(f"a policy of kind {self.kind!r} needs at least one tensor, with unique names", key="tensors")
        check_columns(self.columns)

    @property
    def size(self) -> int:
        """The number of float32 elements in a snapshot."""
        return sum(t.size for t in self.tensors)

    @property
    def outputs(self) -> int:
        """The number of discrete actions, or the size of a continuous one."""
        return self.action_space.n if isinstance(self.action_space, DiscreteSpace) else self.action_space.size

    def views(self, flat: FlatWeights) -> dict[str, NDArray[np.float32]]:
        """Return the tensors by name, as views into `flat`, float32 ``[size]``. No data is copied.

        Raises:
            ConfigError: If `flat` has another shape or dtype.
        """
        if flat.shape != (self.size,) or flat.dtype != np.float32:
            raise ConfigError(f"the snapshot is {flat.dtype} {flat.shape}; the policy has {self.size} float32 elements")
        out: dict[str, NDArray[np.float32]] = {}
        start = 0
        for tensor in self.tensors:
            out[tensor.name] = flat[start : start + tensor.size].reshape(tensor.shape)
            start += tensor.size
        return out

    def flatten(self, tensors: dict[str, NDArray[np.float32]]) -> FlatWeights:
        """Return a new flat copy of named tensors, in the order of `tensors`.

        Raises:
            ConfigError: If a tensor is missing, unknown or of another shape.
        """
        if set(tensors) != {t.name for t in self.tensors}:
            raise ConfigError(f"the snapshot has the tensors {sorted(tensors)}; the policy has {[t.name for t in self.tensors]}")
        flat = np.empty(self.size, dtype=np.float32)
        for name, view in self.views(flat).items():
            if tensors[name].shape != view.shape:
                raise ConfigError(f"tensor {name} has shape {tensors[name].shape}; expected {view.shape}")
            view[...] = tensors[name]
        return flat


def _nodes(value: object, depth: int) -> int:
    """Count the values of a JSON document.

    Raises:
        ConfigError: If a value is not JSON, or is nested too deeply.
    """
    if depth > MAX_DEPTH:
        raise ConfigError(f"the document of a policy has more than {MAX_DEPTH} levels of nesting", key="document")
    if type(value) is dict and all(type(key) is str for key in value):
        return 1 + sum(_nodes(item, depth + 1) for item in value.values())
    if type(value) is list:
        return 1 + sum(_nodes(item, depth + 1) for item in value)
    if value is None or type(value) in (bool, str) or (type(value) is int and abs(value) < 1 << 63):
        return 1
    if type(value) is float and math.isfinite(value):
        return 1
    raise ConfigError(
        f"the document of a policy contains {value!r:.80}; expected JSON values, and lists instead of tuples", key="document"
    )


def feature_size(space: Space) -> int:
    """Return the width of the first layer: the size of a box, or n for a discrete observation (one-hot)."""
    return space.size if isinstance(space, BoxSpace) else space.n


@dataclass(frozen=True, slots=True, eq=False)
class PolicySnapshot:
    """The weights of one policy version, in a read-only buffer.

    Attributes:
        generation: The number of the learner thread that published it: the Unix time in ms of its start, or the last one + 1.
        version: The number of the publication, from 0 for a new policy, or continued from the checkpoint.
        digest: The xxh3-64 checksum of the bytes of `flat`.
        flat: The weights, float32 ``[spec.size]``, read-only.
    """

    generation: int
    version: int
    digest: int
    flat: FlatWeights

    def __post_init__(self) -> None:
        self.flat.flags.writeable = False
