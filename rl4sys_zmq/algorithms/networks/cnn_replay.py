"""The torch form of the kind of network ``cnn`` for replay algorithms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rl4sys_zmq.algorithms.networks.cnn import CNNOptions
from rl4sys_zmq.algorithms.networks.cnn_body import CNNBody, initialise_orthogonal
from rl4sys_zmq.algorithms.networks.flat_parameters import FlatParameters
from rl4sys_zmq.learner.registry.network_entry import ReplayShape
from rl4sys_zmq.values import ObservationSpace


class CNNReplay(FlatParameters):
    """Convolutional networks that share the convolutions and have hidden layers of their own. It implements `ReplayNetwork`.

    An action is joined to the features after the convolutions. The convolutions belong to network 0.
    """

    def __init__(self, options: CNNOptions, space: ObservationSpace, shape: ReplayShape) -> None:
        self._body = CNNBody(options, space)
        self._extras = bool(shape.extras)
        layers = self._body.layers
        networks = [[tensor.shape for tensor in layers.dense_tensors(count, shape.actions)] for count in shape.outputs]
        networks[0] = [*[tensor.shape for tensor in layers.convolution_tensors()], *networks[0]]
        if shape.extras:
            networks[0].append((shape.extras,))
        super().__init__(networks)

    def __call__(self, x: Tensor, actions: Tensor | None = None) -> list[Tensor]:
        """Compute all networks, as `ReplayNetwork` describes."""
        joined = self._joined(x, actions)
        return [self._outputs(joined, k) for k in range(len(self.leaves))]

    def one(self, k: int, x: Tensor, actions: Tensor | None = None) -> Tensor:
        """Compute one network, as `ReplayNetwork` describes."""
        return self._outputs(self._joined(x, actions), k)

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        """Set random orthogonal weights and zero biases, as `ReplayNetwork` describes."""
        for k, gain in enumerate(output_gains):
            initialise_orthogonal(self._of_layers(self.views(self.flat)[k], k), gain, generator)

    def initialise_uniform(self, generator: torch.Generator) -> None:
        """Set weights and biases that are uniform within ``1 / √inputs`` of zero, where a unit has so many inputs.

        These are the initial values of ``torch.nn.Linear`` and ``torch.nn.Conv2d``. The extra parameters do not change.
        """
        with torch.no_grad():
            for k, views in enumerate(self.views(self.flat)):
                layers = self._of_layers(views, k)
                for weight, bias in zip(layers[::2], layers[1::2], strict=True):
                    bound = 1.0 / math.sqrt(weight[0].numel())
                    for view in (weight, bias):
                        view.uniform_(-bound, bound, generator=generator)

    def _of_layers(self, parameters: list[Tensor], k: int) -> list[Tensor]:
        """Return the parameters of network `k` without the extra ones."""
        return parameters[:-1] if self._extras and k == 0 else parameters

    def _joined(self, x: Tensor, actions: Tensor | None) -> Tensor:
        """Return the inputs of the first layers after the convolutions."""
        features = self._body.convolve(x, self.leaves[0])
        return features if actions is None else torch.cat((features, actions), 1)

    def _outputs(self, joined: Tensor, k: int) -> Tensor:
        """Return the outputs of network `k`."""
        leaves = self._of_layers(self.leaves[k], k)
        start = self._body.convolved if k == 0 else 0
        return F.linear(self._body.hide(joined, leaves[start:-2]), *leaves[-2:])
