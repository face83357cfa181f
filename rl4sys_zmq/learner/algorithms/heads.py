"""Action distributions in torch that match the actor's numpy policies: log-probabilities and entropies."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Categorical", "DiagonalGaussian", "Distribution"]

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
