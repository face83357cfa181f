"""The torch form of the network kind ``job_scorer``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from job_scheduling.features import FEATURES, USED, WINDOW
from job_scheduling.plugin import ScorerOptions
from job_scheduling.policy import SCALE
from rl4sys_zmq.algorithms.networks.inputs import Sequences
from rl4sys_zmq.values import PolicySpec

__all__ = ["JobScorer"]


class JobScorer:
    """The policy and the value network of an actor-critic that schedules jobs. It implements `ActorCriticNetwork`.

    The value network adds up a hidden layer over the jobs, so it does not depend on their order either.

    Attributes:
        flat: All parameters, float32 ``[size]``.
        parts: The slices of the policy and of the value network.
        extras: None; the actions are discrete.
    """

    extras: Tensor | None = None

    def __init__(self, options: ScorerOptions, spec: PolicySpec) -> None:
        self._preference, self._preferred = options.preference, FEATURES.index(options.preferred)
        self._jobs = spec.outputs
        policy = [tensor.shape for tensor in spec.tensors]
        units = options.value_units
        value: list[tuple[int, ...]] = [(units, len(FEATURES)), (units,), (units, units), (units,), (1, units), (1,)]
        sizes = [sum(math.prod(shape) for shape in shapes) for shapes in (policy, value)]
        self.parts = (slice(0, sizes[0]), slice(sizes[0], sum(sizes)))
        self._shapes = (policy, value)
        self._bind(torch.zeros(sum(sizes)))

    def place(self, device: torch.device) -> None:
        """Move all parameters to another device."""
        self._bind(self.flat.to(device))

    def _bind(self, flat: Tensor) -> None:
        self.flat = flat
        self._grad = torch.zeros_like(flat)
        self._leaves = [[view.requires_grad_() for view in self._views(flat, k)] for k in (0, 1)]
        self._grads = [self._views(self._grad, k) for k in (0, 1)]

    def _views(self, flat: Tensor, k: int) -> list[Tensor]:
        shapes = self._shapes[k]
        parts = flat[self.parts[k]].split([math.prod(shape) for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def __call__(self, x: Tensor, sequences: Sequences | None = None) -> list[Tensor]:
        """Return the scores ``[B, jobs]`` and the values ``[B, 1]`` for features ``[B, jobs * features]``."""
        used, rows = self._rows(x)
        return [self._scores(used, rows), self._values(used, rows)]

    def one(self, k: int, x: Tensor, sequences: Sequences | None = None) -> Tensor:
        """Return the scores (0) or the values (1) alone."""
        used, rows = self._rows(x)
        return self._values(used, rows) if k else self._scores(used, rows)

    def _rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows that have a job, bool ``[B, jobs]``, and their features. Most rows have none, and cost nothing."""
        jobs = x.view(len(x), self._jobs, len(FEATURES))
        used = jobs[:, :, USED] > 0.0
        return used, jobs[used]

    def _scores(self, used: Tensor, rows: Tensor) -> Tensor:
        linear, *layers, output = self._leaves[0]
        hidden = rows
        for weight, bias in zip(layers[::2], layers[1::2], strict=True):
            hidden = F.relu(F.linear(hidden, weight, bias))
        scores = SCALE * (rows @ linear + hidden @ output)
        return torch.zeros(used.shape, device=scores.device).masked_scatter(used, scores)

    def _values(self, used: Tensor, rows: Tensor) -> Tensor:
        first, first_bias, second, second_bias, last, last_bias = self._leaves[1]
        hidden = F.relu(F.linear(rows, first, first_bias))
        state = used.nonzero()[:, 0]
        total = torch.zeros(len(used), len(first_bias), device=rows.device).index_add(0, state, hidden) / WINDOW
        return F.linear(F.relu(F.linear(total, second, second_bias)), last, last_bias)

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        """Set random orthogonal weights of the layers, and the initial preference."""
        with torch.no_grad():
            self.flat.zero_()
            (linear, *layers, output), value = (self._views(self.flat, k) for k in (0, 1))
            for weight in [*layers[::2], value[0], value[2]]:
                torch.nn.init.orthogonal_(weight, math.sqrt(2.0), generator=generator)
            torch.nn.init.orthogonal_(output.view(1, -1), output_gains[0], generator=generator)
            torch.nn.init.orthogonal_(value[4], output_gains[1], generator=generator)
            linear[self._preferred] = -self._preference / SCALE

    def gradient(self, loss: Tensor, only: int | None = None) -> Tensor:
        """Return the gradient of a scalar loss by all parameters, or by those of one network."""
        chosen = (0, 1) if only is None else (only,)
        if only is not None:
            self._grad.zero_()
        leaves = [leaf for k in chosen for leaf in self._leaves[k]]
        views = [view for k in chosen for view in self._grads[k]]
        for view, grad in zip(views, torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True), strict=True):
            view.copy_(grad)
        return self._grad

    def change_inputs(self, mean: Tensor, scale: Tensor, new_mean: Tensor, new_scale: Tensor) -> Tensor:
        """Refuse: the features are never standardised."""
        raise NotImplementedError("the features of jobs are not standardised")
