"""The interfaces of the networks that algorithms train."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from rl4sys_zmq.algorithms.networks.inputs import Sequences


class FlatNetwork(Protocol):
    """One or more networks with all parameters in one vector, so that optimizers and checkpoints need not know the layers.

    Attributes:
        flat: All parameters, float32 ``[size]``. It changes only in place, except by `place`. If network 0 is a policy, `flat`
            begins with its tensors in the order of `PolicySpec.tensors`.
    """

    flat: Tensor

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        """Set random orthogonal weights and zero biases. Parameters that belong to no layer do not change.

        Args:
            generator: The only source of random numbers.
            output_gains: The gain of the output layer of each network. The gain of hidden layers is √2.
        """

    def initialise_uniform(self, generator: torch.Generator) -> None:
        """Set uniform random weights and biases, as torch's layers do. Parameters that belong to no layer do not change."""

    def gradient(self, loss: Tensor, only: int | None = None) -> Tensor:
        """Return the gradient of a scalar loss with respect to all parameters, or those of network `only`, float32 ``[size]``.

        The gradient is in the order of `flat`, and zero for parameters that the loss does not depend on. The next call can
        overwrite the result.
        """

    def place(self, device: torch.device) -> None:
        """Move all parameters to another device. `flat` is then a new tensor."""


class ReplayNetwork(FlatNetwork, Protocol):
    """``K`` networks of one kind that get the same inputs: a policy, the action values of DQN, or the critics of SAC.

    Networks can share layers. After the tensors of a policy, `flat` has ``ReplayShape.extras`` further parameters.
    """

    def __call__(self, x: Tensor, *, actions: Tensor | None = None) -> Sequence[Tensor]:
        """Compute all networks. Return the outputs of each, ``[B, ReplayShape.outputs[k]]``.

        Args:
            x: The features of ``B`` observations, float32 ``[B, F]`` (`rl4sys_zmq.values.features`).
            actions: Actions, float32 ``[B, ReplayShape.actions]``; None if the networks get none.
        """

    def one(self, k: int, x: Tensor, *, actions: Tensor | None = None) -> Tensor:
        """Compute network `k` alone, with the arguments of `__call__`. Return its outputs."""


class ActorCriticNetwork(FlatNetwork, Protocol):
    """A policy (network 0) and a value network (network 1), which are trained together.

    Attributes:
        parts: The consecutive slices of `flat` that belong to network 0 and to network 1. They do not contain ``obs_mean`` and
            ``obs_scale``, the first tensors in `PolicySpec.tensors`.
    """

    parts: tuple[slice, ...]

    @property
    def extras(self) -> Tensor | None:
        """The parameters that do not depend on the observation: the logarithms of standard deviations, as a view ``[n]``."""

    def __call__(self, x: Tensor, sequences: Sequences | None = None) -> Sequence[Tensor]:
        """Compute both networks on features ``[B, F]``. Return the policy's outputs ``[B, n]`` and the values ``[B, 1]``.

        Args:
            x: The features of ``B`` observations, standardised if the algorithm does so.
            sequences: The division of the rows into sequences. A network without a recurrent state ignores this argument.
        """

    def one(self, k: int, x: Tensor, sequences: Sequences | None = None) -> Tensor:
        """Compute network `k` alone, with the arguments of `__call__`. Return the policy's outputs or the values ``[B, 1]``."""

    def change_inputs(self, mean: Tensor, scale: Tensor, new_mean: Tensor, new_scale: Tensor) -> Tensor:
        """Adapt the first layers to a new standardisation of the features, so that the outputs stay the same.

        `input_change` describes the arguments. This is only called if the policy standardises observations.

        Returns:
            The factor by which the scale of each parameter's gradient changes, float32 ``[size]``.
        """


@runtime_checkable
class SequenceNetwork(FlatNetwork, Protocol):
    """A network with a recurrent state, which a replay algorithm trains on sequences of consecutive steps.

    Attributes:
        state_column: The name of the extra column (`PolicySpec.columns`, one value per segment) with the state before the first
            step of a segment, as the actor had it. The elements of a state are between -1 and 1.
    """

    state_column: ClassVar[str]

    def __call__(self, x: Tensor, sequences: Sequences) -> Sequence[Tensor]:
        """Compute the outputs ``[B, outputs]``, the only item of the result.

        Args:
            x: The features of ``B`` observations, float32 ``[B, F]``.
            sequences: The division of the rows into sequences, and the states before them.
        """

    def states(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Return the recurrent state after each row, ``[B, n]``. The arguments are those of `__call__`."""


@runtime_checkable
class RecurrentNetwork(ActorCriticNetwork, SequenceNetwork, Protocol):
    """An `ActorCriticNetwork` whose outputs depend on a state that is carried from row to row of a sequence.

    Attributes:
        sequence_length: Largest number of steps of a sequence in training; None for whole segments.
    """

    sequence_length: int | None
