"""Distributions over the actions of one space in torch, as in `rl4sys_zmq.policies.action_heads`, and the scaling of actions."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rl4sys_zmq.policies.action_bounds import action_bounds
from rl4sys_zmq.values import BoxSpace, DiscreteSpace
from rl4sys_zmq.values.action_layout import action_layout, choice_groups
from rl4sys_zmq.values.spaces import ActionSpace
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


class DiagonalGaussian:
    """A batch of ``B`` normal distributions over vectors of ``n`` independent numbers. It implements `Distribution`.

    It is created from means ``[B, n]`` and the logarithms of the standard deviations, `log_std` ``[n]``, which all ``B``
    distributions share.
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
        """Return the entropy ``Σ log σ + n/2 (1 + log 2π)``, for standard deviations σ, as a scalar tensor."""
        return self._log_std.sum() + (self._constant + 0.5 * self._means.shape[1])


class ActionDistributionBuilder:
    """A function that converts network outputs to distributions over the actions of one space. It also encodes such actions."""

    def __init__(self, space: ActionSpace) -> None:
        self.layout = action_layout(space)
        self._space = space
        groups = () if isinstance(space, BoxSpace | DiscreteSpace) else choice_groups(self.layout)
        self._groups = [(group.options, torch.from_numpy(group.choices), torch.from_numpy(group.logits)) for group in groups]

    @property
    def number_columns(self) -> slice | None:
        """The columns of the result of `encode` that have the numbers of the Boxes; None if the space has no Box."""
        if not self.layout.numbers:
            return None
        return slice(None) if isinstance(self._space, BoxSpace) else slice(self.layout.choices, None)

    def place(self, device: torch.device) -> None:
        self._groups = [(options, choices.to(device), logits.to(device)) for options, choices, logits in self._groups]

    def encode(self, actions: Tree) -> Tensor:
        """Return raw actions, a tree of arrays ``[N, *leaf]``, in the form that `Distribution.log_probs` takes.

        The form is int64 ``[N]`` from 0 for a Discrete space, and float32 ``[N, n]`` for a Box. For all other spaces it is
        float32 ``[N, choices + numbers]``: the indices of the choices from 0, and then the numbers of all Boxes.
        """
        if isinstance(self._space, DiscreteSpace):
            return torch.from_numpy(actions.astype(np.int64) - self._space.start)
        if isinstance(self._space, BoxSpace):
            return torch.from_numpy(actions.astype(np.float32).reshape(len(actions), self._space.size))
        return torch.from_numpy(self.layout.join(actions))

    def __call__(self, outputs: Tensor, log_std: Tensor | None, forbidden: Tensor | None) -> Distribution:
        """Return ``B`` distributions over actions from outputs of a network, ``[B, outputs]``, in the order of `ActionLayout`.

        `log_std` has the logarithms of the standard deviations, ``[n]``; None without a Box. `forbidden` is True for each
        discrete action to exclude, bool ``[B, options]``; None if all are allowed.
        """
        if isinstance(self._space, DiscreteSpace):
            return Categorical(outputs, forbidden)
        if isinstance(self._space, BoxSpace):
            assert log_std is not None
            return DiagonalGaussian(outputs, log_std)
        groups = []
        for options, choices, index in self._groups:
            excluded = None if forbidden is None else forbidden.index_select(1, index).reshape(-1, options)
            groups.append((Categorical(outputs.index_select(1, index).reshape(-1, options), excluded), choices))
        numbers = None if log_std is None else DiagonalGaussian(outputs[:, self.layout.logits :], log_std)
        return JointDistribution(len(outputs), groups, numbers)


class JointDistribution:
    """A batch of ``B`` distributions over actions of independent choices and numbers. It implements `Distribution`.

    The log-probability and the entropy are sums over the choices and numbers. Choices with the same number of options are
    computed together.
    """

    def __init__(self, rows: int, groups: list[tuple[Categorical, Tensor]], numbers: DiagonalGaussian | None) -> None:
        self._rows, self._groups, self._numbers = rows, groups, numbers
        self._count = sum(len(choices) for _, choices in groups)

    def log_probs(self, actions: Tensor) -> Tensor:
        parts = [
            group.log_probs(actions.index_select(1, choices).long().reshape(-1)).view(self._rows, -1).sum(dim=1)
            for group, choices in self._groups
        ]
        if self._numbers is not None:
            parts.append(self._numbers.log_probs(actions[:, self._count :]))
        return torch.stack(parts).sum(dim=0)

    def mean_entropy(self) -> Tensor:
        parts = [group.mean_entropy() * float(len(choices)) for group, choices in self._groups]
        if self._numbers is not None:
            parts.append(self._numbers.mean_entropy())
        return torch.stack(parts).sum()


class ActionScale:
    """A function that scales actions of a bounded Box, float32 ``[B, *act]``, to numbers between -1 and 1, ``[B, n]``.

    A dimension whose bounds are equal becomes 0.
    """

    def __init__(self, space: BoxSpace) -> None:
        bounds = action_bounds(space)
        self._centre = torch.from_numpy(bounds.centre.astype(np.float32))
        self._inverse = torch.from_numpy(1.0 / np.where(bounds.half > 0.0, bounds.half, np.inf).astype(np.float32))

    def __call__(self, actions: Tensor) -> Tensor:
        return (actions.reshape(len(actions), -1) - self._centre).mul_(self._inverse).clamp_(-1.0, 1.0)
