"""Several multilayer perceptrons with equal layers, computed together in torch.

All parameters of the networks are in one flat vector. The optimizer and the checkpoints use this vector. An optimizer step over
one vector takes a few kernel launches, however many layers there are. With small networks, most of the time of a step goes into
launches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rl4sys_zmq.algorithms.networks.flat_parameters import FlatParameters, Shape
from rl4sys_zmq.layers.activation import torch_activation
from rl4sys_zmq.layers.layer import HIDDEN_GAIN, Sequences

MAX_RESCALE = 2.0
"""Largest factor by which `input_change` changes a weight."""


class MLPStack(FlatParameters):
    """A group of ``K`` multilayer perceptrons (MLPs) with equal input and hidden sizes, and one flat vector of parameters.

    A forward pass computes all networks together, with one batched matrix product per layer, or one network by itself. The
    class implements `ActorCriticNetwork` and `ReplayNetwork`.

    All slices of `flat` have equal sizes. So a network with fewer outputs than network 0 has some rows of weights that are never
    read and never change. The same holds for the extra parameters of networks other than network 0.
    """

    def __init__(
        self,
        features: int,
        hidden_sizes: Sequence[int],
        outputs: Sequence[int],
        activation: str = "tanh",
        *,
        extras: int = 0,
    ) -> None:
        if max(outputs) > outputs[0]:
            raise ValueError(f"network 0 has {outputs[0]} outputs of {tuple(outputs)}; it must have the most")
        self._activation = torch_activation(activation)
        self._outputs = tuple(outputs)
        self._layers = [(rows, columns) for columns, rows in itertools.pairwise((features, *hidden_sizes, outputs[0]))]
        first: list[Shape] = [shape for rows, columns in self._layers for shape in ((rows, columns), (rows,))]
        other = [*first, *([(extras,)] if extras else [])]
        super().__init__([first, *[other] * (len(outputs) - 1)], extras)

    def _bind(self, flat: Tensor) -> None:
        super()._bind(flat)
        self._stacked = [view.requires_grad_() for view in self._stacks(self.flat)]
        self._grad_stacks = self._stacks(self._grad)

    def _stacks(self, flat: Tensor) -> list[Tensor]:
        """Return the weights ``[K, out, in]`` and biases ``[K, 1, out]`` of each layer, as views of a flat vector."""
        table = flat.view(len(self._outputs), -1)
        views: list[Tensor] = []
        at = 0
        for rows, columns in self._layers:
            end = at + rows * columns
            views += [table[:, at:end].view(-1, rows, columns), table[:, end : end + rows].view(-1, 1, rows)]
            at = end + rows
        return views

    def __call__(self, x: Tensor, sequences: Sequences | None = None, actions: Tensor | None = None) -> list[Tensor]:
        count, last = len(self._outputs), len(self._layers) - 1
        if count == 1:
            return [self.one(0, x, sequences, actions)]
        hidden = (x if actions is None else torch.cat((x, actions), 1)).expand(count, len(x), -1)
        for layer in range(last + 1):
            weight, bias = self._stacked[2 * layer : 2 * layer + 2]
            hidden = torch.baddbmm(bias, hidden, weight.transpose(1, 2))
            if layer < last:
                hidden = self._activation(hidden)
        return [out if n == self._outputs[0] else out[:, :n] for out, n in zip(hidden.unbind(0), self._outputs, strict=True)]

    def one(self, k: int, x: Tensor, sequences: Sequences | None = None, actions: Tensor | None = None) -> Tensor:
        x = x if actions is None else torch.cat((x, actions), 1)
        leaves, last = self.leaves[k], len(self._layers) - 1
        for layer in range(last + 1):
            x = F.linear(x, leaves[2 * layer], leaves[2 * layer + 1])
            if layer < last:
                x = self._activation(x)
        return x[:, : self._outputs[k]]

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        stacks = self._stacks(self.flat.detach())
        with torch.no_grad():
            for layer, (weights, bias) in enumerate(zip(stacks[::2], stacks[1::2], strict=True)):
                for k, matrix in enumerate(weights):
                    if layer < len(self._layers) - 1:
                        torch.nn.init.orthogonal_(matrix, HIDDEN_GAIN, generator=generator)
                    else:
                        torch.nn.init.orthogonal_(matrix[: self._outputs[k]], output_gains[k], generator=generator)
                bias.zero_()

    def initialise_uniform(self, generator: torch.Generator) -> None:
        stacks = self._stacks(self.flat)
        with torch.no_grad():
            for layer, (_, inputs) in enumerate(self._layers):
                for view in stacks[2 * layer : 2 * layer + 2]:
                    view.uniform_(-1.0 / math.sqrt(inputs), 1.0 / math.sqrt(inputs), generator=generator)

    def gradient(self, loss: Tensor, only: int | None = None) -> Tensor:
        if only is not None or len(self._outputs) == 1:
            return super().gradient(loss, only)
        extras = self.extras
        leaves, views = list(self._stacked), list(self._grad_stacks)
        if extras is not None:
            leaves.append(extras)
            views.append(self._grad_views[0][-1])
        return self._written(loss, leaves, views)

    def change_inputs(self, mean: Tensor, scale: Tensor, new_mean: Tensor, new_scale: Tensor) -> Tensor:
        gradient = torch.ones_like(self.flat)
        with torch.no_grad():
            weight, bias = self._stacks(self.flat)[:2]
            self._stacks(gradient)[0].div_(input_change(weight, bias.squeeze(1), mean, scale, new_mean, new_scale))
        return gradient


def input_change(weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, new_mean: Tensor, new_scale: Tensor) -> Tensor:
    """Adapt a layer in place to a new standardisation of its inputs, so that its outputs stay the same.

    The inputs were ``(x - mean) * scale``, and become ``(x - new_mean) * new_scale``. If the scale of a feature changes by more
    than `MAX_RESCALE`, its weights change only by that factor: the layer then computes the same at the new mean.

    Args:
        weight: The weights, ``[..., out, features]``.
        bias: The biases, ``[..., out]``.
        mean: The old mean of each feature, ``[features]``.
        scale: The old factor of each feature.
        new_mean: The new mean of each feature.
        new_scale: The new factor of each feature.

    Returns:
        The factor by which the weights of each feature have changed, ``[features]``.
    """
    factor = (scale / new_scale).clamp(1 / MAX_RESCALE, MAX_RESCALE)
    bias.add_(weight @ (scale * (new_mean - mean)))
    weight.mul_(factor)
    return factor
