"""The policy kind ``layers``: a list of layers and an action head, which `PolicySpec.document` describes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from rl4sys_zmq.config.options import parse_options
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.layers.dense import Dense
from rl4sys_zmq.layers.layer import Layer
from rl4sys_zmq.layers.layer_list import LAYERS_VERSION, LayerList, read_layers
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.registry import PolicyEntry
from rl4sys_zmq.values import ColumnSpec, ObservationSpace, PolicySpec, Space, feature_size

STATE = "state"
"""The name of the extra column with the recurrent state before the first step of a segment."""


def layers_spec(
    observation_space: ObservationSpace, action_space: Space, head: HeadParameters, hidden: Sequence[Layer]
) -> PolicySpec:
    """Return the `PolicySpec` of a policy that consists of layers.

    Args:
        observation_space: The space of observations. The first layer gets their features (`rl4sys_zmq.values.features`).
        action_space: The space of actions.
        head: The parameters of the action head.
        hidden: The hidden layers. A dense layer with as many outputs as the head needs follows.

    Raises:
        ConfigError: If a layer does not fit its inputs, or the head does not fit the action space.
    """
    layers = LayerList((*hidden, Dense(units=head.outputs(action_space))), feature_size(observation_space))
    document = {**head.plain(), "layers_version": LAYERS_VERSION, "layers": layers.plain()}
    tensors = (*layers.tensors(), *head.head_tensors(action_space))
    return PolicySpec(observation_space, action_space, "layers", document, tensors, columns=_columns(layers))


@lru_cache(maxsize=16)  # each version of the weights has the same spec
def read_network(spec: PolicySpec) -> tuple[HeadParameters, LayerList]:
    """Check a spec of the kind ``layers``, and return the parameters of its head, and its layers.

    Raises:
        ConfigError: If the list has another version, a kind of layer is not registered, an option is invalid, the outputs do
            not fit the head, the tensors or the extra columns do not match the layers, or the spec has a blob.
    """
    document = dict(spec.document)
    version = document.pop("layers_version", None)
    if version != LAYERS_VERSION:
        raise ConfigError(
            f"the policy has layers of version {version!r}; this release reads version {LAYERS_VERSION}: install the same "
            "release for actors and learner",
            key="layers_version",
        )
    layers = read_layers(document.pop("layers", None), feature_size(spec.observation_space))
    head = HeadParameters(**parse_options(HeadParameters, document))  # type: ignore[arg-type]
    outputs = head.outputs(spec.action_space)
    if layers.shapes[-1] != (outputs,):
        raise ConfigError(f"the layers have outputs of shape {layers.shapes[-1]}; the head needs ({outputs},)", key="layers")
    if spec.tensors != (*layers.tensors(), *head.head_tensors(spec.action_space)):
        raise ConfigError("the tensors of a policy of kind 'layers' do not match its layers", key="tensors")
    if spec.columns != _columns(layers):
        raise ConfigError(
            f"the extra columns of a policy of kind 'layers' do not match its recurrent state of {layers.state_size} elements",
            key="columns",
        )
    if spec.blob:
        raise ConfigError(f"a policy of kind 'layers' has a blob of {len(spec.blob)} bytes; expected none", key="blob")
    return head, layers


def _columns(layers: LayerList) -> tuple[ColumnSpec, ...]:
    """Return the extra columns: the recurrent state before the first step of each segment, if a layer is recurrent."""
    return (ColumnSpec(STATE, (layers.state_size,), "<f4", per="segment"),) if layers.state_size else ()


ENTRY = PolicyEntry(
    name="layers",
    factory="rl4sys_zmq.policies.network_policy:build_layers",
    summary="A list of layers and an action head. Computed in numpy; with convolutions, in onnxruntime.",
    check=read_network,
)
