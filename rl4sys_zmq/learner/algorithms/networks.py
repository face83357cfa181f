"""Networks in torch: perceptrons over one flat parameter vector, and action distributions that match the numpy policies.

The optimizer, the digest, the snapshot and the checkpoint all use this one vector. An optimizer step over it takes a few kernel
launches, however many layers there are. With small networks the launches are the cost of a step.
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

from rl4sys_zmq.policies.mlp import OBS_CLIP, mlp_document
from rl4sys_zmq.values import BoxSpace, PolicySpec, Space, feature_size
from rl4sys_zmq.values.observations import flat_space

__all__ = [
    "Categorical",
    "DiagonalGaussian",
    "Distribution",
    "FlatAdam",
    "MLPStack",
    "activation_function",
    "encode_observations",
    "policy_outputs",
    "standardise",
]


FORBIDDEN_LOGIT = -1e9
"""The logit of a forbidden action.

Its probability is exactly zero in float32, and ``p log p`` is finite, unlike with -inf.
"""


class Distribution(Protocol):
    """``B`` distributions over actions."""

    def log_probs(self, actions: Tensor) -> Tensor:
        """Return the logarithm of the probability (density) of each action, ``[B]``."""

    def mean_entropy(self) -> Tensor:
        """Return the mean entropy in nats, a scalar."""


class Categorical:
    """A distribution over ``n`` actions, from logits ``[B, n]``; `forbidden` bool ``[B, n]`` removes actions."""

    def __init__(self, logits: Tensor, forbidden: Tensor | None = None) -> None:
        if forbidden is not None:
            logits = logits.masked_fill(forbidden, FORBIDDEN_LOGIT)
        self._log_probs = torch.log_softmax(logits, dim=1)

    def log_probs(self, actions: Tensor) -> Tensor:
        """Return the log-probabilities of actions int64 ``[B]``, counted from 0."""
        return self._log_probs.gather(1, actions.unsqueeze(1)).squeeze(1)

    def mean_entropy(self) -> Tensor:
        """Return ``-Σ p log p``, averaged."""
        return (self._log_probs.exp() * self._log_probs).sum() * (-1.0 / len(self._log_probs))


class DiagonalGaussian:
    """A distribution over real vectors, from means ``[B, n]`` and one shared `log_std` ``[n]``."""

    def __init__(self, means: Tensor, log_std: Tensor) -> None:
        self._means = means
        self._log_std = log_std
        self._constant = 0.5 * means.shape[1] * math.log(2.0 * math.pi)

    def log_probs(self, actions: Tensor) -> Tensor:
        """Return the log-densities of raw actions float32 ``[B, n]``, before clipping or squashing."""
        z = (actions - self._means) * torch.exp(-self._log_std)
        return z.square().sum(dim=1) * -0.5 - (self._log_std.sum() + self._constant)

    def mean_entropy(self) -> Tensor:
        """Return ``Σ log σ + n/2 (1 + log 2π)``, which is equal for all."""
        return self._log_std.sum() + (self._constant + 0.5 * self._means.shape[1])


HIDDEN_GAIN = math.sqrt(2.0)

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
    """Return the torch function of one of `rl4sys_zmq.values.ACTIVATIONS` (exact gelu, leaky_relu with slope 0.01)."""
    return _ACTIVATIONS[name]


class MLPStack:
    """``K`` perceptrons with the same input and hidden sizes, run as batched products, in one flat vector.

    The vector holds the networks one after another. Each has the layout of a `PolicySpec` manifest: weight ``[out, in]`` and
    bias of each layer, then `extras` further numbers (a log_std, for instance). So the part of network 0 is the snapshot of its
    policy, and a layer of all networks is one strided ``[K, out, in]`` view. All parts have one size: a network with fewer
    outputs than network 0 has rows that are never read and never change.

    Attributes:
        flat: Float32 ``[size]``, all parameters. Write to it only in place.
        leaves: Views into `flat` that require gradients, the inputs of autograd.
        extras: The last of the `leaves`, the further numbers of network 0; None if there are none.
        parts: The slice of `flat` that belongs to each network.
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
        self.flat = torch.zeros(len(outputs) * size)
        self._views = self._views_of(self.flat)
        self._grad = torch.zeros_like(self.flat)
        self._grad_views = self._views_of(self._grad)
        self.leaves = [view.requires_grad_() for view in self._views]
        self.extras = self.leaves[-1] if extras else None

    def __call__(self, x: Tensor) -> list[Tensor]:
        """Return each network's outputs ``[B, outputs[k]]`` for one shared input ``[B, features]``."""
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

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        """Set orthogonal weights and zero biases; leave the extras as they are.

        The gain is √2 in hidden layers and `output_gains` in the output layers.
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

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a scalar loss, with the layout of `flat`. The next call overwrites it.

        It is zero for parameters that the loss does not depend on.
        """
        grads = cast(tuple[Tensor | None, ...], torch.autograd.grad(loss, self.leaves, allow_unused=True))
        for view, grad in zip(self._grad_views, grads, strict=True):
            if grad is None:
                view.zero_()
            else:
                view.copy_(grad)
        return self._grad

    def _views_of(self, flat: Tensor) -> list[Tensor]:
        """Return views of each layer's weight and bias, then of the extras.

        Their shapes are ``[out, in]`` and ``[out]`` for one network, ``[K, out, in]`` and ``[K, 1, out]`` for several.
        """
        count = len(self._outputs)
        table = flat.view(count, -1)
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
        if self._extras:
            views.append(table[0, at:])
        return views


