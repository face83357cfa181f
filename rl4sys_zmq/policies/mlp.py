"""Multilayer perceptrons as lists of layers."""

from __future__ import annotations

from collections.abc import Sequence

from rl4sys_zmq.layers.activation import ActivationLayer
from rl4sys_zmq.layers.dense import Dense
from rl4sys_zmq.layers.layer import Layer
from rl4sys_zmq.layers.normalise import Normalise
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.layer_policy import layers_spec
from rl4sys_zmq.values import ObservationSpace, PolicySpec, Space


def hidden_layers(sizes: Sequence[int], activation: str) -> list[Layer]:
    """Return dense layers with `sizes` units, each followed by the activation function.

    Raises:
        ConfigError: If a value is invalid.
    """
    return [layer for size in sizes for layer in (Dense(units=size), ActivationLayer(function=activation))]


def mlp_spec(
    observation_space: ObservationSpace,
    action_space: Space,
    head: str,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: str = "tanh",
    normalise_observations: bool = False,
    squash: str = "clip",
    log_std_range: tuple[float, float] = (-20.0, 2.0),
) -> PolicySpec:
    """Return the `PolicySpec` of a multilayer perceptron.

    Args:
        observation_space: The space of observations.
        action_space: The space of actions.
        head: The name of the action head, which defines the meaning of the outputs (`HeadParameters.head`).
        hidden_sizes: The numbers of units of the hidden layers.
        activation: The activation function after each hidden layer, one of `rl4sys_zmq.values.ACTIVATIONS`.
        normalise_observations: True for a first layer that standardises observations by the tensors ``obs_mean`` and
            ``obs_scale``.
        squash: ``clip`` or ``tanh``: how a ``gaussian`` or ``joint`` head brings a sample into the bounds.
        log_std_range: `HeadParameters.log_std_min` and `HeadParameters.log_std_max`.

    Raises:
        ConfigError: If a value is invalid, or `head` does not fit the action space.
    """
    parameters = HeadParameters(head=head, squash=squash, log_std_min=log_std_range[0], log_std_max=log_std_range[1])
    first = [Normalise()] if normalise_observations else []
    return layers_spec(observation_space, action_space, parameters, [*first, *hidden_layers(hidden_sizes, activation)])
