"""Networks whose parameters are one flat vector, and the Adam optimizer for such a vector.

Checkpoints use the vector, too. With small networks, most of the time of a step goes into kernel launches. An optimizer step over
one vector takes a few of them, however many layers there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from math import prod
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.layers.activation import torch_activation
from rl4sys_zmq.layers.layer import HIDDEN_GAIN, Sequences, Shape

MAX_RESCALE = 2.0
"""Largest factor by which `input_change` changes a weight."""


class FlatParameters:
    """The parameters of one or more networks in one flat vector, one network after another.

    Networks compute with `leaves`. Optimizers and checkpoints use `flat`.

    Attributes:
        flat: All parameters, float32 ``[size]``. It changes only in place, except by `place`.
        parts: The slice of `flat` for each network.
        leaves: The parameters of each network, as views into `flat` that require gradients.
    """

    def __init__(self, shapes: Sequence[Sequence[Shape]], extras: int = 0) -> None:
        """Create parameters of these shapes for each network, all zero, and `extras` more for network 0."""
        self._shapes = [list(network) for network in shapes]
        self._has_extras = bool(extras)
        if extras:
            self._shapes[0].append((extras,))
        ends = list(accumulate((sum(map(prod, network)) for network in self._shapes), initial=0))
        self.parts = tuple([slice(start, end) for start, end in pairwise(ends)])
        self._bind(torch.zeros(ends[-1], dtype=torch.float32, device="cpu"))

    @property
    def extras(self) -> Tensor | None:
        """The extra parameters of network 0, such as logarithms of deviations, as a view ``[n]``; None if there are none."""
        return self.leaves[0][-1] if self._has_extras else None

    def place(self, device: torch.device) -> None:
        """Move all parameters to another device. `flat` and `leaves` are then new tensors."""
        self._bind(self.flat.to(device))

    def gradient(self, loss: Tensor, only: int | None = None) -> Tensor:
        """Return the gradient of a scalar loss for all parameters, or those of network `only`, float32 ``[size]``.

        The gradient is zero for parameters on which the loss does not depend. The next call overwrites the returned tensor.
        """
        if only is None:
            leaves, views = self._together
        else:
            leaves, views = self.leaves[only], self._grad_views[only]
            self._grad.zero_()
        grads = cast(tuple[Tensor | None, ...], torch.autograd.grad(loss, leaves, allow_unused=True))
        for view, grad in zip(views, grads, strict=True):
            if grad is None:
                view.zero_()
            else:
                view.copy_(grad)
        return self._grad

    def views(self, flat: Tensor) -> list[list[Tensor]]:
        """Return the parameters of each network as views into a vector of the same size as `flat`."""
        return [
            [view.view(shape) for view, shape in zip(flat[part].split(list(map(prod, network))), network, strict=True)]
            for part, network in zip(self.parts, self._shapes, strict=True)
        ]

    def _bind(self, flat: Tensor) -> None:
        """Use `flat` as the vector of all parameters, and create the views into it and into a gradient of the same size."""
        self.flat = flat
        self.leaves = [[view.requires_grad_() for view in network] for network in self.views(flat)]
        self._grad = torch.zeros_like(flat)
        self._grad_views = self.views(self._grad)
        leaves = [view.requires_grad_() for view in self._joint_views(flat, self.leaves)]
        self._together = leaves, self._joint_views(self._grad, self._grad_views)

    def _joint_views(self, flat: Tensor, views: list[list[Tensor]]) -> list[Tensor]:
        """Return views into `flat` as the computation of all networks needs them. `views` has those of each network."""
        return list(chain.from_iterable(views))


class MLPGroup(FlatParameters):
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
        self._layers = [(rows, columns) for columns, rows in pairwise((features, *hidden_sizes, outputs[0]))]
        first: list[Shape] = [shape for rows, columns in self._layers for shape in ((rows, columns), (rows,))]
        other = [*first, *([(extras,)] if extras else [])]
        super().__init__([first, *[other] * (len(outputs) - 1)], extras)

    def _joint_views(self, flat: Tensor, views: list[list[Tensor]]) -> list[Tensor]:
        if len(self._outputs) == 1:
            return super()._joint_views(flat, views)
        return [*self._stacks(flat), *views[0][2 * len(self._layers) :]]  # the last ones are the extra parameters

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
            weight, bias = self._together[0][2 * layer : 2 * layer + 2]
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


class FlatAdam:
    """The Adam optimizer (Kingma & Ba 2015, algorithm 1) for parameters in one flat vector, divided into parts.

    With `rms_prop`, the optimizer is RMSProp (Tieleman & Hinton 2012), as in torch: with a first decay rate of 0, and without the
    bias correction.

    A step takes about five kernel launches, however many layers there are. Each part (such as one network) has a separate step
    count for Adam's bias correction, so one network can take fewer steps than another.

    Attributes:
        steps: The number of steps that each part has taken.
    """

    def __init__(self, flat: Tensor, parts: Sequence[slice] | None = None, *, eps: float = 1e-5, rms_prop: bool = False) -> None:
        """Create the optimizer of parameters, float32 ``[size]``, which `step` changes in place.

        The `parts` are consecutive slices that together cover `flat`; None stands for a single part. Without the bias
        correction, early steps are longer, because both moments start at 0.
        """
        self._flat = flat
        self._parts = tuple(parts) if parts is not None else (slice(None),)
        self._eps = eps
        self._betas = (0.0, 0.99) if rms_prop else (0.9, 0.999)
        self._bias_correction = not rms_prop
        self._mean = torch.zeros_like(flat)
        self._square = torch.zeros_like(flat)
        self.steps = [0] * len(self._parts)

    def step(self, grad: Tensor, rates: Sequence[float | None], *, max_norm: float | None = None) -> None:
        """Take one step against the gradient, float32 ``[size]``, with a learning rate for each part.

        A part whose rate is None does not change, nor do its moments and its step count. If the Euclidean norm of the whole
        gradient is above `max_norm`, the gradient is first scaled to it, in place.
        """
        if max_norm is not None:
            limit_norm(grad, max_norm)
        self.steps = [taken + (rate is not None) for taken, rate in zip(self.steps, rates, strict=True)]
        due = list(zip(self._parts, rates, self.steps, strict=True))
        if all(other[1:] == due[0][1:] for other in due[1:]):
            due = [(slice(None), *due[0][1:])]  # the usual case: all parts in the same kernels
        beta1, beta2 = self._betas
        for part, rate, taken in due:
            if rate is None:
                continue
            correction1, correction2 = (1.0 - beta1**taken, 1.0 - beta2**taken) if self._bias_correction else (1.0, 1.0)
            g, mean, square = grad[part], self._mean[part], self._square[part]
            mean.lerp_(g, 1.0 - beta1)
            square.mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
            denominator = square.sqrt().div_(math.sqrt(correction2)).add_(self._eps)
            self._flat[part].addcdiv_(mean, denominator, value=-rate / correction1)

    def place(self, flat: Tensor) -> None:
        """Continue with the parameters `flat`, which have moved to another device. The moments move there too."""
        self._flat = flat
        self._mean, self._square = self._mean.to(flat.device), self._square.to(flat.device)

    def rescale(self, factor: Tensor) -> None:
        """Change Adam's moments as if all earlier gradients had been larger by a factor, float32 ``[size]``.

        Call this when the scale of the gradients changes, for example after `input_change`.
        """
        self._mean.mul_(factor)
        self._square.mul_(factor).mul_(factor)

    def moments(self) -> list[NDArray[Any]]:
        """Return Adam's first and second moments, float32 ``[size]`` each: views on the CPU, copies from a GPU."""
        return [self._mean.cpu().numpy(), self._square.cpu().numpy()]

    def state(self) -> dict[str, Any]:
        """Return copies of the moments, and the number of steps of each part."""
        return {"mean": self._mean.clone(), "square": self._square.clone(), "steps": np.array(self.steps)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` has returned.

        Raises:
            ConfigError: If the state comes from an optimizer with another number of parts.
        """
        steps = [int(taken) for taken in np.atleast_1d(state["steps"])]
        if len(steps) != len(self._parts):
            raise ConfigError(f"the optimizer's state has {len(steps)} parts; this network has {len(self._parts)}")
        self._mean.copy_(torch.as_tensor(state["mean"], device="cpu"))
        self._square.copy_(torch.as_tensor(state["square"], device="cpu"))
        self.steps = steps


def limit_norm(grad: Tensor, max_norm: float) -> None:
    """Scale a gradient in place so that its Euclidean norm is at most `max_norm`."""
    grad.mul_((max_norm / (torch.linalg.vector_norm(grad) + 1e-6)).clamp_(max=1.0))
