"""Kinds of networks from torch modules of the user. Importing this module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl4sys_zmq.learner.registry.algorithm_entry import parameter_error
from rl4sys_zmq.learner.registry.network_entry import ModuleBuilder, NetworkEntry, PolicyRequirements, ReplayShape
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.onnx_policy import onnx_spec
from rl4sys_zmq.values import BoxSpace, ObservationSpace, PolicySpec

if TYPE_CHECKING:
    from rl4sys_zmq.algorithms.networks.interface import ActorCriticNetwork
    from rl4sys_zmq.algorithms.networks.module_networks import ModuleNetworks

__all__ = ["module_network"]


def module_network(
    name: str, options: type[Any], build: ModuleBuilder, *, summary: str = "", reference: str = ""
) -> NetworkEntry:
    """Return the entry of a kind of network whose policy and values are torch modules.

    The learner exports the policy as an ONNX graph with the parameters as inputs, which actors run in onnxruntime. The export
    needs the package ``onnx`` (extra ``export``). Observations are not standardised.

    Args:
        name: The name of the kind, as users write it in ``network: {kind: NAME}``.
        options: The dataclass of the kind's options. It must be frozen, because exported graphs are cached by their options.
        build: The function that builds a module.
        summary: One line of documentation.
        reference: The source of the network.
    """

    def plan(chosen: Any, requirements: PolicyRequirements) -> PolicySpec:
        from rl4sys_zmq.algorithms.networks.module_export import export_module

        space = requirements.observation_space
        if not isinstance(space, BoxSpace):
            raise parameter_error("network", f"a network of kind {name!r} needs a Box of observations, not {space!s:.80}")
        head = requirements.head
        weights, model = export_module(name, build, chosen, space, head.outputs(requirements.action_space))
        return onnx_spec(space, requirements.action_space, head, weights, model)

    def networks(chosen: Any, space: ObservationSpace, shape: ReplayShape) -> ModuleNetworks:
        from rl4sys_zmq.algorithms.networks.module_networks import ModuleNetworks

        assert isinstance(space, BoxSpace)
        return ModuleNetworks(build, chosen, space, shape)

    def actor_critic(chosen: Any, spec: PolicySpec) -> ActorCriticNetwork:
        head = HeadParameters(**spec.document)
        extras = sum(tensor.size for tensor in head.head_tensors(spec.action_space))
        shape = ReplayShape(outputs=(head.outputs(spec.action_space), 1), extras=extras)
        return networks(chosen, spec.observation_space, shape)

    return NetworkEntry(
        name=name,
        options=options,
        plan=plan,
        actor_critic=actor_critic,
        replay=networks,
        summary=summary,
        reference=reference,
        extra="learner",
    )
