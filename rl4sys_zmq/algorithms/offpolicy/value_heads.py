"""The heads of DQN's network: the meaning of its outputs, the loss on them, and the output layer of the published policy.

A head estimates a vector for each action: the expected return, the probabilities of fixed values (*atoms*) of the return [2],
or its quantiles [3]. The value of an action is the mean. With *dueling* [1], the network also estimates a vector for the state,
and the vectors of the actions are deviations (advantages) from the state's vector.

[1] Wang et al. 2016, Dueling Network Architectures for Deep Reinforcement Learning.
[2] Bellemare et al. 2017, A Distributional Perspective on Reinforcement Learning.
[3] Dabney et al. 2018, Distributional Reinforcement Learning with Quantile Regression.
[4] Pohlen et al. 2018, Observe and Look Further: Achieving Consistent Performance on Atari.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rl4sys_zmq.algorithms.offpolicy.dqn_parameters import DQNParameters

_SLOPE = 1e-3
"""The slope of `squash` for very large values, ε."""


class ValueHead(ABC):
    """A head of DQN's network that estimates a vector of ``W`` numbers (`width`) for each of ``n`` actions.

    Attributes:
        outputs: The number of outputs of the network: ``n * W``, or ``(n + 1) * W`` with dueling.
        merges: True if the output layer of the published policy differs from that of the network (`policy_rows`).
    """

    def __init__(self, parameters: DQNParameters, actions: int, width: int = 1) -> None:
        self.merges = self._dueling = parameters.dueling
        self.width = width
        self.outputs = (actions + self._dueling) * width

    def estimates(self, outputs: Tensor) -> Tensor:
        """Return the vectors ``[B, n, W]`` for the network's outputs ``[B, outputs]``; with dueling, by equation 9 of [1]."""
        table = outputs.view(len(outputs), -1, self.width)
        if not self._dueling:
            return table
        advantages, state = table[:, :-1], table[:, -1:]
        return state + (advantages - advantages.mean(1, keepdim=True))

    @abstractmethod
    def values(self, estimates: Tensor) -> Tensor:
        """Return the expected returns, ``[...]``, for vectors ``[..., W]``."""

    @abstractmethod
    def targets(self, returns: Tensor, discounts: Tensor, successors: Tensor) -> Tensor:
        """Return the target vectors for the chosen actions, ``[B, W]``.

        Args:
            returns: The n-step returns, ``[B]``.
            discounts: The factors by which the successors' values are multiplied, ``[B]``.
            successors: The vectors of the best actions in the successors, ``[B, W]``.
        """

    @abstractmethod
    def losses(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each transition, ``[B]``, for vectors and their targets, ``[B, W]``."""

    @abstractmethod
    def errors(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Return the error of each transition, ``[B]``, from which prioritized sampling gets the priorities."""

    def policy_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the policy's output layer, ``[outputs, C]``: the network's, with dueling and means of quantiles merged in."""
        if not self._dueling:
            return rows
        table = rows.astype(np.float64).reshape(-1, self.width, rows.shape[1])
        advantages = table[:-1]
        merged: NDArray[np.float32] = (table[-1:] + (advantages - advantages.mean(axis=0))).astype(np.float32)
        return merged.reshape(-1, rows.shape[1])

    def network_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return an output layer of the network for a given one of the policy: the inverse of `policy_rows`, up to rounding."""
        if not self._dueling:
            return rows
        table = rows.reshape(-1, self.width, rows.shape[1])
        return np.concatenate([table, table.mean(axis=0, keepdims=True)]).reshape(-1, rows.shape[1])


class ScalarHead(ValueHead):
    """A head that estimates the expected return; with `rescaling`, `squash` of it. The loss is the Huber loss."""

    def __init__(self, parameters: DQNParameters, actions: int) -> None:
        super().__init__(parameters, actions)
        self._huber_delta, self._rescaling = parameters.huber_delta, parameters.value_rescaling

    def values(self, estimates: Tensor) -> Tensor:
        values = estimates.squeeze(-1)
        return expand(values) if self._rescaling else values

    def targets(self, returns: Tensor, discounts: Tensor, successors: Tensor) -> Tensor:
        """Return the n-step returns plus the discounted values, squashed with `rescaling` ([4], equation 1)."""
        targets = returns + discounts * self.values(successors)
        return (squash(targets) if self._rescaling else targets).unsqueeze(1)

    def losses(self, estimates: Tensor, targets: Tensor) -> Tensor:
        return functional.huber_loss(estimates, targets, reduction="none", delta=self._huber_delta).squeeze(1)

    def errors(self, estimates: Tensor, targets: Tensor) -> Tensor:
        return (estimates - targets).squeeze(1)


class CategoricalHead(ValueHead):
    """A head that estimates the logits of the probabilities of equally spaced returns, the *atoms* [2].

    The loss is the cross entropy.

    The error for priorities is the Kullback-Leibler divergence, as in Rainbow (Hessel et al. 2018).
    """

    def __init__(self, parameters: DQNParameters, actions: int) -> None:
        super().__init__(parameters, actions, parameters.atoms)
        self._low, self._high = parameters.v_min, parameters.v_max
        self._spacing = (self._high - self._low) / (self.width - 1)
        self._atoms = torch.linspace(self._low, self._high, self.width, dtype=torch.float32, device="cpu")

    def values(self, estimates: Tensor) -> Tensor:
        return estimates.softmax(-1) @ self._atoms.to(estimates.device)

    def targets(self, returns: Tensor, discounts: Tensor, successors: Tensor) -> Tensor:
        """Return the target probabilities of the atoms: the distribution after the step, moved to ``return + discount * atom``.

        The moved distribution is projected on the atoms ([2], equation 7).

        The probability of a value between two atoms is divided between both, more to the nearer one. A value outside the range
        counts as the nearest atom.
        """
        atoms = self._atoms.to(returns.device)
        moved = (returns.unsqueeze(1) + discounts.unsqueeze(1) * atoms).clamp(self._low, self._high)
        position = ((moved - self._low) / self._spacing).clamp(0.0, self.width - 1.0)
        below = position.floor()
        upper, index = position - below, below.long()
        probabilities = successors.softmax(1)
        projected = torch.zeros_like(probabilities)
        projected.scatter_add_(1, index, probabilities * (1.0 - upper))
        return projected.scatter_add_(1, (index + 1).clamp(max=self.width - 1), probabilities * upper)

    def losses(self, estimates: Tensor, targets: Tensor) -> Tensor:
        return -(targets * estimates.log_softmax(1)).sum(1)

    def errors(self, estimates: Tensor, targets: Tensor) -> Tensor:
        return self.losses(estimates, targets) + torch.xlogy(targets, targets).sum(1)


class QuantileHead(ValueHead):
    """A head that estimates quantiles of the return, for the probabilities ``(2 i + 1) / (2 W)`` [3].

    The loss is the quantile Huber loss ([3], equation 10), summed over the estimates and averaged over the targets.
    """

    def __init__(self, parameters: DQNParameters, actions: int) -> None:
        super().__init__(parameters, actions, parameters.quantiles)
        self.merges = True
        self._kappa = parameters.kappa
        self._probabilities = (2.0 * torch.arange(self.width, dtype=torch.float32, device="cpu") + 1.0) / (2.0 * self.width)

    def values(self, estimates: Tensor) -> Tensor:
        return estimates.mean(-1)

    def targets(self, returns: Tensor, discounts: Tensor, successors: Tensor) -> Tensor:
        return returns.unsqueeze(1) + discounts.unsqueeze(1) * successors

    def losses(self, estimates: Tensor, targets: Tensor) -> Tensor:
        errors = targets.unsqueeze(1) - estimates.unsqueeze(2)  # [B, estimate, target]
        sizes = errors.abs()
        huber = torch.where(sizes <= self._kappa, 0.5 * errors.square(), self._kappa * (sizes - 0.5 * self._kappa))
        probabilities = self._probabilities.to(errors.device).view(1, -1, 1)
        weights = (probabilities - (errors.detach() < 0).float()).abs()
        return (weights * huber).mean(2).sum(1) / self._kappa

    def errors(self, estimates: Tensor, targets: Tensor) -> Tensor:
        return (estimates - targets).mean(1)

    def policy_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        table = super().policy_rows(rows).reshape(-1, self.width, rows.shape[1])
        means: NDArray[np.float32] = table.mean(axis=1, dtype=np.float64).astype(np.float32)
        return means

    def network_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return super().network_rows(np.repeat(rows, self.width, axis=0))


def squash(returns: Tensor) -> Tensor:
    """Return ``sign(x) (√(|x| + 1) - 1) + ε x`` for each return x, with a small constant ε ([4], proposition A.2)."""
    return returns.sign() * ((returns.abs() + 1.0).sqrt() - 1.0) + _SLOPE * returns


def expand(squashed: Tensor) -> Tensor:
    """Return the inverse of `squash`, ``sign(x) (((√(1 + 4 ε (|x| + 1 + ε)) - 1) / (2 ε))² - 1)`` ([4], proposition A.2)."""
    sizes = squashed.abs().double()  # the difference below is one of close numbers
    root = ((1.0 + 4.0 * _SLOPE * (sizes + 1.0 + _SLOPE)).sqrt() - 1.0) / (2.0 * _SLOPE)
    return squashed.sign() * (root.square() - 1.0).to(squashed.dtype)


def make_value_head(parameters: DQNParameters, actions: int) -> ValueHead:
    """Build the head that the parameters describe."""
    heads: dict[str, Callable[[DQNParameters, int], ValueHead]]
    heads = {"none": ScalarHead, "categorical": CategoricalHead, "quantile": QuantileHead}
    return heads[parameters.distribution](parameters, actions)
