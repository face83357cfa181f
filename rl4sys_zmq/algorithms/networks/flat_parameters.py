"""The parameters of several networks in one flat vector, with views for each tensor and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from math import prod
from typing import cast

import torch
from torch import Tensor

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
