"""The kinds of networks that the parameter ``network`` of an algorithm can name, such as ``mlp``.

- `NetworkEntry`: the description of one kind of network: its options, the actors' policy, and the factories of its torch forms.
- `PolicyRequirements`: the requirements of an algorithm, from which an entry plans a policy.
- `LayerPlan`: the hidden layers of a kind that is a list of layers (`layer_kind.layer_network`).
- `NetworkChoice`: a kind with its options, as a configuration chooses them.
- `ReplayShape`: the inputs and outputs of the networks of a replay algorithm.
- `register_network`: adds a kind to the registry `NETWORKS`.

The entries import no torch. The module `interface` has the interfaces of the torch forms.
"""

from rl4sys_zmq.learner.registry.network_entry import LayerPlan, NetworkChoice, NetworkEntry, PolicyRequirements, ReplayShape
from rl4sys_zmq.learner.registry.networks import (
    NETWORKS,
    check_trainable,
    choose_network,
    network_names,
    network_option,
    plan_policy,
    register_network,
)

__all__ = [
    "NETWORKS",
    "LayerPlan",
    "NetworkChoice",
    "NetworkEntry",
    "PolicyRequirements",
    "ReplayShape",
    "check_trainable",
    "choose_network",
    "network_names",
    "network_option",
    "plan_policy",
    "register_network",
]
