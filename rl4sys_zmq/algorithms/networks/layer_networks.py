"""Networks in torch from lists of layers, which can share their first layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from rl4sys_zmq.algorithms.networks.flat_networks import FlatParameters, MLPGroup, input_change
from rl4sys_zmq.layers.activation import ActivationLayer
from rl4sys_zmq.layers.dense import Dense
from rl4sys_zmq.layers.layer import HIDDEN_GAIN, Layer, LayerContext, Sequences
from rl4sys_zmq.layers.layer_list import LayerList
from rl4sys_zmq.learner.registry.network_entry import LayerPlan, ReplayShape
from rl4sys_zmq.policies.layer_policy import STATE, read_network
from rl4sys_zmq.values import ObservationSpace, PolicySpec, feature_size


class SharedLayerNetworks(FlatParameters):
    """One or more networks that share their first layers. The class implements `ActorCriticNetwork` and `ReplayNetwork`.

    The shared layers belong to network 0. If all networks are trained together, the gradients of all losses reach the shared
    layers, unless `detached` is True. If another network is trained alone, the shared layers do not change.
    """

    def __init__(self, shared: LayerList, own: Sequence[LayerList], *, extras: int = 0, detached: bool = False) -> None:
        """Create networks from their shared layers and the further layers of each, to whose inputs actions are joined.

        All parameters are zero. With `detached`, only network 0 trains the shared layers.
        """
        self._shared, self._own = _Layers(shared), [_Layers(part) for part in own]
        self._detached = detached
        first, *others = [part.shapes for part in self._own]
        super().__init__([[*self._shared.shapes, *first], *others], extras)

    def __call__(self, x: Tensor, sequences: Sequences | None = None, actions: Tensor | None = None) -> list[Tensor]:
        values = self.shared(x, sequences)
        others = values.detach() if self._detached else values
        return [self._further(k, others if k else values, actions) for k in range(len(self._own))]

    def one(self, k: int, x: Tensor, sequences: Sequences | None = None, actions: Tensor | None = None) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and k == 0):
            values = self.shared(x, sequences)
        return self._further(k, values, actions)

    def shared(self, x: Tensor, sequences: Sequences | None) -> Tensor:
        """Return the outputs of the shared layers, ``[B, n]``."""
        return self._shared(x, self.leaves[0], LayerContext(x, sequences)).flatten(1)

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        for k, (views, gain) in enumerate(zip(self.views(self.flat), output_gains, strict=True)):
            placed = self._placed(k, views)
            with torch.no_grad():
                for index, (layer, tensors) in enumerate(placed):
                    layer.initialise(tensors, gain if index == len(placed) - 1 else HIDDEN_GAIN, generator)

    def initialise_uniform(self, generator: torch.Generator) -> None:
        for k, views in enumerate(self.views(self.flat)):
            with torch.no_grad():
                for layer, tensors in self._placed(k, views):
                    layer.initialise_uniform(tensors, generator)

    def change_inputs(self, mean: Tensor, scale: Tensor, new_mean: Tensor, new_scale: Tensor) -> Tensor:
        gradient = torch.ones_like(self.flat)
        pairs = zip(self.views(self.flat), self.views(gradient), strict=True)
        for k, (views, factors) in enumerate(pairs):
            if k and self._shared.shapes:
                break
            layer, tensors = self._placed(k, views)[0]
            if layer.input_parameters is None:
                raise NotImplementedError(f"a first layer of kind {layer.kind!r} does not allow standardised observations")
            weight, bias = layer.input_parameters
            with torch.no_grad():
                factors[weight].div_(input_change(tensors[weight], tensors[bias], mean, scale, new_mean, new_scale))
        return gradient

    def _further(self, k: int, values: Tensor, actions: Tensor | None) -> Tensor:
        """Return the outputs of network `k`, from `values`, the outputs of the shared layers."""
        if actions is not None:
            values = torch.cat((values, actions), 1)
        tensors = self.leaves[k][len(self._shared.shapes) if k == 0 else 0 :]
        return self._own[k](values, tensors, LayerContext(values))

    def _placed(self, k: int, views: Sequence[Tensor]) -> list[tuple[Layer, Sequence[Tensor]]]:
        """Return each layer of network `k` that has tensors, together with its tensors in `views`."""
        shared = self._shared.placed(views) if k == 0 else []
        return shared + self._own[k].placed(views[len(self._shared.shapes) if k == 0 else 0 :])


class RecurrentNetworks(SharedLayerNetworks):
    """Networks that share a recurrent layer. The class implements `RecurrentNetwork` and `SequenceNetwork`.

    Attributes:
        sequence_length: Largest number of steps of a sequence in training; None for whole segments.
    """

    state_column: ClassVar[str] = STATE
    sequence_length: int | None = None

    def states(self, x: Tensor, sequences: Sequences | None = None) -> Tensor:
        """Return the recurrent state after each row, ``[B, units]``."""
        return self.shared(x, sequences)


class _Layers:
    """A list of layers in torch. The parameters are an argument of each call; more parameters can follow those of the layers."""

    def __init__(self, layers: LayerList) -> None:
        self._layers = layers
        self._forms = [layer.torch_form(inputs) for layer, inputs in zip(layers.layers, layers.shapes, strict=False)]
        self.shapes: list[tuple[int, ...]] = [tensor.shape for tensor in layers.tensors()]

    def __call__(self, x: Tensor, tensors: Sequence[Tensor], rows: LayerContext) -> Tensor:
        for form, own in zip(self._forms, self._layers.divided(tensors), strict=True):
            x = form(x, own, rows)
        return x

    def placed(self, tensors: Sequence[Tensor]) -> list[tuple[Layer, Sequence[Tensor]]]:
        """Return each layer that has tensors, together with its tensors."""
        return [(layer, own) for layer, own in zip(self._layers.layers, self._layers.divided(tensors), strict=True) if own]


def actor_critic(plan: LayerPlan, spec: PolicySpec) -> SharedLayerNetworks | MLPGroup:
    """Build the policy and the value network of an on-policy algorithm, with the layers of `plan`."""
    head, layers = read_network(spec)
    outputs = Dense(units=layers.outputs)
    extras = sum(tensor.size for tensor in head.head_tensors(spec.action_space))
    features = layers.inputs
    if plan.values is None:
        return separate((*plan.shared, *plan.own), features, (outputs.units, 1), extras)
    shared = LayerList((*plan.shared, *plan.own), features)
    own = [LayerList((outputs,), shared.outputs), LayerList((*plan.values, Dense(units=1)), shared.outputs)]
    if not shared.state_size:
        return SharedLayerNetworks(shared, own, extras=extras)
    networks = RecurrentNetworks(shared, own, extras=extras, detached=not plan.value_gradient)
    networks.sequence_length = plan.sequence_length
    return networks


def replay(plan: LayerPlan, space: ObservationSpace, shape: ReplayShape) -> SharedLayerNetworks | MLPGroup:
    """Build the networks of an off-policy algorithm, which share the layers `LayerPlan.shared`."""
    features = feature_size(space)
    if not plan.shared:
        return separate(plan.own, features + shape.actions, shape.outputs, shape.extras)
    shared = LayerList(tuple(plan.shared), features)
    own = [LayerList((*plan.own, Dense(units=count)), shared.outputs + shape.actions) for count in shape.outputs]
    return (RecurrentNetworks if shared.state_size else SharedLayerNetworks)(shared, own, extras=shape.extras)


def separate(hidden: Sequence[Layer], inputs: int, outputs: Sequence[int], extras: int) -> SharedLayerNetworks | MLPGroup:
    """Return networks without shared layers: one network with the layers `hidden` for each number in `outputs`.

    The result is an `MLPGroup` if `hidden` has only dense layers with the same activation.
    """
    sizes = [layer.units for layer in hidden if isinstance(layer, Dense)]
    functions = {layer.function for layer in hidden if isinstance(layer, ActivationLayer)}
    if [layer.kind for layer in hidden] == ["dense", "activation"] * len(sizes) and len(functions) < 2:
        return MLPGroup(inputs, sizes, outputs, functions.pop() if functions else "identity", extras=extras)
    return SharedLayerNetworks(
        LayerList((), inputs), [LayerList((*hidden, Dense(units=n)), inputs) for n in outputs], extras=extras
    )
