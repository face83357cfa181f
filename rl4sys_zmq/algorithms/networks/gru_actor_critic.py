"""The torch form of the kind of network ``gru`` for actor-critics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rl4sys_zmq.algorithms.networks.flat_parameters import FlatParameters
from rl4sys_zmq.algorithms.networks.gru import GRUOptions
from rl4sys_zmq.algorithms.networks.gru_body import GRUBody
from rl4sys_zmq.algorithms.networks.sequences import Sequences
from rl4sys_zmq.algorithms.networks.torch_layers import HIDDEN_GAIN, activation_function, input_change
from rl4sys_zmq.policies.gru import STATE
from rl4sys_zmq.values import PolicySpec

STATISTICS = ("obs_mean", "obs_scale")


class GRUActorCritic(FlatParameters):
    """A policy with a gated recurrent unit, and a value network on the states of that unit. It implements `RecurrentNetwork`.

    The policy is that of `rl4sys_zmq.policies.gru.GRUParameters`. The value network has one hidden layer of as many units as the
    recurrent one, and a linear output. It has no recurrent unit of its own: the actor would have to compute and send the state of
    a second unit, and a gradient step would cost twice as much. If both networks are trained together, the gradient of the value
    loss reaches the recurrent unit too, unless `GRUOptions.value_gradient` is False. If the value network is trained alone, the
    unit stays as it is.

    Attributes:
        state_column: The name of the extra column with the states at the starts of segments.
        sequence_length: Largest number of steps of a sequence in training; None for whole segments.
        extras: The logarithms of the standard deviations of continuous actions, as a view ``[n]``; None if there are none.
    """

    state_column = STATE

    def __init__(self, options: GRUOptions, spec: PolicySpec) -> None:
        shapes = {tensor.name: tensor.shape for tensor in spec.tensors if tensor.name not in STATISTICS}
        self.sequence_length = options.sequence_length
        self._body = GRUBody(options)
        self._activation = activation_function(options.activation)
        self._shares = options.value_gradient
        self._has_extras = "log_std" in shapes
        units = options.units
        super().__init__([list(shapes.values()), [(units, units), (units,), (1, units), (1,)]])

    @property
    def extras(self) -> Tensor | None:
        """The logarithms of the standard deviations of continuous actions, as a view ``[n]``; None if there are none."""
        return self.leaves[0][-1] if self._has_extras else None

    def __call__(self, x: Tensor, sequences: Sequences | None = None) -> list[Tensor]:
        """Compute both networks, as `ActorCriticNetwork` describes. Without `sequences`, each row is the start of an episode."""
        states = self.states(x, sequences)
        return [self._outputs(states), self._values(states if self._shares else states.detach())]

    def one(self, k: int, x: Tensor, sequences: Sequences | None = None) -> Tensor:
        """Compute one network, as `ActorCriticNetwork` describes. The values have no gradient by the recurrent unit."""
        if k == 0:
            return self._outputs(self.states(x, sequences))
        with torch.no_grad():
            states = self.states(x, sequences)
        return self._values(states)

    def states(self, x: Tensor, sequences: Sequences | None = None) -> Tensor:
        """Return the state of the recurrent unit after each row, ``[B, units]``, as `RecurrentNetwork` describes."""
        if sequences is None:
            sequences = Sequences([1] * len(x), x.new_zeros(len(x), self._body.units))
        return self._body.states(self.leaves[0], x, sequences)

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        """Set random orthogonal weights, for each gate separately, and zero biases. `extras` does not change.

        Args:
            generator: The only source of random numbers.
            output_gains: The gain of the output layer of each network. The gain of hidden layers is √2, that of gates is 1.
        """
        policy, value = self.views(self.flat)
        self._body.initialise(policy, generator, output_gains[0])
        with torch.no_grad():
            torch.nn.init.orthogonal_(value[0], HIDDEN_GAIN, generator=generator)
            torch.nn.init.orthogonal_(value[2], output_gains[1], generator=generator)
            for bias in (value[1], value[3]):
                bias.zero_()

    def change_inputs(self, mean: Tensor, scale: Tensor, new_mean: Tensor, new_scale: Tensor) -> Tensor:
        """Adapt the first layer to a new standardisation of the inputs, as `MLPStack.change_inputs` describes."""
        weight, bias = (0, 1) if self._body.layers else (0, 2)
        gradient = torch.ones_like(self.flat)
        policy = self.views(self.flat)[0]
        with torch.no_grad():
            factor = input_change(policy[weight], policy[bias], mean, scale, new_mean, new_scale)
            self.views(gradient)[0][weight].div_(factor)
        return gradient

    def _outputs(self, states: Tensor) -> Tensor:
        return self._body.outputs(self.leaves[0], states)

    def _values(self, states: Tensor) -> Tensor:
        hidden, hidden_bias, weight, bias = self.leaves[1]
        return F.linear(self._activation(F.linear(states, hidden, hidden_bias)), weight, bias)
