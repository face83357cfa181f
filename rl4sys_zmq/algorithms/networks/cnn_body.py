"""The layers of the kind of network ``cnn`` in torch. The parameters are arguments, in the order of `CNNLayers.tensors`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from rl4sys_zmq.algorithms.networks.cnn import CNNOptions, cnn_layers
from rl4sys_zmq.algorithms.networks.torch_layers import HIDDEN_GAIN, activation_function
from rl4sys_zmq.values import ObservationSpace


class CNNBody:
    """The convolutions and the hidden layers of a convolutional network.

    Attributes:
        layers: The layers.
        convolved: The number of parameters of the convolutions, which are the first ones: a weight and a bias of each.
    """

    def __init__(self, options: CNNOptions, space: ObservationSpace) -> None:
        self.layers = cnn_layers(options, space)
        self.convolved = 2 * len(self.layers.convolutions)
        self._activation = activation_function(options.activation)

    def convolve(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Return the inputs of the first layer after the convolutions, ``[B, CNNLayers.dense[0]]``.

        Args:
            x: The features of observations, ``[B, F]``, among them the pixels of an image in its own order.
            parameters: Parameters that begin with those of the convolutions.
        """
        layers = self.layers
        features, stop = x, layers.start + prod(layers.shape)
        x = x[:, layers.start : stop].reshape(len(x), *layers.shape)
        if layers.scale != 1.0:
            x = x * layers.scale
        x = x.view(len(x), layers.channels, layers.height, layers.width) if layers.order is None else x.permute(layers.order)
        for index, layer in enumerate(layers.convolutions):
            x = self._activation(F.conv2d(x, parameters[2 * index], parameters[2 * index + 1], stride=layer.stride))
        x = x.flatten(1)
        return torch.cat((x, features[:, : layers.start], features[:, stop:]), 1) if layers.beside else x

    def hide(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Return the last hidden layer ``[B, units]``.

        Args:
            x: The inputs of the first layer after the convolutions.
            parameters: The weight and the bias of each hidden layer.
        """
        for index in range(0, len(parameters), 2):
            x = self._activation(F.linear(x, parameters[index], parameters[index + 1]))
        return x


def initialise_orthogonal(parameters: Sequence[Tensor], output_gain: float, generator: torch.Generator) -> None:
    """Set random orthogonal weights and zero biases.

    Args:
        parameters: The weight and the bias of each layer. The last layer is that of the outputs.
        output_gain: The gain of the last layer. The gain of the other layers is √2.
        generator: The only source of random numbers.
    """
    with torch.no_grad():
        for index in range(0, len(parameters), 2):
            gain = output_gain if index == len(parameters) - 2 else HIDDEN_GAIN
            torch.nn.init.orthogonal_(parameters[index], gain, generator=generator)
            parameters[index + 1].zero_()
