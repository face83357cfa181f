"""What each host thread has of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from rl4sys_zmq.policies import Act, Policy, Sampler, bind

__all__ = ["Host", "Hosts"]


class Host:
    """One host thread of one agent.

    Attributes:
        sampler: its random numbers.
        policy: the one that it acts by, and
        act: that one's `act` with this thread's numbers and buffers.
        stamp: that one's (generation, version), as one object that all its actions share.
        last_act: what was answered last.
        block_left: how many batched requests are left until segments are cut together.
        block_width: how many environments the last batched request had.
    """

    __slots__ = ("act", "block_left", "block_width", "last_act", "policy", "sampler", "stamp")

    def __init__(self, seed: int) -> None:
        self.sampler = Sampler(seed)
        self.policy: Policy | None = None
        self.act: Act
        self.stamp = (0, 0)
        self.last_act: Any = None
        self.block_left = 0
        self.block_width = 0

    def take(self, policy: Policy, explore: bool) -> None:
        """Acts by `policy` from now on."""
        if policy is not self.policy:
            self.act = bind(policy, self.sampler, explore)
            self.stamp = (policy.generation, policy.version)
            self.policy = policy


class Hosts(threading.local):
    """The `Host` of the current thread. Each has a seed of its own, made of one seed and of a number in order of first use."""

    def __init__(self, seed: int, numbers: Iterator[int]) -> None:
        self.host = Host(seed << 32 | next(numbers))
