"""State of each host thread."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from rl4sys_zmq.actor.segments import Stamp
from rl4sys_zmq.policies import Act, Policy, Sampler, bind

__all__ = ["ThreadState", "ThreadStates"]


class ThreadState:
    """State of one host thread of one agent.

    Attributes:
        sampler: the thread's random numbers.
        policy: the policy that `act` is bound to, None at first.
        act: the `act` of that policy with this thread's numbers and buffers.
        stamp: the version of that policy; all actions of the thread share the object.
        last_act: the newest action.
        block_left: the number of batched requests until segments are cut together.
        block_width: the number of environments in the newest batched request.
    """

    __slots__ = ("_explore", "_owner", "act", "block_left", "block_width", "last_act", "policy", "sampler", "stamp")

    act: Act
    stamp: Stamp

    def __init__(self, seed: int, explore: bool, owner: object) -> None:
        self._explore, self._owner = explore, owner
        self.sampler = Sampler(seed)
        self.policy: Policy | None = None
        self.last_act: Any = None
        self.block_left = 0
        self.block_width = 0

    def take(self, policy: Policy) -> None:
        """Act by `policy` from now on."""
        if policy is not self.policy:
            self.act = bind(policy, self.sampler, self._explore)
            self.stamp = Stamp(policy.generation, policy.version, self._owner)
            self.policy = policy


class ThreadStates(threading.local):
    """The `ThreadState` of the current thread. Its seed is made of one seed and of the order of first use."""

    def __init__(self, seed: int, numbers: itertools.count[int], explore: bool, owner: object) -> None:
        self.state = ThreadState(seed << 32 | next(numbers), explore, owner)
