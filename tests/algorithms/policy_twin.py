"""The network of a described policy in torch: the reference for the learner's networks and the actor's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from rl4sys_zmq.algorithms.networks.inputs import encode_observations, standardise
from rl4sys_zmq.layers.activation import torch_activation
from rl4sys_zmq.policies.mlp import mlp_document
from rl4sys_zmq.values import PolicySpec


def policy_outputs(spec: PolicySpec, tensors: Mapping[str, NDArray[np.float32]], observations: NDArray[Any]) -> torch.Tensor:
    """Return an actor's output before the head, ``[N, spec.outputs]``, from named tensors."""
    x = encode_observations(spec.observation_space, observations)
    document = mlp_document(spec)
    if document.normalise_observations:
        x = standardise(x, torch.tensor(tensors["obs_mean"]), torch.tensor(tensors["obs_scale"]))
    activation = torch_activation(document.activation)
    for layer in range(len(document.hidden_sizes) + 1):
        x = F.linear(x, torch.tensor(tensors[f"layers.{layer}.weight"]), torch.tensor(tensors[f"layers.{layer}.bias"]))
        if layer < len(document.hidden_sizes):
            x = activation(x)
    return x
