"""Multilayer perceptrons, action distributions and the Adam optimizer in torch.

All parameters of the networks are in one flat vector. The optimizer and the checkpoints use this vector. An optimizer step over
one vector takes a few kernel launches, however many layers there are. With small networks, most of the time of a step goes into
launches.

The distributions equal those of the numpy policies that run in actors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.mlp import OBS_CLIP
from rl4sys_zmq.values import ObservationSpace
from rl4sys_zmq.values.features import feature_layout
from rl4sys_zmq.values.trees import Tree

FORBIDDEN_LOGIT = -1e9
"""The logit of a forbidden action.

With this value, the probability of the action is exactly zero in float32, and ``p log p`` is finite. With -inf, it would be NaN.
"""


class Distribution(Protocol):
    """The interface of a batch of ``B`` probability distributions over actions, one for each observation."""

    def log_probs(self, actions: Tensor) -> Tensor:
        """Return the logarithm of the probability (or probability density) of one action per distribution, ``[B]``."""

    def mean_entropy(self) -> Tensor:
        """Return the mean entropy of the ``B`` distributions in nats, as a scalar tensor."""

    def mode(self) -> Tensor:
        """Return the most probable action of each distribution, in the form that `log_probs` takes."""


class Categorical:
    """A batch of ``B`` distributions over ``n`` discrete actions. It implements `Distribution`.

    It is created from logits ``[B, n]`` and, optionally, `forbidden`: bool ``[B, n]``, True for each action to exclude.
    """

    def __init__(self, logits: Tensor, forbidden: Tensor | None = None) -> None:
        if forbidden is not None:
            logits = logits.masked_fill(forbidden, FORBIDDEN_LOGIT)
        self._log_probs = torch.log_softmax(logits, dim=1)

    def log_probs(self, actions: Tensor) -> Tensor:
        """Return the log-probability of one action per distribution, ``[B]``. The actions are int64 ``[B]``, from 0."""
        return self._log_probs.gather(1, actions.unsqueeze(1)).squeeze(1)

    def mean_entropy(self) -> Tensor:
        """Return the mean of ``-Σ p log p`` over the ``B`` distributions, as a scalar tensor."""
        return (self._log_probs.exp() * self._log_probs).sum() * (-1.0 / len(self._log_probs))

    def mode(self) -> Tensor:
        """Return the most probable actions, int64 ``[B]`` from 0."""
        return self._log_probs.argmax(dim=1)


class DiagonalGaussian:
    """A batch of ``B`` normal distributions over vectors of ``n`` independent numbers. It implements `Distribution`.

    It is created from means ``[B, n]`` and the logarithms of the standard deviations, `log_std` ``[n]``, shared by all ``B``.
    """

    def __init__(self, means: Tensor, log_std: Tensor) -> None:
        self._means = means
        self._log_std = log_std
        self._constant = 0.5 * means.shape[1] * math.log(2.0 * math.pi)

    def log_probs(self, actions: Tensor) -> Tensor:
        """Return the log-density of one action per distribution, ``[B]``.

        The actions are float32 ``[B, n]``, as sampled: before they are clipped or squashed into the bounds of the action space.
        """
        z = (actions - self._means) * torch.exp(-self._log_std)
        return z.square().sum(dim=1) * -0.5 - (self._log_std.sum() + self._constant)

    def mean_entropy(self) -> Tensor:
        """Return ``Σ log σ + n/2 (1 + log 2π)``, as a scalar tensor. All ``B`` distributions have this entropy."""
        return self._log_std.sum() + (self._constant + 0.5 * self._means.shape[1])

    def mode(self) -> Tensor:
        """Return the means, ``[B, n]``: the most probable actions."""
        return self._means


HIDDEN_GAIN = math.sqrt(2.0)
MAX_RESCALE = 2.0
"""Largest factor by which `MLPStack.change_inputs` changes a weight."""

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": F.elu,
    "silu": F.silu,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
    "identity": lambda x: x,
}


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """Return the torch function for a name in `rl4sys_zmq.values.ACTIVATIONS`.

    ``gelu`` is the exact form; ``leaky_relu`` has a slope of 0.01.
    """
    return _ACTIVATIONS[name]


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
        self._activation = activation_function(activation)
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

    def __call__(self, x: Tensor) -> list[Tensor]:
        """Run all networks on one input ``[B, features]``. Return a list of the outputs of each network, ``[B, outputs[k]]``."""
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

    def one(self, k: int, x: Tensor) -> Tensor:
        """Run network `k` by itself on an input ``[B, features]``, and return its outputs, ``[B, outputs[k]]``."""
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


class FlatAdam:
    """The Adam optimizer (Kingma & Ba 2015, algorithm 1) for parameters in one flat vector, divided into parts.

    With a first decay rate of 0 and without the bias correction it is RMSProp (Tieleman & Hinton 2012), as in torch.

    A step takes about five kernel launches, however many layers there are. Each part (such as one network) has its own step
    count for Adam's bias correction, as if it had its own optimizer. So one network can take fewer steps than another.

    Attributes:
        steps: The number of steps that each part has taken.
    """

    def __init__(
        self,
        flat: Tensor,
        parts: Sequence[slice] | None = None,
        *,
        eps: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        bias_correction: bool = True,
    ) -> None:
        """Create the optimizer.

        Args:
            flat: The parameters, float32 ``[size]``. `step` changes them in place.
            parts: Consecutive slices that together cover `flat`; None for a single part.
            eps: Adam's epsilon, which is added to the root of the second moment.
            betas: The decay rates of the first and the second moment.
            bias_correction: False leaves out Adam's bias correction, so early steps are longer: both moments start at 0.
        """
        self._flat = flat
        self._parts = tuple(parts) if parts is not None else (slice(None),)
        self._eps = eps
        self._betas = betas
        self._bias_correction = bias_correction
        self._mean = torch.zeros_like(flat)
        self._square = torch.zeros_like(flat)
        self.steps = [0] * len(self._parts)

    def step(self, grad: Tensor, rates: Sequence[float | None], *, max_norm: float | None = None) -> None:
        """Take one step against the gradient, after limiting the norm of the gradient.

        Args:
            grad: The gradient, float32 ``[size]``. It is scaled in place if its norm is too large.
            rates: The learning rate of each part. With None, the part, its moments and its step count do not change.
            max_norm: Largest Euclidean norm of the whole gradient; None for no limit.
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
        """Continue with parameters that have moved to another device, `flat`. The moments move there too."""
        self._flat = flat
        self._mean, self._square = self._mean.to(flat.device), self._square.to(flat.device)

    def rescale(self, factor: Tensor) -> None:
        """Change Adam's moments as if all earlier gradients had been larger by a factor, float32 ``[size]``.

        Call this when the scale of the gradients changes, for example after `MLPStack.change_inputs`.
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


def limit_norm(grad: Tensor, max_norm: float) -> None:
    """Scale a gradient in place so that its Euclidean norm is at most `max_norm`."""
    grad.mul_((max_norm / (torch.linalg.vector_norm(grad) + 1e-6)).clamp_(max=1.0))


def encode_observations(space: ObservationSpace, observations: Tree) -> Tensor:
    """Return the features of observations, float32 ``[N, feature_size(space)]``, as the policies in actors compute them.

    Contiguous, writable float32 observations of a Box are not copied.

    Args:
        space: The space of the observations.
        observations: A tree of arrays ``[N, *leaf]``.
    """
    features = feature_layout(space).batch(observations)
    # A view of bytes from the wire is read-only. Torch has no read-only tensors and would warn, so copy it.
    return torch.from_numpy(features if features.flags.writeable else features.copy())


def standardise(features: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Return ``(features - mean) * scale``, clipped to ±`OBS_CLIP`. A policy in an actor does the same before its first layer."""
    return ((features - mean) * scale).clamp_(-OBS_CLIP, OBS_CLIP)
