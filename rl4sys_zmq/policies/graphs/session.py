"""The forward pass of a policy network in onnxruntime, with the weights as inputs of the graph.

One session (the compiled graph) serves all versions of the weights and all threads. A session computes with one thread, the
calling one, and does not spin. The memory of the intermediate values of all sessions of the process is limited to
`MAX_MEMORY_BYTES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, PolicyError
from rl4sys_zmq.layers.layer_list import LayerList
from rl4sys_zmq.policies.graphs.model import GraphBuilder, OnnxValue, encode_model
from rl4sys_zmq.policies.graphs.reader import decode_model
from rl4sys_zmq.policies.graphs.rules import OUTPUTS, check_graph
from rl4sys_zmq.values import ObservationSpace
from rl4sys_zmq.values.observations import SpaceLeaves, leaves_of

MAX_MEMORY_BYTES = 1 << 30
"""The largest memory of the intermediate values of all graphs in a process, in bytes."""

KEPT_SESSIONS = 4
"""The number of sessions that a process keeps for later versions, besides those in use."""


@dataclass(frozen=True, slots=True, eq=False)
class GraphSession:
    """A graph that onnxruntime has compiled. Several threads can use one session."""

    inference: Any  # onnxruntime.InferenceSession
    observations: tuple[OnnxValue, ...]  # in the order of `SpaceLeaves`
    outputs: int


def observation_inputs(space: ObservationSpace) -> tuple[OnnxValue, ...]:
    """Return the inputs that a graph must have for observations of a space, in the order of `SpaceLeaves`."""
    leaves = leaves_of(space)
    pairs = zip(leaves.names, leaves.spaces, strict=True)
    return tuple([OnnxValue(name, np.dtype(leaf.dtype).name, (None, *leaf.shape)) for name, leaf in pairs])


@lru_cache(maxsize=KEPT_SESSIONS)
def load_session(blob: bytes, space: ObservationSpace, weights: tuple[OnnxValue, ...], outputs: int) -> GraphSession:
    """Return the session of a graph: an existing session of this process, or a new session after all checks.

    The checks include a forward pass with zeros, so a graph that onnxruntime cannot run is found here. Its inputs must be
    those of `observation_inputs` and the weights.

    Raises:
        ConfigError: If onnxruntime is not installed, or the graph breaks a rule or cannot be run.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"this policy needs the package onnxruntime ({exc}): pip install 'rl4sys-zmq[onnx]'", key="kind"
        ) from exc
    graph, observations = decode_model(blob), observation_inputs(space)
    check_graph(graph, (*observations, *weights), outputs)
    # onnxruntime reads what the rules have seen: a parser that reads the bytes in another way cannot matter.
    model = encode_model(graph)
    _limit_memory(onnxruntime)
    # The first session computes every node, within the limit of memory. The second one may compute constants in advance.
    for level in (onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL):
        try:
            inference = onnxruntime.InferenceSession(model, _options(onnxruntime, level), providers=["CPUExecutionProvider"])
            for count in (1, 2):
                zeros = {v.name: np.zeros([count if n is None else n for n in v.shape], v.dtype) for v in observations}
                zeros |= {v.name: np.zeros(cast(tuple[int, ...], v.shape), v.dtype) for v in weights}
                (found,) = inference.run([OUTPUTS], zeros)
        except Exception as exc:  # the errors of onnxruntime have no base class of their own
            raise ConfigError(f"onnxruntime cannot run the graph of the policy: {exc!s:.400}", key="blob") from exc
        if found.shape != (2, outputs):
            raise ConfigError(
                f"the graph of the policy computes an output of shape {found.shape} for 2 observations; expected (2, {outputs})",
                key="blob",
            )
    return GraphSession(inference, observations, outputs)


