"""The arithmetic of a policy of layers in float64, the slow twin of the forms that compute in float32."""

from collections.abc import Callable
from math import erf, log, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.layers.normalise import OBS_CLIP
from rl4sys_zmq.values import DiscreteSpace, PolicySpec

Array = NDArray[np.float64]

FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "elu": lambda x: np.where(x < 0.0, np.expm1(np.minimum(x, 0.0)), x),
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1.0 + np.vectorize(erf, otypes=[np.float64])(x * 0.5**0.5)),
    "leaky_relu": lambda x: np.where(x < 0.0, 0.01 * x, x),
}


def exact_outputs(spec: PolicySpec, flat: NDArray[np.float32], observations: NDArray[Any]) -> Array:
    """Return the outputs ``[T, outputs]`` for the observations of one episode."""
    tensors: dict[str, Array] = {name: tensor.astype(np.float64) for name, tensor in spec.views(flat).items()}
    space = spec.observation_space
    if isinstance(space, DiscreteSpace):
        x: Array = np.eye(space.n)[observations - space.start]
    else:
        x = observations.reshape(len(observations), -1).astype(np.float64)
    dense = 0
    for layer in spec.document["layers"]:
        match layer["kind"]:
            case "normalise":
                x = ((x - tensors["obs_mean"]) * tensors["obs_scale"]).clip(-OBS_CLIP, OBS_CLIP)
            case "dense":
                x = x @ tensors[f"layers.{dense}.weight"].T + tensors[f"layers.{dense}.bias"]
                dense += 1
            case "activation":
                x = FUNCTIONS[layer["function"]](x)
            case "gru":
                x = _states(x, *(tensors[f"gru.0.{name}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")))
    return x


def _states(x: Array, weight_ih: Array, weight_hh: Array, bias_ih: Array, bias_hh: Array) -> Array:
    """Return the states of a gated recurrent unit (Cho et al. 2014), as PyTorch defines it."""
    state, states = np.zeros(weight_hh.shape[1]), []
    for row in x:
        reset, update, new = np.split(weight_ih @ row + bias_ih, 3)
        own_reset, own_update, own_new = np.split(weight_hh @ state + bias_hh, 3)
        z = _sigmoid(update + own_update)
        state = (1.0 - z) * np.tanh(new + _sigmoid(reset + own_reset) * own_new) + z * state
        states.append(state)
    return np.array(states)


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def log_softmax(logits: Array) -> Array:
    """Return the log-probabilities of all actions, from logits of which forbidden ones are minus infinity."""
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def gaussian_density(raw: Array, means: Array, log_stds: Array) -> float:
    """Return the log-density of a sample of a diagonal Gaussian."""
    z = (raw - means) * np.exp(-log_stds)
    return float(-0.5 * (z @ z) - log_stds.sum() - 0.5 * len(z) * log(2.0 * pi))


def squashed_density(noise: Array, means: Array, log_stds: Array, half: Array) -> float:
    """Return the log-density of the action ``half * tanh(u)``, with ``u = means + exp(log_stds) * noise``."""
    u = np.abs(means + np.exp(log_stds) * noise)
    squash = 2.0 * (log(2.0) - u - np.log1p(np.exp(-2.0 * u)))  # log(1 - tanh(u)^2)
    return float((-0.5 * noise**2 - log_stds - 0.5 * log(2.0 * pi) - squash - np.log(half)).sum())
