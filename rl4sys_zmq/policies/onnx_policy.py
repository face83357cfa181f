"""The policy kind ``onnx``: a network as an ONNX graph, with the weights as inputs of the graph.

`PolicySpec.blob` has the ONNX model, which onnxruntime computes. The model is sent once, with the spec. A new version of the
weights uses the same compiled graph, so it costs no compilation. The inputs of the graph are:

- the arrays of an observation, with the names of `SpaceLeaves.names`, such as ``observations``, and a first axis ``N``
- the tensors of the spec by name, except those of the head (`HeadParameters.head_tensors`)

The output is ``outputs``, float32 ``[N, outputs]``. `HeadParameters` describes what the head does with it.
`rl4sys_zmq.policies.graphs.rules` describes what a graph may contain.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl4sys_zmq.config.options import parse_options
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.interfaces import Policy
from rl4sys_zmq.policies.graphs.model import OnnxValue
from rl4sys_zmq.policies.graphs.session import OnnxNetwork, load_session
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.network_policy import NetworkPolicy
from rl4sys_zmq.policies.registry import PolicyEntry
from rl4sys_zmq.values import ObservationSpace, PolicySnapshot, PolicySpec, Space, TensorSpec

__all__ = ["onnx_spec"]


def onnx_spec(
    observation_space: ObservationSpace,
    action_space: Space,
    head: HeadParameters,
    weights: Sequence[TensorSpec],
    model: bytes,
) -> PolicySpec:
    """Return the `PolicySpec` of a policy of the kind ``onnx``. This function does not check the graph.

    Args:
        observation_space: The space of observations.
        action_space: The space of actions.
        head: The parameters of the action head.
        weights: The inputs of the graph that are weights.
        model: The ONNX model.

    Raises:
        ConfigError: If the head does not fit the action space.
    """
    tensors = (*weights, *head.head_tensors(action_space))
    return PolicySpec(observation_space, action_space, "onnx", head.plain(), tensors, model)


def network_inputs(spec: PolicySpec) -> tuple[HeadParameters, tuple[OnnxValue, ...], int]:
    """Return the parameters of the head, the weights among the graph's inputs, and the number of outputs of the network.

    Raises:
        ConfigError: If the document is invalid, does not fit the spaces or the tensors, or the spec has extra columns.
    """
    if spec.columns:
        raise ConfigError(f"an onnx policy has no extra columns, but its spec has {len(spec.columns)}", key="columns")
    head = HeadParameters(**parse_options(HeadParameters, spec.document))  # type: ignore[arg-type]
    outputs, own = head.outputs(spec.action_space), head.head_tensors(spec.action_space)
    count = len(spec.tensors) - len(own)
    if count < 1 or spec.tensors[count:] != own:
        names = ", ".join(f"{tensor.name} {tensor.shape}" for tensor in own) or "nothing"
        raise ConfigError(f"the tensors of an onnx policy must be weights, and then those of its head: {names}", key="tensors")
    weights = spec.tensors[:count]
    if empty := [tensor.name for tensor in weights if not tensor.size]:
        raise ConfigError(f"the tensor {empty[0]!r:.80} of an onnx policy has no elements", key="tensors")
    return head, tuple(OnnxValue(tensor.name, tensor.dtype, tensor.shape) for tensor in weights), outputs


def check_onnx(spec: PolicySpec) -> None:
    """Check a spec of the kind ``onnx``, and compile its graph.

    Raises:
        ConfigError: If onnxruntime is not installed, or the spec or its graph is invalid.
    """
    _, weights, outputs = network_inputs(spec)
    load_session(spec.blob, spec.observation_space, weights, outputs)


def build_onnx(spec: PolicySpec, snapshot: PolicySnapshot) -> Policy:
    """Build the policy that a spec of the kind ``onnx`` describes. The policy uses views of the weights.

    Raises:
        ConfigError: If onnxruntime is not installed, the spec or its graph is invalid, or `snapshot` has another size.
    """
    head, weights, outputs = network_inputs(spec)
    tensors = spec.views(snapshot.flat, snapshot.others)
    return NetworkPolicy(spec, head, snapshot, OnnxNetwork(spec.blob, spec.observation_space, weights, outputs, tensors))


ENTRY = PolicyEntry(
    name="onnx",
    factory=build_onnx,
    summary="A network as an ONNX graph with the weights as inputs, such as a convolutional network. Needs onnxruntime.",
    check=check_onnx,
)
