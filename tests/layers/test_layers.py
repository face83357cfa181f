"""A list of layers computes the same in numpy, torch and ONNX, also with a kind that a plugin adds; what is wrong is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4sys_zmq.config.options import number, option
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.layers import LAYERS, Layer, LayerEntry, LayerList, NumpyLayer, read_layers, register_layer
from rl4sys_zmq.layers.activation import ActivationLayer
from rl4sys_zmq.layers.dense import MOST_COPIED, Dense
from rl4sys_zmq.layers.layer import Array, OnnxNodeWriter, RecurrentState, Shape, Step, TorchForm
from rl4sys_zmq.layers.normalise import Normalise
from rl4sys_zmq.policies.network import LayerNetwork
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, ObservationSpace

BOX = BoxSpace((2, 3))
SPACES: dict[str, ObservationSpace] = {
    "box": BOX,
    "bytes": BoxSpace((6,), "|u1", 0, 255),
    "discrete": DiscreteSpace(6, 2),
    "tree": DictSpace({"at": DiscreteSpace(3), "near": BoxSpace((3,))}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain(Layer):
    """A layer of a plugin: a trained factor for each input, after a fixed one."""

    kind: ClassVar[str] = "gain"
    tensor_prefix: ClassVar[str] = "gains"

    first: float = option(number(0.0, 10.0), 1.0)

    def output(self, inputs: Shape, features: int) -> Shape:
        return inputs

    def tensors(self, inputs: Shape) -> Mapping[str, Shape]:
        return {"factor": inputs}

    def numpy_form(self, tensors: Sequence[Array]) -> NumpyLayer:
        return NumpyGain(tensors[0] * np.float32(self.first))

    def onnx_form(self, graph: OnnxNodeWriter, values: str, names: Sequence[str], features: str, inputs: Shape) -> str:
        scaled = graph.add("Mul", values, graph.constant(np.float32(self.first)))
        return graph.add("Mul", scaled, names[0])

    def torch_form(self, inputs: Shape) -> TorchForm:
        return lambda x, tensors, rows: x * self.first * tensors[0]


class NumpyGain(NumpyLayer):
    in_place = True

    def __init__(self, factor: Array) -> None:
        self._factor = factor

    def batch(self, x: Array, state: RecurrentState) -> Array:
        return x * self._factor

    def step(self, buffer: Array, state: RecurrentState) -> Step:
        return lambda x, out: np.multiply(x, self._factor, out)


@pytest.fixture(autouse=True)
def gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LAYERS, "_entries", {})
    register_layer(LayerEntry(name="gain", layer=Gain))


def layers_of(*layers: Layer, inputs: int = 6) -> LayerList:
    return LayerList((*layers, Dense(units=4)), inputs)


LISTS = {
    "linear": layers_of(),
    "hidden": layers_of(Dense(units=5), ActivationLayer(function="gelu"), Dense(units=7), ActivationLayer(function="elu")),
    "activation first": layers_of(ActivationLayer(function="silu")),
    "two in a row": layers_of(Dense(units=5), Dense(units=3), ActivationLayer(function="tanh"), ActivationLayer(function="relu")),
    "normalised": layers_of(Normalise(), Dense(units=5), ActivationLayer(function="tanh")),
    "large": layers_of(Dense(units=MOST_COPIED // 6 + 1), ActivationLayer(function="relu"), Dense(units=8)),
    "a plugin's": layers_of(Gain(first=0.5), Dense(units=5), Gain(), ActivationLayer(function="leaky_relu")),
}


def weights_of(layers: LayerList) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {t.name: rng.normal(0.0, 0.5, t.shape).astype(np.float32) for t in layers.tensors()}


def observations_of(space: Any, count: int = 5) -> Any:
    rng = np.random.default_rng(2)
    if isinstance(space, DictSpace):
        return {key: observations_of(inner, count) for key, inner in dict(space.spaces).items()}
    if isinstance(space, DiscreteSpace):
        return rng.integers(space.start, space.start + space.n, count)
    assert isinstance(space, BoxSpace)
    if space.dtype == "|u1":
        return rng.integers(0, 4, (count, *space.shape)).astype(np.uint8)
    return rng.normal(size=(count, *space.shape)).astype(np.float32)


def row(observations: Any, index: int) -> Any:
    return {k: v[index] for k, v in observations.items()} if isinstance(observations, dict) else observations[index]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", LISTS)
def test_numpy_torch_and_onnx_compute_the_same(name: str, space: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    from rl4sys_zmq.algorithms.networks.inputs import encode_observations
    from rl4sys_zmq.layers.layer import LayerContext
    from rl4sys_zmq.policies.graphs.session import network_of_layers

    layers, observed = read_layers(LISTS[name].plain(), 6), SPACES[space]
    assert layers == LISTS[name]
    tensors, observations = weights_of(layers), observations_of(observed)
    network = LayerNetwork(observed, layers, list(tensors.values()))
    found = network.batch(observations)
    forward = network.forward()
    for index, outputs in enumerate(found):
        one = row(observations, index)
        np.testing.assert_allclose(forward(one), outputs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(network.single(one), outputs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(network_of_layers(observed, layers, tensors).batch(observations), found, rtol=1e-4, atol=1e-4)
    if "normalised" not in name:
        x = features = encode_observations(observed, observations)
        for layer, own, inputs in zip(layers.layers, layers.divided(list(tensors.values())), layers.shapes, strict=False):
            x = layer.torch_form(inputs)(x, [torch.from_numpy(tensor) for tensor in own], LayerContext(features))
        np.testing.assert_allclose(x.numpy(), found, rtol=1e-4, atol=1e-4)


def test_no_form_changes_its_inputs_or_the_weights() -> None:
    for layers in LISTS.values():
        tensors, observations = weights_of(layers), observations_of(BOX)
        before = {name: tensor.copy() for name, tensor in tensors.items()}
        kept = observations.copy()
        network = LayerNetwork(BOX, layers, list(tensors.values()))
        network.batch(observations)
        forward = network.forward()
        for one in observations:
            forward(one)
        assert np.array_equal(observations, kept)
        assert all(np.array_equal(before[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([{"kind": "normalise"}, {"kind": "normalise"}, {"kind": "dense"}], "units"),
        ([{"kind": "dense", "units": 3}, {"kind": "normalise"}], "needs the 6 features of an observation, as the first layer"),
        ([{"kind": "conv", "filters": 1, "kernel": 2, "stride": 1}], "needs an image of at least 2x2"),
        ([{"kind": "image", "shape": [3, 3]}], "needs at least 9 features"),
        ([{"kind": "image", "shape": [2, 3]}, {"kind": "gru", "units": 2}], "needs inputs of one axis"),
        ([{"kind": "image", "shape": [6]}], "expected 2 or 3 axes"),
        ([{"kind": "concat", "columns": [[4, 9]]}], "needs features up to number 9"),
        ([{"kind": "concat", "columns": [[4, 4]]}], "start below stop"),
        ([{"kind": "activation", "function": "relu"}] * 257, "at most 256 layers"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(document: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_layers(document, 6)


_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 1 << 62), st.text(max_size=3), st.lists(st.integers(-1, 9), max_size=3)
)
_LAYERS = st.fixed_dictionaries(
    {"kind": st.sampled_from(["activation", "concat", "conv", "dense", "gain", "gru", "image", "normalise", "x"])},
    optional=dict.fromkeys(
        ("units", "function", "filters", "kernel", "stride", "shape", "start", "columns", "first", "scaled", "more"), _VALUES
    ),
)


@given(st.lists(_LAYERS, max_size=4), st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_any_list_is_a_network_or_a_refusal(document: list[Any], inputs: int) -> None:
    register_layer(LayerEntry(name="gain", layer=Gain))
    try:
        layers = read_layers(document, inputs)
    except ConfigError:
        return
    assert len(layers.shapes) == len(document) + 1 and read_layers(layers.plain(), inputs) == layers
