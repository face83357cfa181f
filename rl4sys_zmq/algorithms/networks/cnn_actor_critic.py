"""The torch form of the kind of network ``cnn`` for actor-critics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rl4sys_zmq.algorithms.networks.cnn import CNNOptions
from rl4sys_zmq.algorithms.networks.cnn_body import CNNBody, initialise_orthogonal
from rl4sys_zmq.algorithms.networks.flat_parameters import FlatParameters
from rl4sys_zmq.algorithms.networks.sequences import Sequences
from rl4sys_zmq.values import PolicySpec


class CNNActorCritic(FlatParameters):
    """A convolutional policy, and a linear value network on its last hidden layer. It implements `ActorCriticNetwork`.

    The values share the convolutions and the hidden layers, because these take most of the time, and both networks need the same
    features of an image. If both networks are trained together, the gradient of the value loss reaches the shared layers too. If
    the value network is trained alone, the shared layers stay as they are.

    Attributes:
        extras: The logarithms of the standard deviations of continuous actions, as a view ``[n]``; None if there are none.
    """

    def __init__(self, options: CNNOptions, spec: PolicySpec) -> None:
        self._body = CNNBody(options, spec.observation_space)
        shapes = {tensor.name: tensor.shape for tensor in spec.tensors}
        self._has_extras = "log_std" in shapes
        units = self._body.layers.dense[-1]
        self._output = self._body.convolved + 2 * (len(self._body.layers.dense) - 1)
        super().__init__([list(shapes.values()), [(1, units), (1,)]])

    @property
    def extras(self) -> Tensor | None:
        """The logarithms of the standard deviations of continuous actions, as a view ``[n]``; None if there are none."""
        return self.leaves[0][-1] if self._has_extras else None

    def __call__(self, x: Tensor, sequences: Sequences | None = None) -> list[Tensor]:
        """Compute both networks, as `ActorCriticNetwork` describes."""
        features = self._features(x)
        return [self._outputs(features), F.linear(features, *self.leaves[1])]

    def one(self, k: int, x: Tensor, sequences: Sequences | None = None) -> Tensor:
        """Compute one network, as `ActorCriticNetwork` describes. The values have no gradient by the shared layers."""
        if k == 0:
            return self._outputs(self._features(x))
        with torch.no_grad():
            features = self._features(x)
        return F.linear(features, *self.leaves[1])

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        """Set random orthogonal weights and zero biases. `extras` does not change.

        Args:
            generator: The only source of random numbers.
            output_gains: The gain of the output layer of each network. The gain of the other layers is √2.
        """
        policy, value = self.views(self.flat)
        initialise_orthogonal(policy[: self._output + 2], output_gains[0], generator)
        initialise_orthogonal(value, output_gains[1], generator)

    def change_inputs(self, mean: Tensor, scale: Tensor, new_mean: Tensor, new_scale: Tensor) -> Tensor:
        """Raise NotImplementedError: images are not standardised."""
        raise NotImplementedError("a policy of kind 'cnn' does not standardise observations")

    def _features(self, x: Tensor) -> Tensor:
        """Return the last hidden layer ``[B, units]``."""
        body, leaves = self._body, self.leaves[0]
        return body.hide(body.convolve(x, leaves), leaves[body.convolved : self._output])

    def _outputs(self, features: Tensor) -> Tensor:
        return F.linear(features, self.leaves[0][self._output], self.leaves[0][self._output + 1])
