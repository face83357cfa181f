"""Multilayer perceptrons: the kind of policy that ships."""

from __future__ import annotations

from rl4sys_zmq.policies.base import Policy
from rl4sys_zmq.policies.categorical import CategoricalPolicy, QValuePolicy
from rl4sys_zmq.policies.gaussian import GaussianPolicy
from rl4sys_zmq.policies.registry import PolicyEntry
from rl4sys_zmq.values import PolicySnapshot, PolicySpec

__all__ = ["ENTRY"]


def _build(spec: PolicySpec, snapshot: PolicySnapshot) -> Policy:
    tensors = spec.views(snapshot.flat)
    if spec.head == "gaussian":
        return GaussianPolicy.of(spec, snapshot, tensors)
    if spec.head == "q_values":
        return QValuePolicy.of(spec, snapshot, tensors)
    return CategoricalPolicy.of(spec, snapshot, tensors)


ENTRY = PolicyEntry(name="mlp", factory=_build, summary="A multilayer perceptron with a categorical, gaussian or q_values head.")
