"""The forward pass of a policy network in numpy, from a list of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ObservationError
from rl4sys_zmq.layers.dense import NumpyDense
from rl4sys_zmq.layers.layer import Array, RecurrentState, Step
from rl4sys_zmq.layers.layer_list import LayerList
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace
from rl4sys_zmq.values.features import feature_layout
from rl4sys_zmq.values.observations import leaves_of
from rl4sys_zmq.values.trees import Tree

Forward = Callable[[Any], NDArray[Any]]
"""A function from one observation to the network's outputs ``[outputs]``, in a buffer that the next call overwrites."""


class OutputNetwork(Protocol):
    """The interface of a policy network with fixed weights, which computes outputs from observations. Threads can share it."""

    def forward(self) -> Forward:
        """Return the form of `single` that is fastest for one thread. Only one thread may use it, because it can have buffers."""

    def single(self, observation: Any) -> NDArray[Any]:
        """Return the outputs for one observation, as a new array ``[outputs]``."""

    def batch(self, observations: Any) -> NDArray[Any]:
        """Return the outputs for ``N`` observations, as a new array ``[N, outputs]``."""


class LayerNetwork:
    """A list of layers in numpy with the weights of one version. It implements `OutputNetwork`."""

    def __init__(self, space: ObservationSpace, layers: LayerList, tensors: Sequence[Array]) -> None:
        """Create the network of layers that have a form in numpy. Their tensors are not copied, except small ones."""
        self._space, self._features = space, feature_layout(space)
        self._layers = [layer.numpy_form(own) for layer, own in zip(layers.layers, layers.divided(tensors), strict=True)]
        self._sizes = [prod(shape) for shape in layers.shapes]
        self._table: NDArray[Any] | None = None  # for discrete observations: the outputs of a dense first layer
        if isinstance(space, DiscreteSpace) and self._layers and isinstance(self._layers[0], NumpyDense):
            self._table, self._bias = self._layers[0].weight.T, self._layers[0].bias

    def forward(self) -> Forward:
        """Return the form of `single` that is fastest for one thread."""
        return self.bind(RecurrentState())

    def bind(self, state: RecurrentState) -> Forward:
        """Return a function that computes the outputs for one observation, for one thread. The function has its own buffers.

        A call reads `RecurrentState.before`, and sets `RecurrentState.after`.
        """
        steps: list[tuple[Step, Array, Array]] = []
        buffer = np.ones(self._sizes[0] + self._slots(0), np.float32)
        inputs = values = buffer[: self._sizes[0]]
        for index, layer in enumerate(self._layers):
            if layer.in_place:
                steps.append((layer.step(values, state), values, values))
                continue
            size = self._sizes[index + 1]
            following = np.ones(size + self._slots(index + 1), np.float32)
            steps.append((layer.step(buffer, state), buffer, following[:size]))
            buffer, values = following, following[:size]
        if not isinstance(self._space, BoxSpace):
            return _with_writer(*self._writer(inputs, steps), values)
        entry = inputs.reshape(self._space.shape)

        def forward(observation: NDArray[Any]) -> NDArray[Any]:
            entry[...] = observation  # flattens and casts
            for step, source, target in steps:
                step(source, target)
            return values

        return forward

    def single(self, observation: Tree) -> NDArray[Any]:
        """Return the outputs for one observation, as a new array ``[outputs]``."""
        return self.batch(leaves_of(self._space).stack([observation]))[0, :]

    def batch(self, observations: Tree, state: RecurrentState | None = None) -> NDArray[Any]:
        """Return the outputs for ``N`` observations, a new array ``[N, outputs]``. `state` is for a recurrent layer."""
        state = RecurrentState() if state is None else state
        layers = self._layers
        if self._table is not None:
            x = self._table.take(self._indices(observations), axis=0)
            x += self._bias
            layers = layers[1:]
        else:
            x = self._features.batch(observations)
        for layer in layers:
            x = layer.batch(x, state)
        return x

    def _slots(self, start: int) -> int:
        """Return the number of additional elements in the buffer of layer `start`, after the inputs (`NumpyLayer.slots`)."""
        return next((layer.slots for layer in self._layers[start:] if not layer.in_place), 0)

    def _writer(
        self, inputs: Array, steps: list[tuple[Step, Array, Array]]
    ) -> tuple[Callable[[Any], None], list[tuple[Step, Array, Array]]]:
        """Return a function that starts the forward pass of an observation, and the `steps` that then remain.

        For Discrete observations, the function looks up the result of the first step in a table. For others, it writes the
        features to `inputs`.
        """
        if self._table is not None:
            table, bias, indices, add, out = self._table, self._bias, self._indices, np.add, steps[0][2]

            def look_up(observation: Any) -> None:
                add(table[indices(observation)], bias, out)

            return look_up, steps[1:]
        features_of = self._features.one

        def write(observation: Any) -> None:
            inputs[...] = features_of(observation)

        return write, steps

    def _indices(self, observations: Any) -> NDArray[np.int64]:
        """Return Discrete observations as indices from 0."""
        space = self._space
        assert isinstance(space, DiscreteSpace)
        index: NDArray[np.int64] = np.asarray(observations, dtype=np.int64) - space.start
        # A negative index would silently read another row.
        if index.size and (index.min() < 0 or index.max() >= space.n):
            raise ObservationError(
                f"a discrete observation is outside {space.start}..{space.start + space.n - 1}: {observations}"
            )
        return index


def _with_writer(write: Callable[[Any], None], steps: list[tuple[Step, Array, Array]], outputs: Array) -> Forward:
    def forward(observation: Any) -> NDArray[Any]:
        write(observation)
        for step, source, target in steps:
            step(source, target)
        return outputs

    return forward
