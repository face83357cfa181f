"""The torch form, for replay algorithms, of the kinds of networks that consist of modules of the user."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rl4sys_zmq.algorithms.networks.module_export import build_module
from rl4sys_zmq.algorithms.networks.module_networks import ModuleNetworks
from rl4sys_zmq.learner.registry.network_entry import ModuleBuilder, ReplayShape
from rl4sys_zmq.values import BoxSpace, ObservationSpace

JOINED_UNITS = 256
"""The number of features that a module computes for a critic of continuous actions, and of the units of the layer after it."""


class _ActionCritic(nn.Module):
    """A critic of continuous actions: features of the observation from a module, joined with the action, and a hidden layer."""

    def __init__(self, body: nn.Module, actions: int, outputs: int) -> None:
        super().__init__()
        self.body = body
        self.joined = nn.Linear(JOINED_UNITS + actions, JOINED_UNITS, dtype=torch.float32, device="cpu")
        self.last = nn.Linear(JOINED_UNITS, outputs, dtype=torch.float32, device="cpu")

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the values, ``[B, outputs]``."""
        features = torch.relu(self.body(observations))
        values: Tensor = self.last(torch.relu(self.joined(torch.cat((features, actions), 1))))
        return values


class ModuleReplay(ModuleNetworks):
    """Torch modules of one kind, which share no layers. It implements `ReplayNetwork`.

    If the networks get actions, each module computes `JOINED_UNITS` features of the observation. A hidden layer with ReLU on the
    features and the action follows, and a linear output layer.
    """

    def __init__(self, build: ModuleBuilder, options: Any, space: ObservationSpace, shape: ReplayShape) -> None:
        assert isinstance(space, BoxSpace)

        def critic(chosen: Any, observed: BoxSpace, outputs: int) -> nn.Module:
            return _ActionCritic(build(chosen, observed, JOINED_UNITS), shape.actions, outputs)

        builder = critic if shape.actions else build
        builders = [partial(build_module, "network", builder, options, space, size) for size in shape.outputs]
        super().__init__(builders, space, shape.extras)

    def __call__(self, x: Tensor, actions: Tensor | None = None) -> list[Tensor]:
        """Compute all networks, as `ReplayNetwork` describes."""
        return [self.one(k, x, actions) for k in range(len(self.leaves))]

    def one(self, k: int, x: Tensor, actions: Tensor | None = None) -> Tensor:
        """Compute one network, as `ReplayNetwork` describes."""
        return self.compute(k, x) if actions is None else self.compute(k, x, actions)

    def initialise_uniform(self, generator: torch.Generator) -> None:
        """Set the initial values that the modules give themselves, as `initialise` does."""
        self.initialise(generator, ())
