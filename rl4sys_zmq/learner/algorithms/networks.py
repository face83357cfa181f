"""Multi-layer perceptrons whose parameters are views into one flat vector, and the torch twin of a `PolicySpec`.

One flat vector serves the optimizer, the digest, the snapshot and the checkpoint alike, and one optimizer step over it
costs a handful of kernel launches however many layers there are. With small networks that is what a step costs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.values import BoxSpace, PolicySpec, Space, feature_size

__all__ = ["FlatAdam", "MLPStack", "activation_function", "encode_observations", "policy_outputs", "standardise"]

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
    """The torch function behind one of `rl4sys_zmq.values.ACTIVATIONS` (gelu in its exact form, leaky_relu with 0.01)."""
    return _ACTIVATIONS[name]


class MLPStack:
    """``K`` perceptrons with the same input and hidden sizes, run as batched products, in one flat vector.

    The vector holds network after network; each is laid out as a `PolicySpec` manifest is: weight ``[out, in]`` and
    bias of each layer, then `extras` further numbers (a log_std, for instance). So the part of network 0 is, as it
    stands, the snapshot of its policy. Hidden layers of all networks are one strided ``[K, out, in]`` view each.

    Attributes:
        flat: float32 ``[size]``, all parameters. Write to it in place only.
        leaves: views into `flat` that require gradients: what autograd differentiates by.
        extras: the last of the `leaves`, network 0's further numbers; None when there are none.
        parts: the slice of `flat` that belongs to each network.
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
        self._activation = activation_function(activation)
        self._count = len(outputs)
        widths = [features, *hidden_sizes]
        shapes = list(zip(widths[1:], widths[:-1], strict=True))
        hidden = sum(rows * columns + rows for rows, columns in shapes)
        sizes = [hidden + out * widths[-1] + out for out in outputs]
        sizes[0] += extras
        if len(set(sizes[:-1])) > 1:
            raise ValueError(f"only the last network may differ in size, or there is no constant stride: {sizes}")
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + size)
        self.parts = tuple(slice(start, stop) for start, stop in itertools.pairwise(starts))
        self.flat = torch.zeros(starts[-1])
        self._views = self._make_views(self.flat, shapes, outputs, widths[-1], extras)
        self._grad = torch.zeros(starts[-1])
        self._grad_views = self._make_views(self._grad, shapes, outputs, widths[-1], extras)
        self.leaves = [view.requires_grad_() for view in self._views]
        self.extras = self.leaves[-1] if extras else None
        self._depth = len(shapes)

    def __call__(self, x: Tensor) -> list[Tensor]:
        """Each network's outputs ``[B, outputs[k]]`` for one shared input ``[B, features]``."""
        leaves = self.leaves
        hidden = x if self._count == 1 else x.expand(self._count, *x.shape)
        for layer in range(self._depth):
            weight, bias = leaves[2 * layer], leaves[2 * layer + 1]
            if self._count == 1:
                hidden = self._activation(F.linear(hidden, weight, bias))
            else:
                hidden = self._activation(torch.baddbmm(bias, hidden, weight.transpose(1, 2)))
        out = leaves[2 * self._depth :]
        per_network = [hidden] if self._count == 1 else hidden.unbind(0)
        return [F.linear(h, out[2 * k], out[2 * k + 1]) for k, h in enumerate(per_network)]

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        """Orthogonal weights (gain √2 in hidden layers, as given in each output layer) and zero biases; extras stay."""
        with torch.no_grad():
            for layer in range(self._depth):
                weight, bias = self._views[2 * layer], self._views[2 * layer + 1]
                for matrix in [weight] if self._count == 1 else weight.unbind(0):
                    torch.nn.init.orthogonal_(matrix, HIDDEN_GAIN, generator=generator)
                bias.zero_()
            for k, gain in enumerate(output_gains):
                weight, bias = self._views[2 * (self._depth + k)], self._views[2 * (self._depth + k) + 1]
                torch.nn.init.orthogonal_(weight, gain, generator=generator)
                bias.zero_()

    def gradient(self, loss: Tensor) -> Tensor:
        """The gradient of a scalar loss, flat like `flat`; zero where the loss does not depend. Overwritten by the next call."""
        grads = cast(tuple[Tensor | None, ...], torch.autograd.grad(loss, self.leaves, allow_unused=True))
        for view, grad in zip(self._grad_views, grads, strict=True):
            if grad is None:
                view.zero_()
            else:
                view.copy_(grad)
        return self._grad

    def _make_views(
        self, flat: Tensor, shapes: Sequence[tuple[int, int]], outputs: Sequence[int], width: int, extras: int
    ) -> list[Tensor]:
        count = self._count
        stride = self.parts[0].stop  # every hidden layer of network 1 lies this far behind network 0's
        views: list[Tensor] = []
        at = 0
        for rows, columns in shapes:
            end = at + rows * columns
            if count == 1:
                views += [flat[at:end].view(rows, columns), flat[end : end + rows]]
            else:
                views.append(flat.as_strided((count, rows, columns), (stride, columns, 1), at))
                views.append(flat.as_strided((count, 1, rows), (stride, rows, 1), end))
            at = end + rows
        for part, out in zip(self.parts, outputs, strict=True):
            start = part.start + at
            end = start + out * width
            views += [flat[start:end].view(out, width), flat[end : end + out]]
        if extras:
            views.append(flat[self.parts[0].stop - extras : self.parts[0].stop])
        return views


