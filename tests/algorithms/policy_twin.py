"""The network of a described policy in torch: the reference for the learner's networks and the actor's."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from rl4sys_zmq.algorithms.networks.inputs import encode_observations, standardise
from rl4sys_zmq.layers.activation import ActivationLayer, torch_activation
from rl4sys_zmq.layers.normalise import Normalise
from rl4sys_zmq.policies.layer_policy import read_network
from rl4sys_zmq.values import PolicySpec


def policy_outputs(spec: PolicySpec, tensors: Mapping[str, NDArray[np.float32]], observations: NDArray[Any]) -> torch.Tensor:
    """Return an actor's output before the head, ``[N, spec.outputs]``, from named tensors."""
    x = encode_observations(spec.observation_space, observations)
    dense = 0
    for layer in read_network(spec)[1].layers:
        if isinstance(layer, Normalise):
            x = standardise(x, torch.tensor(tensors["obs_mean"]), torch.tensor(tensors["obs_scale"]))
        elif isinstance(layer, ActivationLayer):
            x = torch_activation(layer.function)(x)
        else:
            x = F.linear(x, torch.tensor(tensors[f"layers.{dense}.weight"]), torch.tensor(tensors[f"layers.{dense}.bias"]))
            dense += 1
    return x
