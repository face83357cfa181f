"""The interface of the networks of an actor-critic: a policy and an estimate of values, with all parameters in one vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rl4sys_zmq.algorithms.networks.inputs import Sequences
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.values import Segment


class ActorCriticNetwork(Protocol):
    """A policy (network 0) and an estimate of values (network 1), which are trained together.

    All parameters are in one vector, so that the optimizer, the checkpoints, the digest and the diffs of weights know no layers.
    A network of torch modules makes their parameters views into this vector.

    Attributes:
        flat: All parameters, float32 ``[size]``. It changes only in place, except by `place`.
        parts: The consecutive slices of `flat` that belong to network 0 and to network 1. The first one contains the policy's
            float32 tensors in the order of `PolicySpec.tensors`, without ``obs_mean`` and ``obs_scale``, which come first there.
        extras: The parameters of the policy that do not depend on the observation, the logarithms of standard deviations of
            continuous actions, as a view ``[n]`` that requires gradients. None if the actions are discrete.
    """

    flat: Tensor
    parts: tuple[slice, ...]

    @property
    def extras(self) -> Tensor | None:
        """The parameters that do not depend on the observation."""

    def __call__(self, x: Tensor, sequences: Sequences | None = None) -> Sequence[Tensor]:
        """Compute both networks on features ``[B, F]``. Return the policy's outputs ``[B, n]`` and the values ``[B, 1]``.

        Args:
            x: The features of ``B`` observations, standardised if the algorithm does so.
            sequences: The division of the rows into sequences. A network without a recurrent state ignores it.
        """

    def one(self, k: int, x: Tensor, sequences: Sequences | None = None) -> Tensor:
        """Compute network `k` alone, with the arguments of a call. Return the policy's outputs, or the values ``[B, 1]``."""

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        """Set random initial parameters, with the gain of the output layer of each network. `extras` does not change."""

    def gradient(self, loss: Tensor, only: int | None = None) -> Tensor:
        """Return the gradient of a scalar loss by all parameters, or by those of network `only`, float32 ``[size]``.

        It is in the order of `flat`, and zero for parameters that the loss does not depend on. The next call can overwrite it.
        """

    def change_inputs(self, mean: Tensor, scale: Tensor, new_mean: Tensor, new_scale: Tensor) -> Tensor:
        """Adapt the first layers to a new standardisation of the features, so that the outputs stay the same.

        `MLPStack.change_inputs` describes the arguments. This is only called if the policy standardises observations.

        Returns:
            The factor by which the scale of each parameter's gradient changes, float32 ``[size]``.
        """

    def place(self, device: torch.device) -> None:
        """Move all parameters to another device. `flat` and `extras` are then new tensors."""


@runtime_checkable
class RecurrentNetwork(ActorCriticNetwork, Protocol):
    """An `ActorCriticNetwork` whose outputs depend on a state that is carried from row to row of a sequence.

    Attributes:
        state_column: The name of the extra column (`PolicySpec.columns`, one value per segment) with the state before the first
            step of a segment, as the actor had it.
        sequence_length: Largest number of steps of a sequence in training; None for whole segments.
    """

    state_column: ClassVar[str]
    sequence_length: int | None

    def states(self, x: Tensor, sequences: Sequences | None = None) -> Tensor:
        """Return the recurrent state after each row, ``[B, n]``, with the arguments of a call."""


def initial_states(segments: Sequence[Segment], column: str) -> Tensor:
    """Return the recurrent states before the first steps of segments, float32 ``[S, n]``, limited to their range of -1 to 1."""
    for segment in segments:
        if column not in segment.initial:
            raise ConfigError(  # the learner refuses such a segment when it arrives
                f"a segment of episode {segment.episode_id} lacks the column {column!r}, the recurrent state before its first "
                "step; record data with a recurrent policy of the same kind"
            )
    states = np.stack([segment.initial[column] for segment in segments])
    return torch.from_numpy(np.clip(states, -1.0, 1.0, dtype=np.float32))
