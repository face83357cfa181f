"""Policies with a network and an action head, which chooses actions from the outputs of the network."""

from __future__ import annotations

from typing import Any

from rl4sys_zmq.interfaces import Policy
from rl4sys_zmq.policies.action_heads import ActionHead, CategoricalHead, action_head
from rl4sys_zmq.policies.base import Act, Action, Choice, Choices, Mask
from rl4sys_zmq.policies.bounded import DeterministicHead, SquashedGaussianHead
from rl4sys_zmq.policies.epsilon_greedy import EpsilonGreedyHead
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.layer_policy import read_network
from rl4sys_zmq.policies.network import LayerNetwork, OutputNetwork
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.values.trees import Tree


class NetworkPolicy:
    """A policy that consists of a network and an action head. It implements `Policy` and `AssessingPolicy`."""

    def __init__(self, spec: PolicySpec, head: HeadParameters, snapshot: PolicySnapshot, network: OutputNetwork) -> None:
        """Create the policy that `spec` describes, with a network that was built from the weights in `snapshot`."""
        self.snapshot, self.generation, self.version = snapshot, snapshot.generation, snapshot.version
        self._network, self._head = network, policy_head(spec, head, snapshot)

    def act(self, observation: Tree, mask: Mask, rng: RandomSource, explore: bool) -> Choice:
        return self._head.choose(self._network.single(observation), mask, rng, explore)

    def bind(self, rng: RandomSource, explore: bool) -> Act:
        """Return a faster form of `act` for one thread, with the given `rng` and `explore`."""
        forward, head = self._network.forward(), self._head
        if isinstance(head, CategoricalHead):
            return head.bind(forward, rng, explore)
        choose = head.choose
        return lambda observation, mask: choose(forward(observation), mask, rng, explore)

    def act_batch(self, observations: Tree, masks: Mask, rng: RandomSource, explore: bool) -> Choices:
        return self._head.choose_batch(self._network.batch(observations), masks, rng, explore)

    def assess(self, act: Action, observation: Tree, mask: Mask, rng: RandomSource, state: Any) -> tuple[Action, float]:
        return self._head.assess(act, self._network.single(observation), mask, rng)


def policy_head(spec: PolicySpec, parameters: HeadParameters, snapshot: PolicySnapshot) -> ActionHead:
    """Return the head that `parameters` describe for the action space of `spec`, with the weights in `snapshot`."""
    match parameters.head:
        case "squashed_gaussian":
            return SquashedGaussianHead(spec, parameters)
        case "deterministic":
            return DeterministicHead(spec, snapshot)
        case "q_values" | "q_distribution":
            return EpsilonGreedyHead(spec, parameters, snapshot)
        case _:
            return action_head(spec.action_space, parameters.squash, spec.views(snapshot.flat).get("log_std"))


def build_layers(spec: PolicySpec, snapshot: PolicySnapshot) -> Policy:
    """Build the policy that a spec of the kind ``layers`` describes. The policy uses views of large weights."""
    head, layers = read_network(spec)
    names = [tensor.name for tensor in layers.tensors()]
    tensors = spec.views(snapshot.flat)
    if not all(layer.in_numpy for layer in layers.layers):
        from rl4sys_zmq.policies.graphs.session import network_of_layers  # the actor of a small network does not import it

        return NetworkPolicy(spec, head, snapshot, network_of_layers(spec.observation_space, layers, tensors))
    network = LayerNetwork(spec.observation_space, layers, [tensors[name] for name in names])
    if not layers.state_size:
        return NetworkPolicy(spec, head, snapshot, network)
    from rl4sys_zmq.policies.recurrent_policy import RecurrentPolicy

    return RecurrentPolicy(spec.observation_space, snapshot, network, layers.state_size, policy_head(spec, head, snapshot))
