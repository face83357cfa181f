"""Policies in numpy: what an actor runs, built from a `PolicySpec` and a `PolicySnapshot`. Never imports torch.

- `Policy`: the seam. `act` for one observation, `act_batch` for many; `build_policy` makes one.
- `PolicyEntry`: a kind of policy in the registry `POLICIES`; `register_policy` adds one, `require_policy` finds one.
- `bind`: a policy's `act` for one thread, which may then have buffers of its own.
- `Sampler`: the random numbers that both methods draw from, one per host thread.

A policy is immutable and may be shared by threads; a `Sampler` may not. A new version is a new policy over a new buffer.
"""

from rl4sys_zmq.policies.base import Act, Action, Policy, PolicyFactory, bind
from rl4sys_zmq.policies.registry import POLICIES, PolicyEntry, build_policy, register_policy, require_policy
from rl4sys_zmq.policies.sampler import Sampler

__all__ = [
    "POLICIES",
    "Act",
    "Action",
    "Policy",
    "PolicyEntry",
    "PolicyFactory",
    "Sampler",
    "bind",
    "build_policy",
    "register_policy",
    "require_policy",
]
