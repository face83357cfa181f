"""The policies of the built-in action heads, from a network of any kind."""

from __future__ import annotations

from rl4sys_zmq.policies.action_heads import action_head
from rl4sys_zmq.policies.base import Policy
from rl4sys_zmq.policies.bounded import DeterministicPolicy, SquashedGaussianPolicy
from rl4sys_zmq.policies.categorical import CategoricalPolicy
from rl4sys_zmq.policies.epsilon_greedy import EpsilonGreedyHead
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.network import OutputNetwork
from rl4sys_zmq.policies.network_policy import NetworkPolicy
from rl4sys_zmq.values import PolicySnapshot, PolicySpec

__all__ = ["head_policy"]


def head_policy(spec: PolicySpec, parameters: HeadParameters, snapshot: PolicySnapshot, network: OutputNetwork) -> Policy:
    """Build the policy that chooses actions from the outputs of a network.

    Args:
        spec: The description of the policy.
        parameters: The parameters of the head. The action space must fit them.
        snapshot: The weights, from which `network` was built.
        network: The network, with as many outputs as the head needs.
    """
    match parameters.head:
        case "gaussian" | "joint":
            head = action_head(spec.action_space, parameters.squash, spec.views(snapshot.flat).get("log_std"))
            return NetworkPolicy.of(snapshot, network, head)
        case "squashed_gaussian":
            return SquashedGaussianPolicy.of(spec, parameters, snapshot, network)
        case "deterministic":
            return DeterministicPolicy.of(spec, snapshot, network)
        case "q_values" | "q_distribution":
            return NetworkPolicy.of(snapshot, network, EpsilonGreedyHead.of(spec, parameters, snapshot))
        case _:
            return CategoricalPolicy.of(spec, snapshot, network)
