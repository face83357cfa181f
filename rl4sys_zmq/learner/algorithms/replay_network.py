"""The interface of the networks of replay algorithms such as DQN and SAC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["ReplayNetwork"]


class ReplayNetwork(Protocol):
    """``K`` networks of one kind that get the same inputs: a policy, the action values of DQN, or the critics of SAC.

    All parameters are in one flat vector, so that the optimizer, the checkpoints and the target networks need no knowledge of
    layers. Networks can share layers.

    Attributes:
        flat: All parameters, float32 ``[size]``. It changes only in place, except by `place`. It begins with the tensors of a
            policy in the order of `PolicySpec.tensors`, if network 0 is one, and then `ReplayShape.extras` further parameters.
    """

    flat: Tensor

    def __call__(self, x: Tensor, actions: Tensor | None = None) -> Sequence[Tensor]:
        """Compute all networks. Return the outputs of each, ``[B, ReplayShape.outputs[k]]``.

        Args:
            x: The features of ``B`` observations, float32 ``[B, F]`` (`rl4sys_zmq.values.features`).
            actions: Actions, float32 ``[B, ReplayShape.actions]``; None if the networks get none.
        """

    def one(self, k: int, x: Tensor, actions: Tensor | None = None) -> Tensor:
        """Compute network `k` alone, with the arguments of a call. Return its outputs."""

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        """Set random orthogonal weights and zero biases. The extra parameters do not change.

        Args:
            generator: The only source of random numbers.
            output_gains: The gain of the output layer of each network. The gain of the other layers is √2.
        """

    def initialise_uniform(self, generator: torch.Generator) -> None:
        """Set uniform weights and biases, as those of torch's layers. The extra parameters do not change.

        Args:
            generator: The only source of random numbers.
        """

    def gradient(self, loss: Tensor, only: int | None = None) -> Tensor:
        """Return the gradient of a scalar loss by all parameters, float32 ``[size]``, in the order of `flat`.

        It is zero for parameters that the loss does not depend on. The next call can overwrite the returned tensor.

        Args:
            loss: The loss.
            only: The network whose parameters the gradient is taken by; it is zero for the others. None for all.
        """

    def place(self, device: torch.device) -> None:
        """Move all parameters to another device. `flat` is then a new tensor."""
