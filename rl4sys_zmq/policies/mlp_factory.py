"""The factory of the policy kind ``mlp``: it builds a policy from the spec of a multilayer perceptron and its weights."""

from __future__ import annotations

from rl4sys_zmq.policies.base import Policy
from rl4sys_zmq.policies.head_policies import head_policy
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
    return head_policy(spec, document, snapshot, PolicyNetwork.of(spec, document, spec.views(snapshot.flat)))
