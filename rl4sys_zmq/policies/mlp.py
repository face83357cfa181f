"""The description of multilayer perceptrons (the built-in policy kind ``mlp``), and their registry entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from rl4sys_zmq.config.options import check_fields, flag, number, one_of, option, parse_options, sizes
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.registry import PolicyEntry
from rl4sys_zmq.values import ACTIVATIONS, BoxSpace, ObservationSpace, PolicySpec, Space, TensorSpec, feature_size
from rl4sys_zmq.values.observations import flat_space

__all__ = [
    "BOUNDED_HEADS",
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

BOUNDED_HEADS = ("squashed_gaussian", "deterministic")
"""The heads that need a Box of actions with finite bounds."""
_BOX_HEADS = ("gaussian", *BOUNDED_HEADS)
_HEADS_WITH = {
    "squash": ("categorical", "gaussian", "q_values"),
    "log_std_min": ("squashed_gaussian",),
    "log_std_max": ("squashed_gaussian",),
}
"""The heads that have an option, for the options that not all heads have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPParameters:
    """The parameters of a multilayer perceptron: the contents of `PolicySpec.document` for the policy kind ``mlp``.

    The network first flattens the observation to float32. A discrete observation becomes one-hot. With `normalise_observations`,
    the tensor ``obs_mean`` is then subtracted, and the result is multiplied by ``obs_scale`` and clipped to ±`OBS_CLIP`. Then
    follow the hidden layers ``activation(x @ weight.T + bias)`` with weights ``[out, in]``, and a linear output layer. `head`
    defines the meaning of the outputs:

    - ``categorical``: The outputs are logits of the actions.
    - ``gaussian``: The outputs are the means of ``n`` dimensions. The tensor ``log_std`` ``[n]`` has the logarithms of the
      standard deviations. The raw sample is trained on. The environment gets the sample clipped to the bounds of the action
      space (``squash="clip"``), or the ``tanh`` of the sample scaled to the bounds (``squash="tanh"``).
    - ``squashed_gaussian``: The outputs are the means of ``n`` dimensions, and then ``n`` logarithms of their standard
      deviations, clipped to the range from `log_std_min` to `log_std_max`. The action is the ``tanh`` of the sample, scaled to
      the bounds of the action space. This action is trained on, and the environment gets it.
    - ``deterministic``: The ``tanh`` of the outputs, scaled to the bounds, is the action. The tensor ``noise_std`` ``[1]`` is the
      standard deviation of the exploration noise, as a fraction of half the range of each dimension. The tensor ``epsilon``
      ``[1]`` is the probability of a uniform random action.
    - ``q_values``: The outputs are action values. The tensor ``epsilon`` ``[1]`` is the probability of a random action.

    Raises:
        ConfigError: If the value of an option is invalid.
    """

    head: str = option(one_of("categorical", "gaussian", "squashed_gaussian", "deterministic", "q_values"), required=True)
    hidden_sizes: tuple[int, ...] = option(sizes, (64, 64))
    activation: str = option(one_of(*ACTIVATIONS), "tanh")
    normalise_observations: bool = option(flag, False)
    squash: str = option(one_of("clip", "tanh"), "clip")
    log_std_min: float = option(number(-20.0, 2.0), -20.0)
    log_std_max: float = option(number(-20.0, 2.0), 2.0)

    def __post_init__(self) -> None:
        check_fields(self)
        for field in fields(self):
            heads = _HEADS_WITH.get(field.name)
            if heads is not None and self.head not in heads and getattr(self, field.name) != field.default:
                raise ConfigError(f"{field.name} has no meaning for a {self.head} head", key=field.name)
        if self.log_std_min > self.log_std_max:
            raise ConfigError(f"log_std_min {self.log_std_min:g} is above log_std_max {self.log_std_max:g}", key="log_std_min")

    def plain(self) -> dict[str, Any]:
        """Return the parameters as a document of a `PolicySpec`, without those that have no meaning for the head."""
        used = {f.name: getattr(self, f.name) for f in fields(self) if self.head in _HEADS_WITH.get(f.name, (self.head,))}
        return {**used, "hidden_sizes": list(self.hidden_sizes)}

    def tensors(self, observation_space: ObservationSpace, action_space: Space) -> tuple[TensorSpec, ...]:
        """Return the names and shapes of the tensors that such a policy has for these spaces.

        Raises:
            ConfigError: If the policy cannot act in these spaces, for example a ``gaussian`` head with discrete actions.
        """
        box = isinstance(action_space, BoxSpace)
        if (self.head in _BOX_HEADS) != box:
            raise ConfigError(f"a {self.head} head cannot act in {action_space}", key="head")
        bounded = isinstance(action_space, BoxSpace) and action_space.bounded
        if self.squash == "tanh" and not bounded:
            raise ConfigError("squash 'tanh' needs a bounded Box of actions", key="squash")
        if self.head in BOUNDED_HEADS and not bounded:
            raise ConfigError(f"a {self.head} head needs a bounded Box of actions, not {action_space}", key="head")
        outputs = action_space.size if isinstance(action_space, BoxSpace) else action_space.n
        outputs *= 2 if self.head == "squashed_gaussian" else 1
        return tuple(self._tensors(feature_size(flat_space(observation_space, "an mlp policy")), outputs))

    def _tensors(self, width: int, outputs: int) -> Iterator[TensorSpec]:
        if self.normalise_observations:
            yield TensorSpec("obs_mean", (width,))
            yield TensorSpec("obs_scale", (width,))
        for index, size in enumerate((*self.hidden_sizes, outputs)):
            yield TensorSpec(f"layers.{index}.weight", (size, width))
            yield TensorSpec(f"layers.{index}.bias", (size,))
            width = size
        if self.head == "gaussian":
            yield TensorSpec("log_std", (outputs,))
        if self.head == "deterministic":
            yield TensorSpec("noise_std", (1,))
        if self.head in ("q_values", "deterministic"):
            yield TensorSpec("epsilon", (1,))


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
        space: The observation space. An image is a uint8 Box of at least two dimensions.
        hidden_sizes: The widths of the hidden layers.
        user: The name of the algorithm, for the error message.

    Raises:
        ConfigError: If the first layer would have more than `MAX_IMAGE_WEIGHTS` weights for an image.
    """
    if not isinstance(space, BoxSpace) or space.dtype != "|u1" or len(space.shape) < 2 or not hidden_sizes:
        return
    if (weights := space.size * hidden_sizes[0]) > MAX_IMAGE_WEIGHTS:
        raise ConfigError(
            f"observation_space: {user} has no convolutions; it would flatten the image of shape {space.shape} to {space.size:,} "
            f"inputs, with {weights:,} weights in the first layer (limit {MAX_IMAGE_WEIGHTS:,}). Make the image smaller "
            "(gymnasium.wrappers.ResizeObservation, GrayscaleObservation), send features of it, or register an algorithm with "
            "convolutions",
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
    factory="rl4sys_zmq.policies.mlp_factory:build_mlp",
    summary="A multilayer perceptron with a categorical, gaussian, squashed_gaussian, deterministic or q_values head.",
    check=mlp_document,
)
