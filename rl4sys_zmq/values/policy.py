"""A policy described (`PolicySpec`) and a policy's weights at one version (`PolicySnapshot`)."""

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
from rl4sys_zmq.values.spaces import BoxSpace, DiscreteSpace, Space

__all__ = ["ACTIVATIONS", "FlatWeights", "PolicySnapshot", "PolicySpec", "TensorSpec", "feature_size"]

FlatWeights = NDArray[np.float32]
"""All tensors of a policy side by side in manifest order, float32 ``[spec.size]``."""

ACTIVATIONS = ("tanh", "relu", "elu", "silu", "gelu", "leaky_relu", "identity")
MAX_NODES, MAX_DEPTH = 4096, 8
"""Of the document of a policy."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a policy: its name and its shape. The dtype is float32."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What an actor must know to build a policy, without any code from the learner.

    Attributes:
        observation_space: what the policy observes.
        action_space: what it does.
        kind: the entry of the registry of policies that builds it, on the actor's side.
        document: what that entry must know besides. JSON values: null, true, false, finite numbers, text, lists, and mappings
            with text keys, at most `MAX_NODES` of them and `MAX_DEPTH` deep. The entry validates it.
        tensors: the float32 tensors that travel, in their order; at least one.

    Raises:
        ConfigError: for a kind that is not a name, a document that is not JSON, or tensors that cannot travel.
    """

    observation_space: Space
    action_space: Space
    kind: str
    document: Mapping[str, Any] = field(default_factory=dict, hash=False)
    tensors: tuple[TensorSpec, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.kind, "kind")
        if type(self.document) is not dict or _nodes(self.document, 0) > MAX_NODES:
            raise ConfigError(f"the document of a policy is a dict of at most {MAX_NODES} values", key="document")
        names = {tensor.name for tensor in self.tensors}
        if not self.tensors or len(names) != len(self.tensors):
            raise ConfigError(f"a policy of kind {self.kind!r} must name its tensors, each once", key="tensors")

    @property
    def size(self) -> int:
        """The number of float32 elements in a snapshot."""
        return sum(t.size for t in self.tensors)

    @property
    def outputs(self) -> int:
        """The number of discrete actions, or the size of a continuous one."""
        return self.action_space.n if isinstance(self.action_space, DiscreteSpace) else self.action_space.size

    def views(self, flat: FlatWeights) -> dict[str, NDArray[np.float32]]:
        """The tensors by name as views into `flat`, float32 ``[size]``; nothing is copied."""
        if flat.shape != (self.size,) or flat.dtype != np.float32:
            raise ConfigError(f"a snapshot of {flat.dtype} {flat.shape} for a policy of {self.size} float32 elements")
        out: dict[str, NDArray[np.float32]] = {}
        start = 0
        for tensor in self.tensors:
            out[tensor.name] = flat[start : start + tensor.size].reshape(tensor.shape)
            start += tensor.size
        return out

    def flatten(self, tensors: dict[str, NDArray[np.float32]]) -> FlatWeights:
        """A fresh flat copy of named tensors, in manifest order.

        Raises:
            ConfigError: when a tensor is missing, unknown or of another shape.
        """
        if set(tensors) != {t.name for t in self.tensors}:
            raise ConfigError(f"a snapshot with tensors {sorted(tensors)} for a policy with {[t.name for t in self.tensors]}")
        flat = np.empty(self.size, dtype=np.float32)
        for name, view in self.views(flat).items():
            if tensors[name].shape != view.shape:
                raise ConfigError(f"tensor {name} has shape {tensors[name].shape}, not {view.shape}")
            view[...] = tensors[name]
        return flat


def _nodes(value: object, depth: int) -> int:
    """Count the values of a JSON document.

    Raises:
        ConfigError: for a value that is not JSON, or is nested too deeply.
    """
    if depth > MAX_DEPTH:
        raise ConfigError(f"the document of a policy is nested more than {MAX_DEPTH} deep", key="document")
    if type(value) is dict and all(type(key) is str for key in value):
        return 1 + sum(_nodes(item, depth + 1) for item in value.values())
    if type(value) is list:
        return 1 + sum(_nodes(item, depth + 1) for item in value)
    if value is None or type(value) in (bool, str) or (type(value) is int and abs(value) < 1 << 63):
        return 1
    if type(value) is float and math.isfinite(value):
        return 1
    raise ConfigError(
        f"the document of a policy holds {value!r:.80}; JSON values, with lists for tuples, can travel", key="document"
    )


def feature_size(space: Space) -> int:
    """The width of the first layer: the size of a box, or n for a discrete observation (one-hot)."""
    return space.size if isinstance(space, BoxSpace) else space.n


@dataclass(frozen=True, slots=True, eq=False)
class PolicySnapshot:
    """The weights of one version, in a buffer that nobody writes to again.

    Attributes:
        generation: which life of the learner published it (Unix time in ms at its start, or one more than the last).
        version: counts publications within a generation, from 0.
        digest: xxh3-64 of the flat bytes.
        flat: float32 ``[spec.size]``, read-only.
    """

    generation: int
    version: int
    digest: int
    flat: FlatWeights

    def __post_init__(self) -> None:
        self.flat.flags.writeable = False
