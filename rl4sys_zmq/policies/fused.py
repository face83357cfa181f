"""The forward pass for one observation with few numpy calls, which are most of the cost of a small network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.policies.activations import ACTIVATION_FUNCTIONS, Activation

__all__ = ["MOST_WEIGHTS", "Forward", "Fused"]

MOST_WEIGHTS = 1 << 17
"""The number of weights above which no fused form is built: arithmetic dominates, and the copy would cost memory."""

Forward = Callable[[NDArray[Any]], NDArray[Any]]
"""The outputs ``[outputs]`` for one observation, in a buffer that the next call overwrites."""


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """The layers of a small perceptron, with each bias as one more column whose input is always 1.

    So a layer is one product and one activation, and each writes into a buffer that is reused. The products are the bound
    ``dot`` of transposed views of ``[inputs + 1, outputs]`` arrays, the fastest layout that numpy has at this size (64x65:
    0.34 us; ``weight.dot`` and an addition take 0.6).
    """

    _dots: tuple[Callable[..., object], ...]
    _sizes: tuple[int, ...]
    _shape: tuple[int, ...]
    _prepare: Forward | None
    _activation: Activation

    @classmethod
    def of(
        cls,
        weights: tuple[NDArray[np.float32], ...],
        biases: tuple[NDArray[np.float32], ...],
        shape: tuple[int, ...],
        prepare: Forward | None,
        activation: str,
    ) -> Fused | None:
        """Copy the layers, or return None if they are too large for this form to be faster.

        Args:
            weights: One ``[outputs, inputs]`` for each layer.
            biases: One ``[outputs]`` for each layer.
            shape: Shape of the input of the first layer: of the observation, or of the result of `prepare`.
            prepare: Applied to each observation first.
            activation: Name of the activation between the layers.
        """
        if sum(w.size for w in weights) > MOST_WEIGHTS:
            return None
        dots = []
        for weight, bias in zip(weights, biases, strict=True):
            layer = np.empty((weight.shape[1] + 1, weight.shape[0]), dtype=np.float32)
            layer[:-1] = weight.T
            layer[-1] = bias
            dots.append(layer.T.dot)
        sizes = (weights[0].shape[1], *(len(bias) for bias in biases))
        return cls(tuple(dots), sizes, shape, prepare, ACTIVATION_FUNCTIONS[activation])

    def forward(self) -> Forward:
        """Return the forward pass with new buffers, for one thread."""
        inputs = [np.ones(size + 1, dtype=np.float32) for size in self._sizes[:-1]]
        views = [buffer[:-1] for buffer in inputs]
        entry = views[0].reshape(self._shape)
        *hidden, last = self._dots
        layers = tuple(zip(hidden, inputs, views[1:], strict=False))
        top, outputs = inputs[-1], np.empty(self._sizes[-1], dtype=np.float32)
        activation, prepare = self._activation, self._prepare

        def forward(observation: NDArray[Any]) -> NDArray[Any]:
            entry[...] = observation if prepare is None else prepare(observation)
            for dot, before, after in layers:
                dot(before, after)
                activation(after, after)
            last(top, outputs)
            return outputs

        return forward
