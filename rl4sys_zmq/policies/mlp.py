"""The description of multilayer perceptrons (the built-in policy kind ``mlp``), and their registry entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rl4sys_zmq.config.options import flag, one_of, option, parse_options, sizes
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.registry import PolicyEntry
from rl4sys_zmq.values import ACTIVATIONS, BoxSpace, ObservationSpace, PolicySpec, Space, TensorSpec, feature_size
from rl4sys_zmq.values.observations import leaves_of

__all__ = [
    "ENTRY",
    "MAX_IMAGE_WEIGHTS",
    "OBS_CLIP",
    "MLPParameters",
    "check_not_image",
    "mlp_document",
    "mlp_spec",
]

MAX_IMAGE_WEIGHTS = 1_000_000
"""The largest number of weights of a first layer that gets a flattened image."""

OBS_CLIP = 10.0
"""The largest absolute value of a normalised observation. Larger values are clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPParameters(HeadParameters):
    """The parameters of a multilayer perceptron: the contents of `PolicySpec.document` for the policy kind ``mlp``.

    The network gets the features of the observation (`rl4sys_zmq.values.features`). With `normalise_observations`, the tensor
    ``obs_mean`` is then subtracted, and the result is multiplied by ``obs_scale`` and clipped to ±`OBS_CLIP`. Then follow the
    hidden layers ``activation(x @ weight.T + bias)`` with weights ``[out, in]``, and a linear output layer. `HeadParameters`
    describes the meaning of the outputs.

    Raises:
        ConfigError: If the value of an option is invalid.
    """

    hidden_sizes: tuple[int, ...] = option(sizes, (64, 64))
    activation: str = option(one_of(*ACTIVATIONS), "tanh")
    normalise_observations: bool = option(flag, False)

    def tensors(self, observation_space: ObservationSpace, action_space: Space) -> tuple[TensorSpec, ...]:
        """Return the names and shapes of the tensors that such a policy has for these spaces.

        Raises:
            ConfigError: If the policy cannot act in these spaces, for example a ``gaussian`` head with discrete actions.
        """
        outputs = self.outputs(action_space)
        width = feature_size(observation_space)
        return (*self._layers(width, outputs), *self.head_tensors(action_space))

    def _layers(self, width: int, outputs: int) -> Iterator[TensorSpec]:
        if self.normalise_observations:
            yield TensorSpec("obs_mean", (width,), exact=True)
            yield TensorSpec("obs_scale", (width,), exact=True)
        for index, size in enumerate((*self.hidden_sizes, outputs)):
            yield TensorSpec(f"layers.{index}.weight", (size, width))
            yield TensorSpec(f"layers.{index}.bias", (size,))
            width = size


def mlp_spec(
    observation_space: ObservationSpace,
    action_space: Space,
    head: str,
    hidden_sizes: tuple[int, ...] = (64, 64),
    activation: str = "tanh",
    normalise_observations: bool = False,
    squash: str = "clip",
    log_std_range: tuple[float, float] = (-20.0, 2.0),
) -> PolicySpec:
    """Return the `PolicySpec` of a multilayer perceptron. `MLPParameters` describes the arguments.

    Raises:
        ConfigError: If a value is invalid, or `head` does not fit the action space.
    """
    document = MLPParameters(
        head=head,
        hidden_sizes=hidden_sizes,
        activation=activation,
        normalise_observations=normalise_observations,
        squash=squash,
        log_std_min=log_std_range[0],
        log_std_max=log_std_range[1],
    )
    return PolicySpec(observation_space, action_space, "mlp", document.plain(), document.tensors(observation_space, action_space))


def check_not_image(space: ObservationSpace, hidden_sizes: tuple[int, ...], user: str) -> None:
    """Check that a network without convolutions does not get a large image.

    Args:
        space: The observation space. An image is a uint8 Box of at least two dimensions, also within a Dict or Tuple.
        hidden_sizes: The widths of the hidden layers.
        user: The name of the algorithm, for the error message.

    Raises:
        ConfigError: If the first layer would have more than `MAX_IMAGE_WEIGHTS` weights for an image.
    """
    for leaf in leaves_of(space).spaces:
        if not isinstance(leaf, BoxSpace) or leaf.dtype != "|u1" or len(leaf.shape) < 2 or not hidden_sizes:
            continue
        if (weights := leaf.size * hidden_sizes[0]) > MAX_IMAGE_WEIGHTS:
            raise ConfigError(
                f"observation_space: {user} has no convolutions; it would flatten the image of shape {leaf.shape} to "
                f"{leaf.size:,} inputs, with {weights:,} weights in the first layer (limit {MAX_IMAGE_WEIGHTS:,}). Make the "
                "image smaller (gymnasium.wrappers.ResizeObservation, GrayscaleObservation), send features of it, or choose "
                "network: cnn, which the algorithms of this package can train",
                key="observation_space",
            )


def mlp_document(spec: PolicySpec) -> MLPParameters:
    """Check a spec of the kind ``mlp``, and return its parameters.

    Raises:
        ConfigError: If a key is unknown, a value is invalid, the tensors do not match the layers, or the spec has a blob or extra
            columns.
    """
    if spec.columns:
        raise ConfigError(f"an mlp policy has no extra columns, but its spec has {len(spec.columns)}", key="columns")
    document = MLPParameters(**parse_options(MLPParameters, spec.document))  # type: ignore[arg-type]
    if document.tensors(spec.observation_space, spec.action_space) != spec.tensors:
        raise ConfigError("the tensors of an mlp policy do not match its layers", key="tensors")
    if spec.blob:
        raise ConfigError(f"an mlp policy has a blob of {len(spec.blob)} bytes; expected none", key="blob")
    return document


ENTRY = PolicyEntry(
    name="mlp",
    factory="rl4sys_zmq.policies.network_policy:build_mlp",
    summary="A multilayer perceptron with a categorical, gaussian, joint, squashed_gaussian, deterministic or q_values head.",
    check=mlp_document,
)
