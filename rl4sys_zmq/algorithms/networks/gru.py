"""The kind of network ``gru``, a gated recurrent unit."""

from __future__ import annotations

from dataclasses import dataclass

from rl4sys_zmq.algorithms.networks.layer_kind import check_not_image, layer_network
from rl4sys_zmq.config.options import flag, integer, nullable, one_of, option, sizes, whole_number
from rl4sys_zmq.layers.gru import GRU, MAX_UNITS
from rl4sys_zmq.learner.registry.algorithm_entry import parameter_error
from rl4sys_zmq.learner.registry.network_entry import LayerPlan, PolicyRequirements
from rl4sys_zmq.policies.head_parameters import VALUE_HEADS
from rl4sys_zmq.policies.mlp import hidden_layers
from rl4sys_zmq.values import ACTIVATIONS, ObservationSpace

_ACTOR_CRITIC_OPTIONS = {
    "sequence_length": "give the parameter sequence_length of {algorithm} instead",
    "value_gradient": "{algorithm} has no value network",
}
"""The options that only actor-critics have, with the remedy for other algorithms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GRUOptions:
    """The options of a gated recurrent unit. In an actor-critic, the policy and the value network share the unit."""

    units: int = option(integer(1, MAX_UNITS), 64, doc="size of the recurrent state")
    hidden_sizes: tuple[int, ...] = option(sizes, (), doc="widths of the hidden layers before the recurrent unit")
    activation: str = option(
        one_of(*ACTIVATIONS), "tanh", doc="activation function after each hidden layer before the unit, and in the value network"
    )
    sequence_length: int | None = nullable(
        whole_number(1, 1 << 20),
        doc="on-policy: most steps through which a gradient is computed; longer segments are cut; null: whole segments",
    )
    value_gradient: bool = option(
        flag,
        True,
        doc="on-policy: train the recurrent unit for the values too, where both are trained together; false with large rewards",
    )


def planned(options: GRUOptions, space: ObservationSpace) -> LayerPlan:
    """Return the layers of a recurrent network: a unit that all networks share, then a hidden layer for values."""
    return LayerPlan(
        shared=[*hidden_layers(options.hidden_sizes, options.activation), GRU(units=options.units)],
        values=hidden_layers((options.units,), options.activation),
        value_gradient=options.value_gradient,
        sequence_length=options.sequence_length,
    )


def _check(options: GRUOptions, requirements: PolicyRequirements) -> None:
    """Raise ConfigError if an image is too large for a network without convolutions, or an option has no effect."""
    r = requirements
    if r.head.head in VALUE_HEADS:
        for name, remedy in _ACTOR_CRITIC_OPTIONS.items():
            if getattr(options, name) != getattr(GRUOptions(), name):
                key = f"network.{name}"
                raise parameter_error(key, f"on-policy algorithms have it; {remedy.format(algorithm=r.algorithm)}")
    check_not_image(r.observation_space, next(iter(options.hidden_sizes), 3 * options.units), r.algorithm)


ENTRY = layer_network(
    "gru",
    GRUOptions,
    planned,
    recurrent=True,
    check=_check,
    summary="A gated recurrent unit, for observations that do not show the whole state. Actors compute it in numpy.",
    reference="Cho et al. 2014, Learning phrase representations using RNN encoder-decoder for statistical machine translation",
)
