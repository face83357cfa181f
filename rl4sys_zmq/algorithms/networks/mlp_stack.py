"""Several multilayer perceptrons of equal layers in torch, computed together.

All parameters of the networks are in one flat vector. The optimizer and the checkpoints use this vector. An optimizer step over
one vector takes a few kernel launches, however many layers there are. With small networks, most of the time of a step goes into
launches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from rl4sys_zmq.layers.activation import torch_activation
from rl4sys_zmq.layers.layer import HIDDEN_GAIN, Sequences

MAX_RESCALE = 2.0
"""Largest factor by which `MLPStack.change_inputs` changes a weight."""


class MLPStack:
    """A group of ``K`` multilayer perceptrons (MLPs) with equal input and hidden sizes, and one flat vector of parameters.

    A forward pass computes all networks together, with one batched matrix product per layer, or one network by itself. PPO uses
    two networks: network 0 is the policy, network 1 estimates values.

    The vector contains the networks one after another. The order within a network is that of a policy's weights in
    `PolicySpec`: weight ``[out, in]`` and bias of each layer, then a number of extra parameters, such as a log_std. So the
    slice of network 0 contains the policy's weights, ready to send to actors.

    All slices have equal sizes. So a network with fewer outputs than network 0 has some rows of weights that are never read and
    never change. The same holds for the extra parameters of networks other than network 0.

    Attributes:
        flat: All parameters, float32 ``[size]``. Change this tensor only in place.
        leaves: Views into `flat` that require gradients: weight and bias of each layer, then `extras`.
        extras: The extra parameters of network 0, also the last item of `leaves`; None if there are none.
        parts: The slice of `flat` for each network.
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
        self._shapes = [(rows, columns) for columns, rows in itertools.pairwise((features, *hidden_sizes, outputs[0]))]
        self._extras = extras
        size = sum(rows * columns + rows for rows, columns in self._shapes) + extras
        self.parts = tuple(slice(k * size, (k + 1) * size) for k in range(len(outputs)))
        self._bind(torch.zeros(len(outputs) * size, dtype=torch.float32, device="cpu"))

    def place(self, device: torch.device) -> None:
        """Move all parameters to another device. `flat` and `leaves` are then new tensors."""
        self._bind(self.flat.to(device))

    def _bind(self, flat: Tensor) -> None:
        """Use `flat` as the vector of all parameters, and create the views into it and into a gradient of the same size."""
        count = len(self._outputs)
        self.flat = flat
        self._views = self._views_of(flat)
        self._grad = torch.zeros_like(flat)
        self._grad_views = self._views_of(self._grad)
        self.leaves = [view.requires_grad_() for view in self._views]
        self.extras = self.leaves[-1] if self._extras else None
        self._leaves_of = [[view.requires_grad_() for view in self._views_of(flat, k)] for k in range(count)]
        self._grad_views_of = [self._views_of(self._grad, k) for k in range(count)]
        if self.extras is not None:
            self._leaves_of[0].append(self.extras)
            self._grad_views_of[0].append(self._grad_views[-1])

    def __call__(self, x: Tensor, sequences: Sequences | None = None, actions: Tensor | None = None) -> list[Tensor]:
        """Run all networks on inputs ``[B, features]``. Return a list of the outputs of each network, ``[B, outputs[k]]``.

        Actions ``[B, n]`` are joined to the inputs. Sequences have no effect.
        """
        x = x if actions is None else torch.cat((x, actions), 1)
        count, last = len(self._outputs), len(self._shapes) - 1
        hidden = x if count == 1 else x.expand(count, *x.shape)
        for layer in range(last + 1):
            weight, bias = self.leaves[2 * layer], self.leaves[2 * layer + 1]
            hidden = F.linear(hidden, weight, bias) if count == 1 else torch.baddbmm(bias, hidden, weight.transpose(1, 2))
            if layer < last:
                hidden = self._activation(hidden)
        if count == 1:
            return [hidden]
        return [out if n == self._outputs[0] else out[:, :n] for out, n in zip(hidden.unbind(0), self._outputs, strict=True)]

    def one(self, k: int, x: Tensor, sequences: Sequences | None = None, actions: Tensor | None = None) -> Tensor:
        """Run network `k` by itself with the arguments of a call, and return its outputs, ``[B, outputs[k]]``."""
        x = x if actions is None else torch.cat((x, actions), 1)
        leaves, last = self._leaves_of[k], len(self._shapes) - 1
        for layer in range(last + 1):
            x = F.linear(x, leaves[2 * layer], leaves[2 * layer + 1])
            if layer < last:
                x = self._activation(x)
        return x[:, : self._outputs[k]]

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        """Set random orthogonal weights and zero biases. The extra parameters do not change.

        Args:
            generator: The source of random numbers.
            output_gains: The gain of each network's output layer. The gain of hidden layers is √2.
        """
        with torch.no_grad():
            for layer, (rows, columns) in enumerate(self._shapes):
                weights = self._views[2 * layer].view(len(self._outputs), rows, columns)
                for k, matrix in enumerate(weights):
                    if layer < len(self._shapes) - 1:
                        torch.nn.init.orthogonal_(matrix, HIDDEN_GAIN, generator=generator)
                    else:
                        torch.nn.init.orthogonal_(matrix[: self._outputs[k]], output_gains[k], generator=generator)
                self._views[2 * layer + 1].zero_()

    def initialise_uniform(self, generator: torch.Generator) -> None:
        """Set weights and biases that are uniform within ``1 / √inputs`` of zero. The extra parameters do not change.

        These are the initial values of ``torch.nn.Linear``.
        """
        with torch.no_grad():
            for layer, (_, inputs) in enumerate(self._shapes):
                for view in self._views[2 * layer : 2 * layer + 2]:
                    view.uniform_(-1.0 / math.sqrt(inputs), 1.0 / math.sqrt(inputs), generator=generator)

    def gradient(self, loss: Tensor, only: int | None = None) -> Tensor:
        """Return the gradient of a scalar loss by all parameters, float32 ``[size]``, in the same order as `flat`.

        The gradient is zero for parameters that the loss does not depend on. The next call overwrites the returned tensor.

        Args:
            loss: The loss.
            only: The network whose output, from `one`, the loss was computed from; None for outputs of all networks.
        """
        leaves, views = self.leaves, self._grad_views
        if only is not None:
            leaves, views = self._leaves_of[only], self._grad_views_of[only]
            self._grad.zero_()
        grads = cast(tuple[Tensor | None, ...], torch.autograd.grad(loss, leaves, allow_unused=True))
        for view, grad in zip(views, grads, strict=True):
            if grad is None:
                view.zero_()
            else:
                view.copy_(grad)
        return self._grad

    def change_inputs(self, mean: Tensor, scale: Tensor, new_mean: Tensor, new_scale: Tensor) -> Tensor:
        """Adapt the first layer to a new standardisation of the inputs, so that the outputs of the networks stay the same.

        The inputs were ``(x - mean) * scale``, and become ``(x - new_mean) * new_scale``. If the scale of a feature changes by
        more than `MAX_RESCALE`, its weights change only by that factor: the networks then compute the same at the new mean.

        Args:
            mean: The old mean of each feature, ``[features]``.
            scale: The old factor of each feature.
            new_mean: The new mean of each feature.
            new_scale: The new factor of each feature.

        Returns:
            The factor by which the scale of each parameter's gradient changes, float32 ``[size]``.
        """
        gradient = torch.ones_like(self.flat)
        with torch.no_grad():
            count, (rows, columns) = len(self._outputs), self._shapes[0]
            weight, bias = self._views[0].view(count, rows, columns), self._views[1].view(count, rows)
            factor = input_change(weight, bias, mean, scale, new_mean, new_scale)
            self._views_of(gradient)[0].view(count, rows, columns).div_(factor)
        return gradient

    def _views_of(self, flat: Tensor, only: int | None = None) -> list[Tensor]:
        """Return views into a flat vector: the weight and the bias of each layer, then the extra parameters of network 0.

        The shapes of weight and bias are ``[out, in]`` and ``[out]`` for a single network, and ``[K, out, in]`` and ``[K, 1,
        out]`` for several networks. With `only`, the views are those of one network, without extra parameters.
        """
        table = flat.view(len(self._outputs), -1)
        if only is not None:
            table = table[only : only + 1]
        count = len(table)
        views: list[Tensor] = []
        at = 0
        for rows, columns in self._shapes:
            end = at + rows * columns
            weight, bias = table[:, at:end], table[:, end : end + rows]
            if count == 1:
                views += [weight.view(rows, columns), bias.view(rows)]
            else:
                views += [weight.view(count, rows, columns), bias.view(count, 1, rows)]
            at = end + rows
        if self._extras and only is None:
            views.append(table[0, at:])
        return views


def input_change(weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, new_mean: Tensor, new_scale: Tensor) -> Tensor:
    """Adapt a layer in place to a new standardisation of its inputs, as `MLPStack.change_inputs` describes.

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