class FlatAdam:
    """Adam (Kingma & Ba 2015, algorithm 1) on one flat vector, written out: five kernels however many layers there are.

    Attributes:
        steps: how many steps were taken.
    """

    def __init__(self, flat: Tensor, *, eps: float = 1e-5, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self._flat = flat
        self._eps = eps
        self._betas = betas
        self._mean = torch.zeros_like(flat)
        self._square = torch.zeros_like(flat)
        self.steps = 0

    def step(self, grad: Tensor, rates: Sequence[tuple[slice, float]], *, max_norm: float | None = None) -> None:
        """One step against `grad` ``[size]``, whose global norm is first clipped to `max_norm` (in place).

        Args:
            grad: the gradient, flat.
            rates: the learning rate of each part that is to move; parts that are not named stay as they are, their
                moments too.
            max_norm: the greatest Euclidean norm of `grad`; None for any.
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

    def state(self) -> dict[str, Any]:
        """Copies of the moments, and the number of steps."""
        return {"mean": self._mean.clone(), "square": self._square.clone(), "steps": self.steps}

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes back to a `state`."""
        self._mean.copy_(torch.as_tensor(state["mean"]))
        self._square.copy_(torch.as_tensor(state["square"]))
        self.steps = int(state["steps"])


def encode_observations(space: Space, observations: NDArray[Any]) -> Tensor:
    """Observations ``[N, *obs]`` as float32 features ``[N, feature_size(space)]``: flattened, or one-hot if discrete.

    Nothing is copied when they are float32 and contiguous already.
    """
    if isinstance(space, BoxSpace):
        flat = np.ascontiguousarray(observations, dtype=np.float32).reshape(len(observations), space.size)
        # A view of bytes from the wire is read-only; torch has no such thing and would warn, and nobody writes here.
        return torch.from_numpy(flat if flat.flags.writeable else flat.copy())
    features = torch.zeros(len(observations), feature_size(space))
    index = torch.from_numpy(np.asarray(observations, dtype=np.int64).reshape(-1, 1) - space.start)
    return features.scatter_(1, index, 1.0)


def standardise(features: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """``(features - mean) * scale``, clipped to ±`PolicySpec.OBS_CLIP`: the first thing that an actor does."""
    return ((features - mean) * scale).clamp_(-PolicySpec.OBS_CLIP, PolicySpec.OBS_CLIP)


def policy_outputs(spec: PolicySpec, tensors: Mapping[str, NDArray[np.float32]], observations: NDArray[Any]) -> Tensor:
    """What an actor computes before the head, ``[N, spec.outputs]``, from named tensors: the reference for both sides."""
    x = encode_observations(spec.observation_space, observations)
    if spec.normalise_observations:
        x = standardise(x, torch.tensor(tensors["obs_mean"]), torch.tensor(tensors["obs_scale"]))
    activation = activation_function(spec.activation)
    for layer in range(len(spec.hidden_sizes) + 1):
        x = F.linear(x, torch.tensor(tensors[f"layers.{layer}.weight"]), torch.tensor(tensors[f"layers.{layer}.bias"]))
        if layer < len(spec.hidden_sizes):
            x = activation(x)
    return x
