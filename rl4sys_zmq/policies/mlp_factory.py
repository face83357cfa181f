"""The factory of the policy kind ``mlp``: it builds a policy from the spec of a multilayer perceptron and its weights."""

from __future__ import annotations

from rl4sys_zmq.policies.base import Policy
from rl4sys_zmq.policies.bounded import DeterministicPolicy, SquashedGaussianPolicy
from rl4sys_zmq.policies.categorical import CategoricalPolicy, EpsilonGreedyPolicy
from rl4sys_zmq.policies.gaussian import GaussianPolicy
from rl4sys_zmq.policies.mlp import mlp_document
from rl4sys_zmq.policies.network import PolicyNetwork
from rl4sys_zmq.values import PolicySnapshot, PolicySpec

__all__ = ["build_mlp"]


def build_mlp(spec: PolicySpec, snapshot: PolicySnapshot) -> Policy:
    """Build the policy that a spec of the kind ``mlp`` (multilayer perceptron) describes.

    The policy uses views of the weights. For a small network, it also makes a copy for faster inference
    (`SingleObservationNetwork`).

    Raises:
        ConfigError: If the spec is not a valid ``mlp`` spec, or `snapshot` has another size than the spec.
    """
    document = mlp_document(spec)
    tensors = spec.views(snapshot.flat)
    network = PolicyNetwork.of(spec, document, tensors)
    if document.head == "gaussian":
        return GaussianPolicy.of(spec, document, snapshot, network)
    if document.head == "squashed_gaussian":
        return SquashedGaussianPolicy.of(spec, document, snapshot, network)
    if document.head == "deterministic":
        return DeterministicPolicy.of(spec, snapshot, network)
    if document.head == "q_values":
        return EpsilonGreedyPolicy.of(spec, snapshot, network)
    return CategoricalPolicy.of(spec, snapshot, network)