class FlatAdam:
    """Adam (Kingma & Ba 2015, algorithm 1) on one flat vector: five kernels, however many layers there are.

    Attributes:
        steps: Number of steps taken.
    """

    def __init__(self, flat: Tensor, *, eps: float = 1e-5, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self._flat = flat
        self._eps = eps
        self._betas = betas
        self._mean = torch.zeros_like(flat)
        self._square = torch.zeros_like(flat)
        self.steps = 0

    def step(self, grad: Tensor, rates: Sequence[tuple[slice, float]], *, max_norm: float | None = None) -> None:
        """Take one step against `grad` ``[size]``, after clipping its global norm to `max_norm` in place.

        Args:
            grad: The gradient, flat.
            rates: The learning rate of each part to change. Other parts and their moments stay unchanged.
            max_norm: Largest Euclidean norm of `grad`; None for no limit.
        """
        if max_norm is not None:
            grad.mul_((max_norm / (torch.linalg.vector_norm(grad) + 1e-6)).clamp_(max=1.0))
        self.steps += 1
        beta1, beta2 = self._betas
        correction1, correction2 = 1.0 - beta1**self.steps, 1.0 - beta2**self.steps
        for part, rate in rates:
            g, mean, square = grad[part], self._mean[part], self._square[part]
            mean.lerp_(g, 1.0 - beta1)
            square.mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
            denominator = square.sqrt().div_(math.sqrt(correction2)).add_(self._eps)
            self._flat[part].addcdiv_(mean, denominator, value=-rate / correction1)

    def moments(self) -> list[NDArray[Any]]:
        """Return views of the moments."""
        return [self._mean.numpy(), self._square.numpy()]

    def state(self) -> dict[str, Any]:
        """Return copies of the moments, and the number of steps."""
        return {"mean": self._mean.clone(), "square": self._square.clone(), "steps": self.steps}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a `state`."""
        self._mean.copy_(torch.as_tensor(state["mean"]))
        self._square.copy_(torch.as_tensor(state["square"]))
        self.steps = int(state["steps"])


def encode_observations(space: Space, observations: NDArray[Any]) -> Tensor:
    """Return observations ``[N, *obs]`` as float32 features ``[N, feature_size(space)]``.

    Discrete observations become one-hot, others are flattened. Contiguous, writable float32 observations are not copied.
    """
    if isinstance(space, BoxSpace):
        flat = np.ascontiguousarray(observations, dtype=np.float32).reshape(len(observations), space.size)
        # A view of bytes from the wire is read-only. Torch has no read-only tensors and would warn, so copy it.
        return torch.from_numpy(flat if flat.flags.writeable else flat.copy())
    features = torch.zeros(len(observations), feature_size(space))
    index = torch.from_numpy(np.asarray(observations, dtype=np.int64).reshape(-1, 1) - space.start)
    return features.scatter_(1, index, 1.0)


def standardise(features: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Return ``(features - mean) * scale``, clipped to ±`OBS_CLIP`, as the first layer of an actor does."""
    return ((features - mean) * scale).clamp_(-OBS_CLIP, OBS_CLIP)


def policy_outputs(spec: PolicySpec, tensors: Mapping[str, NDArray[np.float32]], observations: NDArray[Any]) -> Tensor:
    """Return an actor's output before the head, ``[N, spec.outputs]``, from named tensors. The reference for both sides."""
    x = encode_observations(flat_space(spec.observation_space, "an mlp policy"), observations)
    document = mlp_document(spec)
    if document.normalise_observations:
        x = standardise(x, torch.tensor(tensors["obs_mean"]), torch.tensor(tensors["obs_scale"]))
    activation = activation_function(document.activation)
    for layer in range(len(document.hidden_sizes) + 1):
        x = F.linear(x, torch.tensor(tensors[f"layers.{layer}.weight"]), torch.tensor(tensors[f"layers.{layer}.bias"]))
        if layer < len(document.hidden_sizes):
            x = activation(x)
    return x
