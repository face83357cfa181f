"""Policies in numpy: what an actor runs, built from a `PolicySpec` and a `PolicySnapshot`. Never imports torch.

- `Policy`: the seam. `act` for one observation, `act_batch` for many; `build_policy` makes one, `register_policy` adds a kind.
- `Sampler`: the pooled random numbers that both methods draw from, one per host thread.

A policy is immutable and may be shared by threads; a `Sampler` may not. A new version is a new policy over a new buffer.
"""

from rl4sys_zmq.actor.policies.base import Action, Policy, PolicyFactory
from rl4sys_zmq.actor.policies.registry import build_policy, register_policy
from rl4sys_zmq.actor.policies.sampler import Sampler

__all__ = ["Action", "Policy", "PolicyFactory", "Sampler", "build_policy", "register_policy"]
