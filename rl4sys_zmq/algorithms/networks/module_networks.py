"""Torch modules of the user with all parameters in one flat vector."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl4sys_zmq.algorithms.networks.flat_networks import FlatParameters
from rl4sys_zmq.algorithms.networks.module_export import build_module
from rl4sys_zmq.layers.layer import Sequences
from rl4sys_zmq.learner.registry.network_entry import ModuleBuilder, ReplayShape
from rl4sys_zmq.values import BoxSpace

JOINED_UNITS = 256
"""The number of features that a module computes for a critic of continuous actions, and of the units of the layer after it."""


class ModuleNetworks(FlatParameters):
    """Networks that are torch modules of the user and share no layers.

    The class implements `ActorCriticNetwork` and `ReplayNetwork`.

    The modules compute with views into one flat vector of all parameters. If the networks get actions, each module computes
    `JOINED_UNITS` features of the observation. A hidden layer with ReLU on the features and the action follows, and a linear
    output layer.
    """

    def __init__(self, build: ModuleBuilder, options: Any, space: BoxSpace, shape: ReplayShape) -> None:
        def critic(chosen: Any, observed: BoxSpace, size: int) -> nn.Module:
            return _ActionCritic(build(chosen, observed, JOINED_UNITS), shape.actions, size)

        builder = critic if shape.actions else build
        self._builders = [partial(build_module, "network", builder, options, space, size) for size in shape.outputs]
        self._space = space
        self._modules = [make(0) for make in self._builders]
        self._names = [[name for name, _ in module.named_parameters()] for module in self._modules]
        shapes = [[tuple(tensor.shape) for tensor in module.parameters()] for module in self._modules]
        super().__init__(shapes, shape.extras)

    def __call__(self, x: Tensor, sequences: Sequences | None = None, actions: Tensor | None = None) -> list[Tensor]:
        return [self.one(k, x, sequences, actions) for k in range(len(self._modules))]

    def one(self, k: int, x: Tensor, sequences: Sequences | None = None, actions: Tensor | None = None) -> Tensor:
        parameters = dict(zip(self._names[k], self.leaves[k], strict=False))
        inputs = (x.view(len(x), *self._space.shape), *(() if actions is None else (actions,)))
        outputs: Tensor = functional_call(self._modules[k], parameters, inputs)
        return outputs

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        """Set the weights to the initial values of the modules, with a seed from `generator`. `output_gains` has no effect."""
        seed = int(torch.randint(1 << 62, (), generator=generator, dtype=torch.int64, device="cpu"))
        modules = [build(seed + k) for k, build in enumerate(self._builders)]
        for views, module in zip(self.views(self.flat), modules, strict=True):
            with torch.no_grad():
                for view, tensor in zip(views, module.parameters(), strict=False):
                    view.copy_(tensor)

    def initialise_uniform(self, generator: torch.Generator) -> None:
        self.initialise(generator, ())

    def change_inputs(self, mean: Tensor, scale: Tensor, new_mean: Tensor, new_scale: Tensor) -> Tensor:
        """Raise NotImplementedError: the observations of a module are not standardised."""
        raise NotImplementedError("a policy of a torch module does not standardise observations")


class _ActionCritic(nn.Module):
    """A critic of continuous actions: a module computes features of the observation, and a hidden layer adds the action."""

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