def _options(onnxruntime: Any, level: Any) -> Any:
    """Return the options of a session that uses one thread and the memory of `_limit_memory`."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised; they need not be in the host's output, too
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.add_session_config_entry("session.use_env_allocators", "1")
    return options


def _limit_memory(onnxruntime: Any) -> None:
    """Limit the memory of all sessions of this process together. A second call changes nothing."""
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    settings = onnxruntime.OrtArenaCfg({"max_mem": MAX_MEMORY_BYTES, "arena_extend_strategy": 1})
    onnxruntime.create_and_register_allocator(memory, settings)


class OnnxNetwork:
    """A policy network in onnxruntime with the weights of one version. It implements `OutputNetwork`.

    The weights are views into the buffers of the version's snapshot, which this object keeps alive. All methods that compute
    raise `PolicyError` if onnxruntime cannot run the graph.
    """

    def __init__(
        self,
        model: bytes,
        space: ObservationSpace,
        weights: tuple[OnnxValue, ...],
        outputs: int,
        tensors: Mapping[str, NDArray[Any]],
    ) -> None:
        self._session = load_session(model, space, weights, outputs)
        self._leaves: SpaceLeaves = leaves_of(space)
        self._weights = {weight.name: np.ascontiguousarray(tensors[weight.name]) for weight in weights}

    def single(self, observation: Any) -> NDArray[Any]:
        """Return the outputs for one observation, as a new array ``[outputs]``."""
        arrays = [np.asarray(leaf)[None] for leaf in self._leaves.flatten(observation)]
        return cast(NDArray[Any], self._run(arrays)[0])

    def batch(self, observations: Any) -> NDArray[Any]:
        """Return the outputs for observations ``[N, *obs]``, as a new array ``[N, outputs]``."""
        return self._run(self._leaves.flatten(observations))

    def _run(self, arrays: Sequence[Any]) -> NDArray[Any]:
        feed = dict(self._weights)
        for value, array in zip(self._session.observations, arrays, strict=True):
            feed[value.name] = np.ascontiguousarray(array, value.dtype).reshape(len(array), *_lengths(value))
        try:
            return cast(NDArray[Any], self._session.inference.run([OUTPUTS], feed)[0])
        except Exception as exc:  # the errors of onnxruntime have no base class of their own
            raise _failed(exc) from exc

    def forward(self) -> Callable[[Any], NDArray[Any]]:
        """Return a faster form of `single` for one thread, with buffers that are reused for the observation and the outputs."""
        import onnxruntime

        session, bound, flatten = self._session, onnxruntime.OrtValue.ortvalue_from_numpy, self._leaves.flatten
        buffers = {value.name: np.zeros((1, *_lengths(value)), value.dtype) for value in session.observations}
        outputs = np.empty((1, session.outputs), np.float32)
        values = {name: bound(array) for name, array in (*buffers.items(), *self._weights.items())}
        result = bound(outputs)
        binding = session.inference.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output(OUTPUTS, result)
        kept = (binding, values, result, buffers, self)  # the binding has no references to the arrays
        inputs = [array[0] if array.ndim > 1 else array for array in buffers.values()]
        first = inputs[0] if self._leaves.structure is None else None
        run = session.inference.run_with_iobinding
        row: NDArray[Any] = outputs[0]

        def forward(observation: Any) -> NDArray[Any]:
            if first is not None:
                first[...] = observation
            else:
                for array, leaf in zip(inputs, flatten(observation), strict=True):
                    array[...] = leaf
            try:
                run(kept[0])
            except Exception as exc:  # the errors of onnxruntime have no base class of their own
                raise _failed(exc) from exc
            return row

        return forward


@lru_cache(maxsize=16)
def _model_of(space: ObservationSpace, layers: LayerList) -> tuple[bytes, tuple[OnnxValue, ...]]:
    """Return the ONNX model of a network whose weights are inputs of the graph, and the descriptions of these inputs."""
    graph = GraphBuilder()
    weights = tuple([OnnxValue(tensor.name, tensor.dtype, tensor.shape) for tensor in layers.tensors()])
    graph.add("Identity", graph.layers(space, layers, [weight.name for weight in weights]), output=OUTPUTS)
    outputs = OnnxValue(OUTPUTS, "float32", (None, layers.outputs))
    return encode_model(graph.graph([*observation_inputs(space), *weights], [outputs])), weights


def network_of_layers(space: ObservationSpace, layers: LayerList, tensors: Mapping[str, NDArray[Any]]) -> OnnxNetwork:
    """Return a network of layers that onnxruntime computes, with the weights `tensors`.

    Raises:
        ConfigError: If onnxruntime is not installed, or a layer has no form in ONNX.
    """
    model, weights = _model_of(space, layers)
    return OnnxNetwork(model, space, weights, layers.outputs, tensors)


def _failed(exc: Exception) -> PolicyError:
    return PolicyError(f"onnxruntime cannot run the graph of the policy: {exc!s:.400}")


def _lengths(value: OnnxValue) -> tuple[int, ...]:
    """Return the shape of one observation, without the first axis ``N``."""
    return cast(tuple[int, ...], value.shape[1:])
