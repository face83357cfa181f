"""Behaviour cloning: the policy learns to choose the actions of demonstrations, before the training (Pomerleau 1991)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rl4sys_zmq.algorithms.action_distributions import FORBIDDEN_LOGIT, ActionDistributionBuilder
from rl4sys_zmq.algorithms.networks.flat_networks import FlatAdam
from rl4sys_zmq.algorithms.networks.inputs import encode_observations, forbidden_actions
from rl4sys_zmq.learner.registry.algorithm_protocols import CloneOptions
from rl4sys_zmq.values import ObservationSpace, Segment, Space
from rl4sys_zmq.values.observations import leaves_of

MARGIN = 0.8
"""The margin of `margin_loss` in Hester et al. 2018."""

CloneLoss = Callable[..., Tensor]
"""A loss of a policy: ``loss(features, actions)``, with a third argument ``forbidden`` if the demonstrations have masks."""


def cloned_columns(
    segments: Sequence[Segment], observation_space: ObservationSpace, action_space: Space
) -> tuple[Tensor, Tensor, *tuple[Tensor, ...]]:
    """Return the data for behaviour cloning, for ``N`` steps: features ``[N, F]``, actions, and (with masks) forbidden actions.

    The actions are int64 ``[N]`` from 0 if they are discrete, else float32 ``[N, n]``. Forbidden actions are True in bool ``[N,
    n]``.
    """
    leaves = zip(*([leaf[: segment.steps] for leaf in segment.observation_leaves] for segment in segments), strict=True)
    observations = leaves_of(observation_space).unflatten(map(np.concatenate, leaves))
    acted = ActionDistributionBuilder(action_space)
    chosen = acted.encode(np.concatenate([segment.actions for segment in segments]))
    forbidden = forbidden_actions(segments, acted.layout.logits)
    return encode_observations(observation_space, observations), chosen, *(() if forbidden is None else (forbidden,))


def clone_policy(
    columns: Sequence[Tensor],
    loss: CloneLoss,
    gradient: Callable[[Tensor], Tensor],
    flat: Tensor,
    options: CloneOptions,
    generator: torch.Generator,
) -> float:
    """Train the parameters `flat` by behaviour cloning. Return the mean loss of the last tenth of the gradient steps."""
    optimizer = FlatAdam(flat)
    last: list[Tensor] = []
    tenth = -(-options.steps // 10)
    for step in range(options.steps):
        rows = torch.randint(len(columns[0]), (options.batch_size,), generator=generator, dtype=torch.int64, device="cpu")
        value = loss(*[column[rows].to(flat.device) for column in columns])
        optimizer.step(gradient(value), [options.learning_rate])
        if options.report is not None:
            options.report(step + 1, value.detach())
        if step >= options.steps - tenth:
            last.append(value.detach())
    return float(torch.stack(last).mean()) if last else 0.0


def cross_entropy(logits: Tensor, actions: Tensor, forbidden: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy between logits ``[B, n]`` and the demonstrated actions ``[B]``, in nats."""
    return functional.cross_entropy(logits if forbidden is None else logits.masked_fill(forbidden, FORBIDDEN_LOGIT), actions)


def margin_loss(values: Tensor, actions: Tensor, forbidden: Tensor | None = None) -> Tensor:
    """Return the large-margin loss of action values: 0 if each demonstrated action is better than all others by `MARGIN`.

    The loss is the mean over all steps of max_a (Q(s, a) + l(a)) - Q(s, a_E), with l = 0 for the demonstrated action a_E, else
    `MARGIN` (Hester et al. 2018, "Deep Q-learning from Demonstrations", equation 1). Forbidden actions do not count.
    """
    chosen = actions.unsqueeze(1)
    margins = torch.full_like(values, MARGIN).scatter_(1, chosen, 0.0)
    others = values + margins if forbidden is None else (values + margins).masked_fill(forbidden, -torch.inf)
    return (others.amax(1) - values.gather(1, chosen).squeeze(1)).mean()
