"""The heads of DQN's network: the meaning of its outputs, the loss on them, and the output layer of the published policy.

A head estimates a vector for each action. The vector is one number, the expected return, or it describes the distribution of the
return: by the probabilities of fixed values (*atoms*) [2], or by its quantiles [3]. The value of an action is the mean of the
distribution. With *dueling* [1], the network has one more vector, that of the state, and the vectors of the actions are the
deviations (advantages) from it.

[1] Wang et al. 2016, Dueling Network Architectures for Deep Reinforcement Learning.
[2] Bellemare et al. 2017, A Distributional Perspective on Reinforcement Learning.
[3] Dabney et al. 2018, Distributional Reinforcement Learning with Quantile Regression.
[4] Pohlen et al. 2018, Observe and Look Further: Achieving Consistent Performance on Atari.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rl4sys_zmq.algorithms.offpolicy.dqn_parameters import DQNParameters

_SLOPE = 1e-3
"""The slope of `squash` for very large values, ε."""


class ValueHead(ABC):
    """A head of a network that estimates a vector of `width` numbers for each of ``n`` actions.

    Attributes:
        width: The length of the vector of an action, ``W``.
        outputs: The number of outputs of the network: ``n * W``, or ``(n + 1) * W`` with dueling.
        merges: True if the output layer of the published policy differs from that of the network (`policy_rows`).
    """

    def __init__(self, actions: int, width: int, *, dueling: bool) -> None:
        self.merges = dueling
        self.width = width
        self.outputs = (actions + dueling) * width
        self._dueling = dueling

    def estimates(self, outputs: Tensor) -> Tensor:
        """Return the vectors of all actions, ``[B, n, W]``, for outputs of the network, ``[B, outputs]``.

        With dueling, the vector of an action is the state's plus its advantage minus the mean advantage ([1], equation 9).
        """
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
        """Return what the vectors of the chosen actions must become, ``[B, W]``.

        Args:
            returns: The n-step returns, ``[B]``.
            discounts: The factors of the successors' values, ``[B]``.
            successors: The vectors of the best actions in the successors, ``[B, W]``.
        """

    @abstractmethod
    def losses(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each transition, ``[B]``, for vectors and their targets, ``[B, W]``."""

    @abstractmethod
    def errors(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Return the error of each transition, ``[B]``, from which prioritized sampling gets the priorities."""

    def policy_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the output layer of the published policy, for that of the network.

        An actor combines no vectors itself, as far as this layer can do it: dueling and the mean of quantiles are linear.

        Args:
            rows: The weights or the biases of the network's output layer, ``[outputs, C]``.
        """
        if not self._dueling:
            return rows
        table = rows.astype(np.float64).reshape(-1, self.width, rows.shape[1])
        advantages = table[:-1]
        merged: NDArray[np.float32] = (table[-1:] + (advantages - advantages.mean(axis=0))).astype(np.float32)
        return merged.reshape(-1, rows.shape[1])

    def network_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return an output layer of the network from which `policy_rows` makes the given one, up to rounding."""
        if not self._dueling:
            return rows
        table = rows.reshape(-1, self.width, rows.shape[1])
        return np.concatenate([table, table.mean(axis=0, keepdims=True)]).reshape(-1, rows.shape[1])


class ScalarHead(ValueHead):
    """A head that estimates the expected return, or with `rescaling` that return squashed by a growing function (`squash`).

    The loss is quadratic up to an error, and linear beyond it (Huber). With `rescaling`, errors are those of squashed returns.
    """

    def __init__(self, actions: int, *, dueling: bool, huber_delta: float, rescaling: bool = False) -> None:
        super().__init__(actions, 1, dueling=dueling)
        self._huber_delta, self._rescaling = huber_delta, rescaling

    def values(self, estimates: Tensor) -> Tensor:
        """Return the estimates themselves, or with `rescaling` the returns that they stand for."""
        found = estimates.squeeze(-1)
        return expand(found) if self._rescaling else found

    def targets(self, returns: Tensor, discounts: Tensor, successors: Tensor) -> Tensor:
        """Return the n-step return plus the discounted value of the successor, squashed with `rescaling` ([4], equation 1)."""
        found = returns + discounts * self.values(successors)
        return (squash(found) if self._rescaling else found).unsqueeze(1)

    def losses(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Return the Huber loss."""
        return functional.huber_loss(estimates, targets, reduction="none", delta=self._huber_delta).squeeze(1)

    def errors(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Return the TD error."""
        return (estimates - targets).squeeze(1)


class CategoricalHead(ValueHead):
    """A head that estimates the probabilities of equally spaced returns, the atoms [2]. Its vectors are logits.

    The loss is the cross entropy between the target and the estimate. The error for priorities is the divergence of Kullback and
    Leibler, as in Rainbow (Hessel et al. 2018), which is the cross entropy without the entropy of the target.
    """

    def __init__(self, actions: int, *, dueling: bool, atoms: int, v_min: float, v_max: float) -> None:
        super().__init__(actions, atoms, dueling=dueling)
        self._low, self._high = v_min, v_max
        self._spacing = (v_max - v_min) / (atoms - 1)
        self._atoms = torch.linspace(v_min, v_max, atoms, dtype=torch.float32, device="cpu")

    def values(self, estimates: Tensor) -> Tensor:
        """Return the means of the distributions."""
        return estimates.softmax(-1) @ self._atoms.to(estimates.device)

    def targets(self, returns: Tensor, discounts: Tensor, successors: Tensor) -> Tensor:
        """Return the probabilities of the atoms: the shifted distribution, projected on the atoms ([2], equation 7).

        A value between two atoms gives its probability to both, in proportion to its nearness. One outside goes to the end.
        """
        atoms = self._atoms.to(returns.device)
        moved = (returns.unsqueeze(1) + discounts.unsqueeze(1) * atoms).clamp(self._low, self._high)
        place = ((moved - self._low) / self._spacing).clamp(0.0, self.width - 1.0)
        below = place.floor()
        upper, index = place - below, below.long()
        probabilities = successors.softmax(1)
        found = torch.zeros_like(probabilities)
        found.scatter_add_(1, index, probabilities * (1.0 - upper))
        return found.scatter_add_(1, (index + 1).clamp(max=self.width - 1), probabilities * upper)

    def losses(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy."""
        return -(targets * estimates.log_softmax(1)).sum(1)

    def errors(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Return the divergence of the estimate from the target."""
        return self.losses(estimates, targets) + torch.xlogy(targets, targets).sum(1)


class QuantileHead(ValueHead):
    """A head that estimates quantiles of the return, for the probabilities ``(2 i + 1) / (2 W)`` [3].

    The loss is the quantile Huber loss ([3], equation 10), summed over the estimates and averaged over the targets. The error for
    priorities is that of the mean.
    """

    def __init__(self, actions: int, *, dueling: bool, quantiles: int, kappa: float) -> None:
        super().__init__(actions, quantiles, dueling=dueling)
        self.merges = True
        self._kappa = kappa
        self._probabilities = (2.0 * torch.arange(quantiles, dtype=torch.float32, device="cpu") + 1.0) / (2.0 * quantiles)

    def values(self, estimates: Tensor) -> Tensor:
        """Return the means of the quantiles."""
        return estimates.mean(-1)

    def targets(self, returns: Tensor, discounts: Tensor, successors: Tensor) -> Tensor:
        """Return the shifted quantiles of the successors."""
        return returns.unsqueeze(1) + discounts.unsqueeze(1) * successors

    def losses(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Return the quantile Huber loss."""
        errors = targets.unsqueeze(1) - estimates.unsqueeze(2)  # [B, estimate, target]
        sizes = errors.abs()
        huber = torch.where(sizes <= self._kappa, 0.5 * errors.square(), self._kappa * (sizes - 0.5 * self._kappa))
        probabilities = self._probabilities.to(errors.device).view(1, -1, 1)
        weights = (probabilities - (errors.detach() < 0).float()).abs()
        return (weights * huber).mean(2).sum(1) / self._kappa

    def errors(self, estimates: Tensor, targets: Tensor) -> Tensor:
        """Return the TD error of the means."""
        return (estimates - targets).mean(1)

    def policy_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the layer that computes the means of the quantiles."""
        table = super().policy_rows(rows).reshape(-1, self.width, rows.shape[1])
        means: NDArray[np.float32] = table.mean(axis=1, dtype=np.float64).astype(np.float32)
        return means

    def network_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a layer whose quantiles are all equal."""
        return super().network_rows(np.repeat(rows, self.width, axis=0))


def squash(returns: Tensor) -> Tensor:
    """Return ``sign(x) (√(|x| + 1) - 1) + ε x`` for each return x ([4], proposition A.2)."""
    return returns.sign() * ((returns.abs() + 1.0).sqrt() - 1.0) + _SLOPE * returns


def expand(squashed: Tensor) -> Tensor:
    """Return the inverse of `squash`, ``sign(x) (((√(1 + 4 ε (|x| + 1 + ε)) - 1) / (2 ε))² - 1)`` ([4], proposition A.2).

    It is computed in float64, because of the difference of two close numbers, and returned in the dtype of the argument.
    """
    sizes = squashed.abs().double()
    root = ((1.0 + 4.0 * _SLOPE * (sizes + 1.0 + _SLOPE)).sqrt() - 1.0) / (2.0 * _SLOPE)
    return squashed.sign() * (root.square() - 1.0).to(squashed.dtype)


def make_value_head(parameters: DQNParameters, actions: int) -> ValueHead:
    """Build the head that the parameters describe."""
    p = parameters
    if p.distribution == "categorical":
        return CategoricalHead(actions, dueling=p.dueling, atoms=p.atoms, v_min=p.v_min, v_max=p.v_max)
    if p.distribution == "quantile":
        return QuantileHead(actions, dueling=p.dueling, quantiles=p.quantiles, kappa=p.kappa)
    return ScalarHead(actions, dueling=p.dueling, huber_delta=p.huber_delta, rescaling=p.value_rescaling)
