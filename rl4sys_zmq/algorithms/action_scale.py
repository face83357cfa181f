"""The scaling of bounded continuous actions to the numbers between -1 and 1, with which networks compute."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl4sys_zmq.policies.action_bounds import action_bounds
from rl4sys_zmq.values import BoxSpace


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
