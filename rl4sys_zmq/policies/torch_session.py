"""The forward pass of a policy network in torch, from an ONNX graph whose weights are inputs.

Only an actor with ``run_with: torch`` imports this module. It needs torch, and not onnxruntime. A graph follows the same rules as
for onnxruntime (`rl4sys_zmq.policies.onnx_rules`). Its nodes run one after the other as functions of torch, without autograd.

A graph comes from a peer. So before torch computes it for a number of observations for the first time, all shapes are computed on
the device ``meta``, which has no memory. A graph whose intermediate values would take more than `MAX_MEMORY_BYTES` is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from math import prod
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.graph_network import GraphNetwork
from rl4sys_zmq.policies.onnx_model import OnnxGraph, OnnxNode, OnnxValue
from rl4sys_zmq.policies.onnx_reader import decode_model
from rl4sys_zmq.policies.onnx_rules import OUTPUTS, SHAPED, check_graph
from rl4sys_zmq.policies.onnx_session import KEPT_SESSIONS, MAX_MEMORY_BYTES
from rl4sys_zmq.policies.torch_attributes import tensor_of
from rl4sys_zmq.policies.torch_operators import Function, compiled
from rl4sys_zmq.values import ObservationSpace

__all__ = ["TorchGraph", "TorchNetwork", "load_graph", "prepare"]

_autocasts: Callable[[], bool] = (
    partial(torch.is_autocast_enabled, "cpu") if hasattr(torch, "get_autocast_dtype") else torch.is_autocast_cpu_enabled
)
"""Return True if this thread is in a block of ``torch.autocast`` for the CPU. Before torch 2.4, the function had another name."""


def _full_precision() -> AbstractContextManager[object]:
    """Return a context in which ``torch.autocast``, which the host can use around its calls, changes no types."""
    return torch.autocast("cpu", enabled=False) if _autocasts() else nullcontext()


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One node of a graph.

    Attributes:
        node: The node.
        function: The function that computes it.
        data: True if its outputs depend on observations or weights, and not only on shapes and constants.
        last: The values that no later step takes.
    """

    node: OnnxNode
    function: Function
    data: bool
    last: tuple[str, ...]

    def outputs(self, found: Tensor | tuple[Tensor, ...]) -> Iterable[tuple[str, Tensor]]:
        """Return the names and values of the node's outputs."""
        tensors = (found,) if isinstance(found, Tensor) else found
        names = self.node.outputs if self.node.operator == "Split" else self.node.outputs[:1]
        if len(tensors) != len(names):
            raise ValueError(f"an operator {self.node.operator} computes {len(tensors)} values; expected {len(names)}")
        return zip(names, tensors, strict=True)


