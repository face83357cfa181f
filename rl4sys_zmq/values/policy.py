"""The description of a policy (`PolicySpec`) and of its tensors, and its weights at one version (`PolicySnapshot`).

The float32 tensors are in one flat array, which can be rounded before it is sent. All others are in one buffer of bytes, the
largest elements first, so that each tensor is aligned. Tensors with equal element sizes are in the order of the policy spec.
The buffer ends with zeros up to a multiple of 4 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.immutable import immutable, immutable_object
from rl4sys_zmq.names import check_name
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.segment import ColumnSpec, check_columns
from rl4sys_zmq.values.spaces import DTYPES, ObservationSpace, Space

FLOAT32 = "float32"
TENSOR_DTYPES = {np.dtype(dtype).name: np.dtype(dtype) for dtype in DTYPES}
"""The supported dtypes of tensors, by NumPy's names such as ``float32``. All are little-endian."""
_WORD = 4


@immutable
class TensorSpec:
    """The description of one tensor of a policy: name, shape and dtype.

    Attributes:
        name: The name, unique in the policy.
        shape: The length of each dimension.
        dtype: A key of `TENSOR_DTYPES`.
        exact: True for float32 numbers that are not weights, such as the statistics of observations or the probability of a
            random action. No wire dtype rounds them. Tensors of other dtypes are never rounded.

    Raises:
        ConfigError: If the dtype is not a key of `TENSOR_DTYPES`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = FLOAT32
    exact: bool = False

    def __post_init__(self) -> None:
        if type(self.dtype) is not str or self.dtype not in TENSOR_DTYPES:
            raise ConfigError(
                f"tensor {self.name!r:.80} has the dtype {self.dtype!r:.40}; expected one of {', '.join(TENSOR_DTYPES)}",
                key="tensors",
            )

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self.size * TENSOR_DTYPES[self.dtype].itemsize


def other_tensors(tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the tensors that are not float32, in the order in which they are in the buffer."""
    others = (tensor for tensor in tensors if tensor.dtype != FLOAT32)
    return tuple(sorted(others, key=lambda tensor: -TENSOR_DTYPES[tensor.dtype].itemsize))


