"""The part of a policy network from an ONNX graph that does not depend on the library that computes the graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import PolicyError
from rl4sys_zmq.policies.onnx_model import OnnxValue
from rl4sys_zmq.values import ObservationSpace
from rl4sys_zmq.values.observations import SpaceLeaves, leaves_of

__all__ = ["GraphNetwork"]


class GraphNetwork(ABC):
    """A policy network that a library computes from a graph, with the weights of one version.

    It goes from observations to the outputs of the last layer. Several threads can use it. A subclass adds the library.

    Attributes:
        library: The name of the library.
        fused: The network itself, which has the method `forward`.
    """

    library: str

    def __init__(self, observations: tuple[OnnxValue, ...], space: ObservationSpace) -> None:
        """Set the inputs.

        Args:
            observations: The descriptions of the graph's inputs for observations, in the order of `SpaceLeaves`.
            space: The space of observations.
        """
        self._observations = observations
        self._leaves: SpaceLeaves = leaves_of(space)
        self.fused = self

    def single(self, observation: Any) -> NDArray[Any]:
        """Return the network's outputs for one observation, as a new array ``[outputs]``.

        Raises:
            PolicyError: If the library cannot run the graph.
        """
        arrays = [np.asarray(leaf)[None] for leaf in self._leaves.flatten(observation)]
        return cast(NDArray[Any], self._run(arrays)[0])

    def batch(self, observations: Any) -> NDArray[Any]:
        """Return the network's outputs for observations ``[N, *obs]``, as a new array ``[N, outputs]``.

        Raises:
            PolicyError: If the library cannot run the graph.
        """
        return self._run(self._leaves.flatten(observations))

    def _run(self, arrays: Sequence[Any]) -> NDArray[Any]:
        rows = {}
        for value, array in zip(self._observations, arrays, strict=True):
            rows[value.name] = np.ascontiguousarray(array, value.dtype).reshape(len(array), *_lengths(value))
        try:
            return self._compute(rows)
        except Exception as exc:  # the errors of these libraries have no base class of their own
            raise self._error(exc) from exc

    def forward(self) -> Callable[[Any], NDArray[Any]]:
        """Return a function that computes the forward pass for one observation, for one thread.

        The buffers of the observation are used again by each call. The function raises a `PolicyError` if the library cannot run
        the graph.
        """
        buffers = {value.name: np.zeros((1, *_lengths(value)), value.dtype) for value in self._observations}
        compute, flatten = self._bound(buffers), self._leaves.flatten
        inputs = [array[0] if array.ndim > 1 else array for array in buffers.values()]
        first = inputs[0] if self._leaves.structure is None else None

        def forward(observation: Any) -> NDArray[Any]:
            if first is not None:
                first[...] = observation
            else:
                for array, leaf in zip(inputs, flatten(observation), strict=True):
                    array[...] = leaf
            try:
                return compute()
            except Exception as exc:  # the errors of these libraries have no base class of their own
                raise self._error(exc) from exc

        return forward

    def _error(self, exc: Exception) -> PolicyError:
        return PolicyError(f"{self.library} cannot run the graph of the policy: {exc!s:.400}")

    @abstractmethod
    def _compute(self, rows: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the outputs ``[N, outputs]`` for ``N`` observations, as a new array.

        Args:
            rows: The inputs for observations ``[N, *input]``, by name: contiguous, with the dtypes of the graph.
        """

    @abstractmethod
    def _bound(self, buffers: Mapping[str, NDArray[Any]]) -> Callable[[], NDArray[Any]]:
        """Return a function that computes the outputs ``[outputs]`` for the observation that is in the buffers at each call.

        Args:
            buffers: The inputs for one observation ``[1, *input]``, by name.
        """


def _lengths(value: OnnxValue) -> tuple[int, ...]:
    """Return the shape of one observation, without the first axis ``N``."""
    return cast(tuple[int, ...], value.shape[1:])
