"""The options of the kind of network ``mlp``, a multilayer perceptron, and its registry entry. This module imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rl4sys_zmq.config.options import one_of, option, sizes
from rl4sys_zmq.learner.registry.network_entry import NetworkEntry, PolicyRequirements
from rl4sys_zmq.policies.mlp import MLPParameters, check_not_image
from rl4sys_zmq.values import ACTIVATIONS, PolicySpec

__all__ = ["ENTRY", "MLPOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPOptions:
    """The options of a multilayer perceptron. All networks of an algorithm are equal, except for their inputs and outputs."""

    hidden_sizes: tuple[int, ...] = option(sizes, (64, 64), doc="widths of the hidden layers")
    activation: str = option(one_of(*ACTIVATIONS), "tanh", doc="activation function after each hidden layer")


def plan(options: MLPOptions, requirements: PolicyRequirements) -> PolicySpec:
    """Return the specification of a policy of the kind ``mlp``.

    Raises:
        ConfigError: If the policy cannot act in the spaces, or an image is too large for a network without convolutions.
    """
    r = requirements
    check_not_image(r.observation_space, options.hidden_sizes, r.algorithm)
    document = MLPParameters(
        **asdict(r.head),
        hidden_sizes=options.hidden_sizes,
        activation=options.activation,
        normalise_observations=r.normalise_observations,
    )
    tensors = document.tensors(r.observation_space, r.action_space)
    return PolicySpec(r.observation_space, r.action_space, "mlp", document.plain(), tensors)


ENTRY = NetworkEntry(
    name="mlp",
    options=MLPOptions,
    plan=plan,
    actor_critic="rl4sys_zmq.algorithms.networks.mlp_actor_critic:MLPActorCritic",
    replay="rl4sys_zmq.algorithms.networks.mlp_replay:MLPReplay",
    linear_output=True,
    summary="A multilayer perceptron for the policy and one for the values. Actors compute it in numpy.",
    extra="learner",
)