def other_bytes(others: Sequence[TensorSpec]) -> int:
    """Return the size in bytes of a buffer with these tensors (from `other_tensors`), padding included."""
    return -(-sum(tensor.nbytes for tensor in others) // _WORD) * _WORD


def other_views(others: Sequence[TensorSpec], buffer: bytes | memoryview) -> dict[str, NDArray[Any]]:
    """Return tensors that are not float32 by name, as views into their buffer.

    Args:
        others: The tensors, as `other_tensors` returns them.
        buffer: The buffer, of `other_bytes` bytes.
    """
    views: dict[str, NDArray[Any]] = {}
    start = 0
    for tensor in others:
        dtype = TENSOR_DTYPES[tensor.dtype]
        array = np.frombuffer(buffer, dtype, tensor.size, start) if tensor.size else np.empty(0, dtype)
        views[tensor.name] = array.reshape(tensor.shape)
        start += tensor.nbytes
    return views


FlatWeights = NDArray[np.float32]
"""All float32 tensors of a policy, joined in the order of `PolicySpec.tensors` to one flat array, float32 ``[spec.size]``."""

ACTIVATIONS = ("tanh", "relu", "elu", "silu", "gelu", "leaky_relu", "identity")
MAX_NODES, MAX_DEPTH = 4096, 8
"""The largest number of JSON values in `PolicySpec.document`, and the largest number of its nested levels."""
MAX_BLOB_BYTES = 32 << 20
"""The largest size of `PolicySpec.blob`, in bytes."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """The description from which an actor builds a policy, without any code from the learner.

    Attributes:
        observation_space: The space of observations.
        action_space: The space of actions.
        kind: The name of the function that builds the policy, in the actor's policy registry.
        document: Further parameters for that function, which also validates them. It contains JSON values: null, true, false,
            finite numbers, text, lists, and mappings with text keys. At most `MAX_NODES` values and `MAX_DEPTH` levels.
        tensors: The descriptions of the weights, which are sent with each version. At least one tensor.
        columns: The extra columns that the policy records in segments. If there are any, the policy must be a
            `rl4sys_zmq.policies.ExtraColumnPolicy`.
        blob: Bytes for the function that builds the policy, for example the graph of an exported network. Only that function
            interprets them. They are sent once, with the spec. At most `MAX_BLOB_BYTES`.

    Raises:
        ConfigError: If the kind is not a valid name, the document is not JSON or is too large, there are no tensors, two
            tensors or two columns have the same name, there are too many columns, or the blob is not ``bytes`` or is too large.
    """

    observation_space: ObservationSpace
    action_space: Space
    kind: str
    document: Mapping[str, Any] = field(default_factory=dict, hash=False)
    tensors: tuple[TensorSpec, ...] = ()
    blob: bytes = field(default=b"", repr=False)
    columns: tuple[ColumnSpec, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.kind, "kind")
        if type(self.document) is not dict or _nodes(self.document, 0) > MAX_NODES:
            raise ConfigError(f"the document of a policy must be a dict of at most {MAX_NODES} values", key="document")
        names = {tensor.name for tensor in self.tensors}
        if not self.tensors or len(names) != len(self.tensors):
            raise ConfigError(f"a policy of kind {self.kind!r} needs at least one tensor, with unique names", key="tensors")
        if type(self.blob) is not bytes:
            raise ConfigError(f"the blob of a policy is a {type(self.blob).__name__}; expected bytes", key="blob")
        if len(self.blob) > MAX_BLOB_BYTES:
            raise ConfigError(
                f"the blob of a policy has {len(self.blob)} bytes; the limit is {MAX_BLOB_BYTES}; send weights as tensors",
                key="blob",
            )
        check_columns(self.columns)

    @property
    def size(self) -> int:
        """The number of elements of all float32 tensors. It is the length of `PolicySnapshot.flat`."""
        return sum([tensor.size for tensor in self.tensors if tensor.dtype == FLOAT32])

    @property
    def others(self) -> tuple[TensorSpec, ...]:
        """The tensors that are not float32, in the order of `PolicySnapshot.others`."""
        return other_tensors(self.tensors)

    @property
    def parameters(self) -> int:
        """The number of parameters of the policy: the elements of all tensors, of any dtype."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the weights of one version."""
        return other_bytes(self.tensors)

    @property
    def outputs(self) -> int:
        """The number of outputs of a policy network (`ActionLayout.outputs`)."""
        return action_layout(self.action_space).outputs

    def views(self, flat: FlatWeights, others: bytes | memoryview = b"") -> dict[str, NDArray[Any]]:
        """Return the tensors by name, each in its dtype, as views into the buffers of a `PolicySnapshot`. No data is copied.

        Args:
            flat: `PolicySnapshot.flat`, float32 ``[size]``.
            others: `PolicySnapshot.others`; empty if all tensors are float32.

        Raises:
            ConfigError: If `flat` has another shape or dtype, or `others` has another length.
        """
        if flat.shape != (self.size,) or flat.dtype != np.float32:
            raise ConfigError(f"the snapshot is {flat.dtype} {flat.shape}; the policy has {self.size} float32 elements")
        specs = self.others
        if len(others) != other_bytes(specs):
            raise ConfigError(
                f"the snapshot has {len(others)} bytes of tensors that are not float32; the policy has {other_bytes(specs)}"
            )
        other_arrays = other_views(specs, others) if specs else {}
        out: dict[str, NDArray[Any]] = {}
        start = 0
        for tensor in self.tensors:
            if tensor.dtype == FLOAT32:
                out[tensor.name] = flat[start : start + tensor.size].reshape(tensor.shape)
                start += tensor.size
            else:
                out[tensor.name] = other_arrays[tensor.name]
        return out

    def flatten(self, tensors: Mapping[str, NDArray[Any]]) -> tuple[FlatWeights, bytes]:
        """Copy named tensors to the two buffers of a `PolicySnapshot`: `PolicySnapshot.flat` and `PolicySnapshot.others`.

        This is the inverse of `views`. Float32 tensors can be given in another dtype and are converted. The other tensors are
        copied bit for bit.

        Raises:
            ConfigError: If a tensor is missing, unknown or of the wrong shape, or if a tensor that is not declared as float32
                has the wrong dtype.
        """
        if set(tensors) != {t.name for t in self.tensors}:
            raise ConfigError(f"the snapshot has the tensors {sorted(tensors)}; the policy has {[t.name for t in self.tensors]}")
        flat = np.empty(self.size, dtype=np.float32)
        others = bytearray(other_bytes(self.others))
        views = self.views(flat, memoryview(others))
        for spec in self.tensors:
            tensor, view = tensors[spec.name], views[spec.name]
            if tensor.shape != view.shape:
                raise ConfigError(f"tensor {spec.name} has shape {tensor.shape}; expected {view.shape}")
            if spec.dtype != FLOAT32 and tensor.dtype != TENSOR_DTYPES[spec.dtype]:
                raise ConfigError(f"tensor {spec.name} has dtype {tensor.dtype}; expected {spec.dtype}, little-endian")
            view[...] = tensor
        return flat, bytes(others)


def _nodes(value: object, depth: int) -> int:
    """Return the number of values in a JSON document. A list or dict counts as one more than its entries."""
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


@immutable_object
class PolicySnapshot:
    """The weights of one policy version, in read-only buffers.

    Attributes:
        generation: The number of the worker that published the version: the Unix time of the worker's start in ms, or the last
            generation + 1 if that is larger.
        version: The number of the version within the generation. The first version of a new policy is 0; that of a restored
            policy is the checkpoint's.
        digest: The xxh3-64 checksum of the bytes of `flat` and of `others`, in this order.
        flat: The float32 weights ``[spec.size]``, read-only.
        others: The bytes of all other tensors (`PolicySpec.others`). `PolicySpec.views` returns them as arrays.
    """

    generation: int
    version: int
    digest: int
    flat: FlatWeights
    others: bytes = b""

    def __post_init__(self) -> None:
        self.flat.flags.writeable = False
