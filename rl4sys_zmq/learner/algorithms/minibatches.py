"""The columns of one on-policy batch, shuffled and divided into equal minibatches for gradient steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["TrainingColumns", "clipped_objective", "equal_sizes", "half_square_error", "ratio_bounds"]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingColumns:
    """The inputs of a gradient step.

    Attributes:
        features: ``[N, F]``, standardised.
        actions: ``[N]`` or ``[N, n]``.
        log_probs: ``[N]``, of the acting policy.
        advantages: ``[N]``.
        low: ``[N]``, the lower bound of the ratio; see `clipped_objective`.
        high: ``[N]``, the upper bound of the ratio.
        values: ``[N]``, as estimated before the update.
        targets: ``[N]``, of the values.
        forbidden: Bool ``[N, n]``, or None.
    """

    features: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    low: Tensor
    high: Tensor
    values: Tensor
    targets: Tensor
    forbidden: Tensor | None

    def minibatches(self, sizes: list[int], generator: torch.Generator) -> Iterator[TrainingColumns]:
        """Yield minibatches of the given sizes, which add up to ``N``, in a new random order."""
        order = torch.randperm(len(self.actions), generator=generator)
        # One gather per column and pass, then slices: cheaper than one gather per column and minibatch.
        features, actions, log_probs, advantages, low, high, values, targets = (
            torch.split_with_sizes(column.index_select(0, order), sizes)
            for column in (
                self.features, self.actions, self.log_probs, self.advantages, self.low, self.high, self.values, self.targets,
            )
        )  # fmt: skip
        forbidden = None if self.forbidden is None else torch.split_with_sizes(self.forbidden.index_select(0, order), sizes)
        for k in range(len(sizes)):
            yield TrainingColumns(
                features[k], actions[k], log_probs[k], advantages[k], low[k], high[k], values[k], targets[k],
                None if forbidden is None else forbidden[k],
            )  # fmt: skip


def equal_sizes(steps: int, count: int) -> list[int]:
    """Return the sizes of `count` minibatches, at most one per step, that differ by at most 1.

    A small last minibatch would be noise.
    """
    count = max(1, min(count, steps))
    return [steps // count + (k < steps % count) for k in range(count)]


def ratio_bounds(advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the one-sided bounds for `clipped_objective`: ``(-inf, 1 + ε)`` if A >= 0, else ``(1 - ε, inf)``."""
    gains = advantages >= 0
    infinity = torch.tensor(torch.inf)
    return torch.where(gains, -infinity, 1.0 - clip), torch.where(gains, 1.0 + clip, infinity)


def clipped_objective(ratios: Tensor, advantages: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return PPO's loss ``-mean(min(r A, clip(r, 1 - ε, 1 + ε) A))`` (Schulman et al. 2017, equation 7), all ``[B]``.

    With the bounds of `ratio_bounds` it equals ``-mean(clamp(r, low, high) A)``, which needs half the kernels.
    """
    return torch.dot(torch.clamp(ratios, low, high), advantages) * (-1.0 / len(ratios))


def half_square_error(estimates: Tensor, targets: Tensor, old: Tensor | None, clip: float) -> Tensor:
    """Return half the mean squared error, a scalar from ``[B]``.

    With `old` values, each error is the larger of its own and that of the estimate clipped to ``old ± clip``.
    """
    error = estimates - targets
    if old is None:
        return torch.dot(error, error) * (0.5 / len(error))
    clipped = old + (estimates - old).clamp(-clip, clip) - targets
    return torch.maximum(error.square(), clipped.square()).mean() * 0.5
