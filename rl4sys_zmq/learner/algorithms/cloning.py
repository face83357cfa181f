"""Behaviour cloning: the policy learns to choose the actions of demonstrations, before the training (Pomerleau 1991)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rl4sys_zmq.learner.algorithms.base import CloneOptions
from rl4sys_zmq.learner.algorithms.networks import FlatAdam, encode_observations
from rl4sys_zmq.values import DiscreteSpace, ObservationSpace, Segment, Space
from rl4sys_zmq.values.observations import leaves_of

__all__ = ["clone_policy", "cloned_columns", "margin_loss"]

MARGIN = 0.8
"""The margin of `margin_loss` in Hester et al. 2018."""


def cloned_columns(
    segments: Sequence[Segment], observation_space: ObservationSpace, action_space: Space
) -> tuple[Tensor, Tensor]:
    """Return the features ``[N, F]`` and the actions of all steps: int64 ``[N]`` from 0 if discrete, else float32 ``[N, n]``."""
    leaves = zip(*([leaf[: segment.steps] for leaf in segment.observation_leaves] for segment in segments), strict=True)
    observations = leaves_of(observation_space).unflatten(map(np.concatenate, leaves))
    actions = np.concatenate([segment.actions for segment in segments])
    if isinstance(action_space, DiscreteSpace):
        chosen = torch.from_numpy(actions.astype(np.int64) - action_space.start)
    else:
        chosen = torch.from_numpy(actions.astype(np.float32).reshape(len(actions), -1))
    return encode_observations(observation_space, observations), chosen


def clone_policy(
    columns: tuple[Tensor, Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    gradient: Callable[[Tensor], Tensor],
    flat: Tensor,
    options: CloneOptions,
    generator: torch.Generator,
) -> float:
    """Take the gradient steps of behaviour cloning. Return the mean loss of the last tenth of them.

    Args:
        columns: The features and the actions of all steps (`cloned_columns`).
        loss: Returns the loss of the policy on a batch of features and actions, as a scalar tensor.
        gradient: Returns the gradient of a loss by all parameters.
        flat: The parameters, which change. A parameter on which the loss does not depend stays as it is.
        options: The number and the size of the steps.
        generator: The source of the random batches.
    """
    features, actions = columns
    optimizer = FlatAdam(flat)
    last: list[Tensor] = []
    tenth = -(-options.steps // 10)
    for step in range(options.steps):
        rows = torch.randint(len(actions), (options.batch_size,), generator=generator)
        value = loss(features[rows].to(flat.device), actions[rows].to(flat.device))
        optimizer.step(gradient(value), [options.learning_rate])
        if step >= options.steps - tenth:
            last.append(value.detach())
    return float(torch.stack(last).mean()) if last else 0.0


def margin_loss(values: Tensor, actions: Tensor) -> Tensor:
    """Return the large-margin loss of action values: 0 if each demonstrated action is better than all others by `MARGIN`.

    The loss is the mean of max_a (Q(s, a) + l(a)) - Q(s, a_E), with l = 0 for the demonstrated action a_E, else `MARGIN` (Hester
    et al. 2018, "Deep Q-learning from Demonstrations", equation 1).

    Args:
        values: The values of all actions, ``[B, n]``.
        actions: The demonstrated actions, int64 ``[B]``.
    """
    chosen = actions.unsqueeze(1)
    margins = torch.full_like(values, MARGIN).scatter_(1, chosen, 0.0)
    return ((values + margins).amax(1) - values.gather(1, chosen).squeeze(1)).mean()
