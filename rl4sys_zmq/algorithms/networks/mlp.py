"""The kind of network ``mlp``, a multilayer perceptron."""

from __future__ import annotations

from dataclasses import dataclass

from rl4sys_zmq.algorithms.networks.layer_kind import check_not_image, layer_network
from rl4sys_zmq.config.options import one_of, option, sizes
from rl4sys_zmq.learner.registry.network_entry import LayerPlan, PolicyRequirements
from rl4sys_zmq.policies.mlp import hidden_layers
from rl4sys_zmq.values import ACTIVATIONS, ObservationSpace

__all__ = ["ENTRY", "MLPOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPOptions:
    """The options of a multilayer perceptron. All networks of an algorithm have these hidden layers."""

    hidden_sizes: tuple[int, ...] = option(sizes, (64, 64), doc="widths of the hidden layers")
    activation: str = option(one_of(*ACTIVATIONS), "tanh", doc="activation function after each hidden layer")


def planned(options: MLPOptions, space: ObservationSpace) -> LayerPlan:
    """Return the layers of a multilayer perceptron. The networks of an algorithm share none of them."""
    return LayerPlan(own=hidden_layers(options.hidden_sizes, options.activation))


def _check(options: MLPOptions, requirements: PolicyRequirements) -> None:
    """Raise ConfigError if an image is too large for a network without convolutions."""
    check_not_image(requirements.observation_space, next(iter(options.hidden_sizes), 0), requirements.algorithm)


ENTRY = layer_network(
    "mlp",
    MLPOptions,
    planned,
    check=_check,
    summary="A multilayer perceptron for the policy and one for the values. Actors compute it in numpy.",
)