class TorchGraph:
    """A graph whose nodes are functions of torch. Several threads can use it.

    Attributes:
        observations: The descriptions of the inputs for observations, in the order of `SpaceLeaves`.
        known: The values that depend only on constants and on the shapes for one observation, by name.
    """

    def __init__(self, graph: OnnxGraph, observations: tuple[OnnxValue, ...]) -> None:
        """Find the functions of all nodes, and check the memory for one observation.

        Raises:
            ValueError: If torch cannot compute a node, or a value takes more than `MAX_MEMORY_BYTES`.
        """
        self.observations = observations
        self._inputs = graph.inputs
        self._constants = {name: tensor_of(array) for name, array in graph.constants.items()}
        self._steps = _steps(graph)
        with _full_precision():
            self.known = self._measured(1)
        self._checked = 1

    def check(self, rows: int) -> None:
        """Check the memory that the intermediate values of a number of observations take, unless more have been checked.

        Raises:
            ValueError: If that memory is larger than `MAX_MEMORY_BYTES`.
        """
        if rows > self._checked:
            self._measured(rows)
            self._checked = max(self._checked, rows)

    def _measured(self, rows: int) -> dict[str, Tensor]:
        """Check the memory for a number of observations. Return the values that depend only on constants and shapes, by name."""

        def shaped(value: OnnxValue) -> Tensor:
            lengths = [rows if length is None else length for length in value.shape]
            return torch.empty(lengths, dtype=getattr(torch, value.dtype), device="meta")

        known = dict(self._constants)
        shapes = {name: tensor.to("meta") for name, tensor in known.items()} | {v.name: shaped(v) for v in self._inputs}
        inputs, used = {value.name for value in self._inputs}, 0
        for step in self._steps:
            node, places = step.node, SHAPED.get(step.node.operator, ())
            values = [(known if place in places else shapes)[name] if name else None for place, name in enumerate(node.inputs)]
            found = dict(step.outputs(step.function(*values)))
            used += sum(_nbytes(tensor) for tensor in found.values())
            if used > MAX_MEMORY_BYTES:
                raise ValueError(f"its intermediate values take more than {MAX_MEMORY_BYTES} bytes for {rows} observations")
            if not step.data:  # small values, which determine shapes; they stay
                if node.operator != "Shape":
                    found = dict(step.outputs(step.function(*(known[name] if name else None for name in node.inputs))))
                known.update(found)
            shapes.update((name, tensor.to("meta")) for name, tensor in found.items())
            used -= sum(_nbytes(shapes[name]) for name in step.last if name not in inputs and name not in known)
        return known

    def run(self, feed: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> Tensor:
        """Return the output ``[N, outputs]`` for all inputs.

        Args:
            feed: All inputs, by name.
            known: Values by name that need no computation. They must belong to the same number of observations.
        """
        values = {**self._constants, **known, **feed}
        with torch.inference_mode(), _full_precision():
            for step in self._steps:
                if step.node.outputs[0] not in values:
                    found = step.function(*[values[name] if name else None for name in step.node.inputs])
                    values.update(step.outputs(found))
                    for name in step.last:
                        values.pop(name, None)
        return values[OUTPUTS]


def _steps(graph: OnnxGraph) -> tuple[_Step, ...]:
    """Return the steps of a graph, in the order of its nodes."""
    later = {OUTPUTS}
    last: list[tuple[str, ...]] = []
    for node in reversed(graph.nodes):
        here = {name for name in (*node.inputs, *node.outputs) if name}
        last.append(tuple(here - later))
        later |= here
    data = {value.name for value in graph.inputs}
    steps = []
    for node, names in zip(graph.nodes, reversed(last), strict=True):
        depends = node.operator != "Shape" and any(name in data for name in node.inputs)
        data.update(name for name in node.outputs if name and depends)
        steps.append(_Step(node, compiled(node, graph.opset), depends, names))
    return tuple(steps)


def _nbytes(tensor: Tensor) -> int:
    """Return the size of a tensor in bytes, also if torch cannot represent it."""
    return prod(tensor.shape) * tensor.element_size()


@cache
def _one_thread_after_a_fork() -> None:
    """Let torch compute with one thread in children that this process forks: its other threads do not exist there."""
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


@cache
def prepare() -> None:
    """Load the part of torch that computes shapes, which takes a second. Otherwise the first graph would load it."""
    torch.tanh(torch.empty(1, dtype=torch.float32, device="meta"))


@lru_cache(maxsize=KEPT_SESSIONS)
def load_graph(blob: bytes, observations: tuple[OnnxValue, ...], weights: tuple[OnnxValue, ...], outputs: int) -> TorchGraph:
    """Return a graph in torch: the one that this process has already, or a new one after all checks.

    The checks include a forward pass with zeros, so a graph that torch cannot run is found here.

    Args:
        blob: The ONNX model.
        observations: The inputs for observations; the first axis has no fixed length.
        weights: The inputs for weights.
        outputs: The number of outputs of the network.

    Raises:
        ConfigError: If the graph breaks a rule or cannot be run.
    """
    _one_thread_after_a_fork()
    graph = decode_model(blob)
    check_graph(graph, (*observations, *weights), outputs)
    try:
        made = TorchGraph(graph, observations)
        for rows in (1, 2):
            made.check(rows)
            zeros = {v.name: np.zeros([rows if n is None else n for n in v.shape], v.dtype) for v in (*observations, *weights)}
            found = made.run({name: torch.from_numpy(array) for name, array in zeros.items()}, {})
    except Exception as exc:  # the errors of torch have no base class of their own
        raise ConfigError(f"torch cannot run the graph of the policy: {exc!s:.400}", key="blob") from exc
    if (tuple(found.shape), found.dtype) != ((2, outputs), torch.float32):
        raise ConfigError(
            f"the graph of the policy computes a {found.dtype} output of shape {tuple(found.shape)} for 2 observations; expected "
            f"torch.float32 and (2, {outputs})",
            key="blob",
        )
    return made


class TorchNetwork(GraphNetwork):
    """A policy network in torch with the weights of one version.

    It has a copy of the weights: torch has no tensors that cannot be written to.
    """

    library = "torch"

    def __init__(self, graph: TorchGraph, space: ObservationSpace, weights: Mapping[str, NDArray[Any]]) -> None:
        """Copy the weights.

        Args:
            graph: The graph.
            space: The space of observations.
            weights: The tensors that the graph takes, by name.
        """
        super().__init__(graph.observations, space)
        self._graph = graph
        self._weights = {name: tensor_of(tensor) for name, tensor in weights.items()}

    def _compute(self, rows: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        self._graph.check(len(next(iter(rows.values()))))
        copies = {name: tensor_of(array) for name, array in rows.items()}
        return self._graph.run({**self._weights, **copies}, {}).numpy()

    def _bound(self, buffers: Mapping[str, NDArray[Any]]) -> Callable[[], NDArray[Any]]:
        """Share the memory of the buffers with torch. Values that depend only on shapes are computed once."""
        graph = self._graph
        feed = {**self._weights, **{name: torch.from_numpy(array) for name, array in buffers.items()}}
        return lambda: cast(NDArray[Any], graph.run(feed, graph.known).numpy()[0])
