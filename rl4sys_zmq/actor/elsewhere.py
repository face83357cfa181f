"""The stand-in for a policy that an actor does not have, because its learner acts for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import LearnerUnavailable
from rl4sys_zmq.policies import Sampler
from rl4sys_zmq.values import PolicySnapshot, PolicySpec

__all__ = ["Elsewhere"]


class Elsewhere:
    """Stands for a policy that this process does not have: which version the learner has, and nothing to act by."""

    def __init__(self, spec: PolicySpec, generation: int, version: int, digest: int) -> None:
        self.spec = spec
        self.snapshot = PolicySnapshot(generation, version, digest, np.empty(0, np.float32))
        self.generation, self.version = generation, version

    def act(self, observation: NDArray[Any], mask: NDArray[Any] | None, rng: Sampler, explore: bool) -> Any:
        """Raises LearnerUnavailable."""
        raise LearnerUnavailable("the learner", "an action: this actor has no policy of its own", 0.0)

    act_batch = act
