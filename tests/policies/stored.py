"""Policies with random weights, in the form in which a learner stores them."""

from typing import Any

import numpy as np

from rl4sys_zmq.policies import PolicyOrigin, StoredPolicy
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.weights import digest

ORIGIN = PolicyOrigin(client_id="luna/ä", algorithm_name="PPO", updates=8, steps=1000, saved_unix_s=1_700_000_000.5)


def stored(spec: PolicySpec, seed: int = 0, scale: float = 0.3) -> StoredPolicy:
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for tensor in spec.tensors:
        if tensor.name in ("obs_scale", "epsilon", "noise_std"):
            tensors[tensor.name] = rng.random(tensor.shape).astype(np.float32) + np.float32(0.1)
        elif tensor.dtype == "bool":
            tensors[tensor.name] = rng.random(tensor.shape) < 0.5
        else:
            tensors[tensor.name] = (scale * rng.standard_normal(tensor.shape)).astype(tensor.dtype)
    flat, others = spec.flatten(tensors)
    return StoredPolicy(spec, PolicySnapshot(1_700_000_000_000, 7, digest(flat, others), flat, others), ORIGIN)
