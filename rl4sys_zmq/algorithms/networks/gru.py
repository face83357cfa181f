"""The options of the kind of network ``gru``, a gated recurrent unit, and its registry entry. This module imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rl4sys_zmq.config.options import flag, integer, one_of, option, optional, sizes, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.network_entry import NetworkEntry, PolicyRequirements
from rl4sys_zmq.policies.gru import MAX_UNITS, GRUParameters, gru_spec
from rl4sys_zmq.policies.head_parameters import VALUE_HEADS
from rl4sys_zmq.policies.mlp import check_not_image
from rl4sys_zmq.values import ACTIVATIONS, PolicySpec

_ACTOR_CRITIC_OPTIONS = {
    "sequence_length": "give the parameter sequence_length of {algorithm} instead",
    "value_gradient": "{algorithm} has no value network",
}
"""The options that only actor-critics have, with the remedy for other algorithms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GRUOptions:
    """The options of a gated recurrent unit. In an actor-critic, the policy and the estimate of values share it."""

    units: int = option(integer(1, MAX_UNITS), 64, doc="size of the recurrent state")
    hidden_sizes: tuple[int, ...] = option(sizes, (), doc="widths of the hidden layers before the recurrent unit")
    activation: str = option(
        one_of(*ACTIVATIONS), "tanh", doc="activation function after each hidden layer before the unit, and in the value network"
    )
    sequence_length: int | None = option(
        optional(whole_number(1, 1 << 20)),
        None,
        doc="on-policy: most steps through which a gradient is computed; longer segments are cut; null: whole segments",
    )
    value_gradient: bool = option(
        flag,
        True,
        doc="on-policy: train the recurrent unit for the values too, where both are trained together; false with large rewards",
    )


def plan(options: GRUOptions, requirements: PolicyRequirements) -> PolicySpec:
    """Return the specification of a policy of the kind ``gru``.

    Raises:
        ConfigError: If the policy cannot act in the spaces, if an image is too large for a network without convolutions, if the
            outputs have a meaning that a recurrent policy does not have, or if an option has no effect.
    """
    r = requirements
    if r.head.head in VALUE_HEADS:
        for name, remedy in _ACTOR_CRITIC_OPTIONS.items():
            if getattr(options, name) != getattr(GRUOptions(), name):
                key = f"algorithm_parameters.network.{name}"
                raise ConfigError(f"{key}: on-policy algorithms have it; {remedy.format(algorithm=r.algorithm)}", key=key)
    check_not_image(r.observation_space, (*options.hidden_sizes, 3 * options.units)[:1], r.algorithm)
    parameters = GRUParameters(
        **asdict(r.head),
        units=options.units,
        hidden_sizes=options.hidden_sizes,
        activation=options.activation,
        normalise_observations=r.normalise_observations,
    )
    return gru_spec(r.observation_space, r.action_space, parameters)


ENTRY = NetworkEntry(
    name="gru",
    options=GRUOptions,
    plan=plan,
    actor_critic="rl4sys_zmq.algorithms.networks.gru_actor_critic:GRUActorCritic",
    sequence_replay="rl4sys_zmq.algorithms.networks.gru_replay:GRUReplay",
    linear_output=True,
    summary="A gated recurrent unit, for observations that do not show the whole state. Actors compute it in numpy.",
    reference="Cho et al. 2014, Learning phrase representations using RNN encoder-decoder for statistical machine translation",
    extra="learner",
)
