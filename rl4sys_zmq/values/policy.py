"""A policy described (`PolicySpec`) and a policy's weights at one version (`PolicySnapshot`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.values.spaces import BoxSpace, DiscreteSpace, Space

__all__ = ["ACTIVATIONS", "HEADS", "FlatWeights", "PolicySnapshot", "PolicySpec", "TensorSpec", "feature_size"]

FlatWeights = NDArray[np.float32]
"""All tensors of a policy side by side in manifest order, float32 ``[spec.size]``."""

ACTIVATIONS = ("tanh", "relu", "elu", "silu", "gelu", "leaky_relu", "identity")
HEADS = ("categorical", "gaussian", "q_values")


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

    With ``kind="mlp"`` the policy is: observation, flattened to float32 (a discrete one becomes one-hot), minus
    ``obs_mean``, times ``obs_scale``, clipped to ±`OBS_CLIP` (only with `normalise_observations`); hidden layers
    ``activation(x @ weight.T + bias)`` with weights ``[out, in]``; one linear output layer; then the head:

    - ``categorical``: the outputs are logits over the actions;
    - ``gaussian``: the outputs are means, the tensor ``log_std`` [n] the logarithms of the standard deviations; the raw
      sample is trained on, the host gets it clipped to the bounds (``squash="clip"``) or ``tanh`` of it scaled to them;
    - ``q_values``: the outputs are action values; the tensor ``epsilon`` [1] is the probability of a uniform action.

    Any other `kind` is a policy registered by that name on both sides; its `tensors` say what travels.
    """

    observation_space: Space
    action_space: Space
    head: str
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    normalise_observations: bool = False
    squash: str = "clip"
    kind: str = "mlp"
    tensors: tuple[TensorSpec, ...] = ()

    OBS_CLIP = 10.0

    def __post_init__(self) -> None:
        if self.head not in HEADS:
            raise ConfigError(f"unknown policy head {self.head!r}; valid: {', '.join(HEADS)}", key="head")
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"unknown activation {self.activation!r}; valid: {', '.join(ACTIVATIONS)}", key="activation")
        if self.squash not in ("clip", "tanh"):
            raise ConfigError(f"unknown squash {self.squash!r}; valid: clip, tanh", key="squash")
        if (self.head == "gaussian") != isinstance(self.action_space, BoxSpace):
            raise ConfigError(f"a {self.head} head cannot act in {self.action_space}", key="head")
        if self.squash == "tanh" and not (isinstance(self.action_space, BoxSpace) and self.action_space.bounded):
            raise ConfigError("squash 'tanh' needs a bounded Box of actions", key="squash")
        if self.kind == "mlp":
            derived = tuple(self._mlp_tensors())
            if self.tensors and self.tensors != derived:
                raise ConfigError("the tensors of an mlp policy do not follow from its layers", key="tensors")
            object.__setattr__(self, "tensors", derived)
        elif not self.tensors:
            raise ConfigError(f"a policy of kind {self.kind!r} must name its tensors", key="tensors")

    @property
    def size(self) -> int:
        """The number of float32 elements in a snapshot."""
        return sum(t.size for t in self.tensors)

    @property
    def outputs(self) -> int:
        """The width of the output layer: the number of actions, or the size of a continuous action."""
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

    def _mlp_tensors(self) -> Iterator[TensorSpec]:
        width = feature_size(self.observation_space)
        if self.normalise_observations:
            yield TensorSpec("obs_mean", (width,))
            yield TensorSpec("obs_scale", (width,))
        for index, size in enumerate((*self.hidden_sizes, self.outputs)):
            yield TensorSpec(f"layers.{index}.weight", (size, width))
            yield TensorSpec(f"layers.{index}.bias", (size,))
            width = size
        if self.head == "gaussian":
            yield TensorSpec("log_std", (self.outputs,))
        if self.head == "q_values":
            yield TensorSpec("epsilon", (1,))


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
