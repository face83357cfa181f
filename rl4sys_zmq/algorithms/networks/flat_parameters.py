"""The parameters of several networks in one flat vector, their gradient, and the Adam optimizer for such a vector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from math import prod
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.errors import ConfigError

Shape = tuple[int, ...]


class FlatParameters:
    """The parameters of one or more networks in one flat vector, one network after another.

    Networks compute with `leaves`. Optimizers and checkpoints use `flat`.

    Attributes:
        flat: All parameters, float32 ``[size]``. It changes only in place, except by `place`.
        parts: The slice of `flat` for each network.
        leaves: The parameters of each network, as views into `flat` that require gradients.
    """

    def __init__(self, shapes: Sequence[Sequence[Shape]], extras: int = 0) -> None:
        """Create parameters of these shapes for each network, all zero. The extra ones follow those of network 0."""
        self._shapes = [list(network) for network in shapes]
        self._has_extras = bool(extras)
        if extras:
            self._shapes[0].append((extras,))
        ends = list(accumulate((sum(map(prod, network)) for network in self._shapes), initial=0))
        self.parts = tuple([slice(start, end) for start, end in pairwise(ends)])
        self._bind(torch.zeros(ends[-1], dtype=torch.float32, device="cpu"))

    @property
    def extras(self) -> Tensor | None:
        """The extra parameters of network 0, such as a log_std, as a view ``[n]``; None if there are none."""
        return self.leaves[0][-1] if self._has_extras else None

    def place(self, device: torch.device) -> None:
        """Move all parameters to another device. `flat` and `leaves` are then new tensors."""
        self._bind(self.flat.to(device))

    def gradient(self, loss: Tensor, only: int | None = None) -> Tensor:
        """Return the gradient of a scalar loss, as `FlatNetwork.gradient` does. The next call overwrites the returned tensor."""
        chosen = range(len(self.parts)) if only is None else (only,)
        if only is not None:
            self._grad.zero_()
        leaves = list(chain.from_iterable(self.leaves[k] for k in chosen))
        return self._written(loss, leaves, list(chain.from_iterable(self._grad_views[k] for k in chosen)))

    def _written(self, loss: Tensor, leaves: list[Tensor], views: list[Tensor]) -> Tensor:
        """Write the gradient of a loss with respect to `leaves` to `views` of the gradient vector, and return that vector."""
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


class FlatAdam:
    """The Adam optimizer (Kingma & Ba 2015, algorithm 1) for parameters in one flat vector, divided into parts.

    With a first decay rate of 0 and without the bias correction, the optimizer is RMSProp (Tieleman & Hinton 2012), as in
    torch.

    A step takes about five kernel launches, however many layers there are. Each part (such as one network) has a separate step
    count for Adam's bias correction, so one network can take fewer steps than another.

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
        """Create the optimizer of parameters, float32 ``[size]``, which `step` changes in place.

        The `parts` are consecutive slices that together cover `flat`; None stands for a single part. Without the bias
        correction, early steps are longer, because both moments start at 0.
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
