"""The hidden layers, the gated recurrent unit and the output layer of networks of the kind ``gru``, in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rl4sys_zmq.algorithms.networks.gru import GRUOptions
from rl4sys_zmq.algorithms.networks.sequences import Sequences
from rl4sys_zmq.algorithms.networks.torch_layers import HIDDEN_GAIN, activation_function

_OUTPUT = 4
"""The index of the output layer's weight, counted from the first parameter of the recurrent unit."""


class GRUBody:
    """The part of a network that `rl4sys_zmq.policies.gru.GRUParameters` describes.

    It has no parameters of its own. Its methods take them as a list, in the order of the policy's tensors: weight and bias of
    each hidden layer, the four parameters of the recurrent unit, weight and bias of the output layer. Others can follow.

    Attributes:
        units: The size of the recurrent state.
        layers: The number of hidden layers.
    """

    def __init__(self, options: GRUOptions) -> None:
        self.units, self.layers = options.units, len(options.hidden_sizes)
        self._hidden_sizes = options.hidden_sizes
        self._activation = activation_function(options.activation)

    def shapes(self, width: int, outputs: int) -> list[tuple[int, ...]]:
        """Return the shapes of the parameters of a network with `width` inputs and `outputs` outputs."""
        found: list[tuple[int, ...]] = []
        for size in self._hidden_sizes:
            found += [(size, width), (size,)]
            width = size
        units = self.units
        return [*found, (3 * units, width), (3 * units, units), (3 * units,), (3 * units,), (outputs, units), (outputs,)]

    def states(self, parameters: Sequence[Tensor], x: Tensor, sequences: Sequences) -> Tensor:
        """Return the state of the recurrent unit after each row of features, ``[B, units]``.

        Args:
            parameters: The parameters.
            x: The features of ``B`` observations, ``[B, F]``.
            sequences: The division of the rows into sequences, and the states before them.
        """
        for layer in range(self.layers):
            x = self._activation(F.linear(x, parameters[2 * layer], parameters[2 * layer + 1]))
        padded, rows = sequences.padding(x.device)
        unit = list(parameters[2 * self.layers : 2 * self.layers + _OUTPUT])
        inputs = x.index_select(0, padded).view(-1, len(sequences.lengths), x.shape[1])
        after, _ = torch.gru(inputs, sequences.states[None], unit, True, 1, 0.0, torch.is_grad_enabled(), False, False)
        return after.reshape(-1, self.units).index_select(0, rows)

    def outputs(self, parameters: Sequence[Tensor], states: Tensor) -> Tensor:
        """Return the outputs of the output layer, ``[B, outputs]``, for states ``[B, units]``."""
        at = 2 * self.layers + _OUTPUT
        return F.linear(states, parameters[at], parameters[at + 1])

    @torch.no_grad()
    def initialise(self, parameters: Sequence[Tensor], generator: torch.Generator, output_gain: float) -> None:
        """Set random orthogonal weights, for each gate separately, and zero biases.

        The gain of hidden layers is √2, that of gates is 1, that of the output layer is `output_gain`.
        """
        gru = 2 * self.layers
        for weight in parameters[:gru:2]:
            torch.nn.init.orthogonal_(weight, HIDDEN_GAIN, generator=generator)
        for gate in (*parameters[gru].split(self.units), *parameters[gru + 1].split(self.units)):
            torch.nn.init.orthogonal_(gate, 1.0, generator=generator)
        torch.nn.init.orthogonal_(parameters[gru + _OUTPUT], output_gain, generator=generator)
        for bias in (*parameters[1:gru:2], parameters[gru + 2], parameters[gru + 3], parameters[gru + _OUTPUT + 1]):
            bias.zero_()

    @torch.no_grad()
    def initialise_uniform(self, parameters: Sequence[Tensor], generator: torch.Generator) -> None:
        """Set uniform weights and biases, as those of ``torch.nn.Linear`` and ``torch.nn.GRU``.

        They are within ``1 / √inputs`` of zero in a hidden layer, and within ``1 / √units`` in the unit and in the output layer.
        """
        gru = 2 * self.layers
        for index, parameter in enumerate(parameters[: gru + _OUTPUT + 2]):
            inputs = parameters[index - index % 2].shape[1] if index < gru else self.units
            parameter.uniform_(-1.0 / math.sqrt(inputs), 1.0 / math.sqrt(inputs), generator=generator)
