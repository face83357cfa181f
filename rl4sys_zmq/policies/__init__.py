"""Policies in numpy, built from a `PolicySpec` and a `PolicySnapshot`. Actors run them without torch.

- `Policy`: the interface. `act` chooses one action, `act_batch` many; `build_policy` builds a policy.
- `AssessingPolicy`: the optional method of a policy that knows the log-probability of any action.
- `ExtraColumnPolicy`: the base class of policies that carry a state from step to step, or that record extra columns.
- `PolicyEntry`: one kind of policy in the registry `POLICIES`. `register_policy` adds an entry, `require_policy` looks one up.
- `bind`: returns a policy's `act` for one thread, which can then use buffers of that thread.
- `read_policy`: reads an exported policy from a folder, as a `StoredPolicy` with a `PolicyOrigin`.
- `off_policy_value`: estimates the value of a policy from the decisions of another one, as an `OffPolicyValue`.
- `RandomSource`: the random numbers for acting, one object for each host thread.

A policy is immutable, so threads can share it. They must not share a `RandomSource`. Each new version of the weights is a new
policy object with a new buffer.
"""

from rl4sys_zmq.interfaces import Policy
from rl4sys_zmq.policies.base import Act, Action, AssessingPolicy, PolicyFactory, bind
from rl4sys_zmq.policies.column_policy import ExtraColumnPolicy, local_only_reason
from rl4sys_zmq.policies.folder import PolicyOrigin, StoredPolicy, read_policy
from rl4sys_zmq.policies.off_policy import OffPolicyValue, off_policy_value
from rl4sys_zmq.policies.registry import (
    POLICIES,
    PolicyEntry,
    build_policy,
    register_policy,
    require_policy,
)
from rl4sys_zmq.policies.sampler import RandomSource

__all__ = [
    "POLICIES",
    "Act",
    "Action",
    "AssessingPolicy",
    "ExtraColumnPolicy",
    "OffPolicyValue",
    "Policy",
    "PolicyEntry",
    "PolicyFactory",
    "PolicyOrigin",
    "RandomSource",
    "StoredPolicy",
    "bind",
    "build_policy",
    "local_only_reason",
    "off_policy_value",
    "read_policy",
    "register_policy",
    "require_policy",
]
