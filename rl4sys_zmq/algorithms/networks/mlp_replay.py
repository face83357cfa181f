"""The torch form of the kind of network ``mlp`` for replay algorithms."""

from __future__ import annotations

import torch
from torch import Tensor

from rl4sys_zmq.algorithms.networks.mlp import MLPOptions
from rl4sys_zmq.algorithms.networks.torch_layers import MLPStack
from rl4sys_zmq.learner.registry.network_entry import ReplayShape
from rl4sys_zmq.values import ObservationSpace, feature_size

__all__ = ["MLPReplay"]


class MLPReplay(MLPStack):
    """Multilayer perceptrons on the features of an observation, followed by an action. It implements `ReplayNetwork`."""

    def __init__(self, options: MLPOptions, space: ObservationSpace, shape: ReplayShape) -> None:
        inputs = feature_size(space) + shape.actions
        super().__init__(inputs, options.hidden_sizes, shape.outputs, options.activation, extras=shape.extras)

    def __call__(self, x: Tensor, actions: Tensor | None = None) -> list[Tensor]:
        """Compute all networks, as `ReplayNetwork` describes."""
        return super().__call__(x if actions is None else torch.cat((x, actions), 1))

    def one(self, k: int, x: Tensor, actions: Tensor | None = None) -> Tensor:
        """Compute one network, as `ReplayNetwork` describes."""
        return super().one(k, x if actions is None else torch.cat((x, actions), 1))
