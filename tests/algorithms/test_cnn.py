"""Tests of the network ``cnn``: its layers by the size of images, torch and onnxruntime against a slow twin, and refusals."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rl4sys_zmq.algorithms import make_algorithm, planned_policy
from rl4sys_zmq.algorithms.action_distributions import Categorical
from rl4sys_zmq.algorithms.networks import choose_network
from rl4sys_zmq.algorithms.networks.inputs import encode_observations
from rl4sys_zmq.algorithms.networks.layer_networks import SharedLayerNetworks
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.testing import check_policy
from rl4sys_zmq.values import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    ObservationSpace,
    PolicySpec,
    Segment,
    Space,
)
from rl4sys_zmq.values.features import feature_layout
from rl4sys_zmq.values.spaces import FlatSpace, MultiBinarySpace, MultiDiscreteSpace, TupleSpace

from .test_resume import segments

ACTED, CONTINUOUS = DiscreteSpace(3, 1), BoxSpace((2,), low=-1.0, high=1.0)
CAR = DictSpace(
    {
        "camera": BoxSpace((6, 6, 2), low=0, high=255, dtype="|u1"),
        "flags": MultiBinarySpace((2,)),
        "gear": DiscreteSpace(4, -1),
        "levels": MultiDiscreteSpace((2, 3)),
        "speed": BoxSpace((2,)),
    }
)
SMALL: dict[str, Any] = {"kind": "cnn", "channels": [3, 4], "kernels": [3, 2], "strides": [2, 1], "hidden_sizes": [6]}


def network_of(spec: PolicySpec, network: dict[str, Any] = SMALL) -> SharedLayerNetworks:
    found = choose_network(network, {}).actor_critic(spec)
    assert isinstance(found, SharedLayerNetworks)
    return found


def image(*shape: int, dtype: str = "|u1") -> BoxSpace:
    return BoxSpace(shape, low=0, high=255 if dtype == "|u1" else 1, dtype=dtype)


def spec_of(space: ObservationSpace, actions: Space = ACTED, network: Any = SMALL, algorithm: str = "PPO") -> PolicySpec:
    spec = planned_policy(algorithm, space, actions, {"network": network})
    assert spec is not None
    return spec


def slow_convolutions(images: NDArray[np.float64], weights: list[NDArray[Any]], first: bool = False) -> NDArray[np.float64]:
    """Return the features ``[N, n]`` of the convolutions of `SMALL` for scaled images ``[N, *image]``, with a loop over each
    pixel.

    The weights are those of the convolutions and their biases in turn. With `first`, the colours are in the first axis of an
    image, else in the last.
    """
    values = images
    if values.ndim == 3:
        values = values[:, None]
    elif not first:
        values = np.moveaxis(values, -1, 1)
    for index, stride in enumerate(SMALL["strides"]):
        weight, bias = (array.astype(np.float64) for array in weights[2 * index : 2 * index + 2])
        kernel = weight.shape[2]
        rows, columns = ((size - kernel) // stride + 1 for size in values.shape[2:])
        out = np.empty((len(values), len(weight), rows, columns))
        for row in range(rows):
            for column in range(columns):
                y, x = row * stride, column * stride
                patch = values[:, :, y : y + kernel, x : x + kernel]
                out[:, :, row, column] = np.einsum("ncij,ocij->no", patch, weight) + bias
        values = np.maximum(out, 0.0)
    return values.reshape(len(values), -1)


def slow_outputs(space: BoxSpace, tensors: Any, images: NDArray[Any], first: bool) -> NDArray[np.float64]:
    """Return the outputs ``[N, n]`` of the network `SMALL`."""
    weights = [tensors[f"convolutions.{index}.{part}"] for index in range(2) for part in ("weight", "bias")]
    values = slow_convolutions(images.astype(np.float64) / (255.0 if space.dtype == "|u1" else 1.0), weights, first)
    values = np.maximum(values @ tensors["layers.0.weight"].T + tensors["layers.0.bias"], 0.0)
    outputs: NDArray[np.float64] = values @ tensors["layers.1.weight"].T + tensors["layers.1.bias"]
    return outputs


@pytest.mark.parametrize(
    ("space", "first"),
    [
        (image(8, 9, 2), False),
        (image(2, 9, 8), True),
        (image(8, 9), True),
        (image(7, 7, 3, dtype="<f4"), False),
        (BoxSpace((2, 6, 6), dtype="<f8"), True),
    ],
    ids=str,
)
def test_the_actor_and_the_learner_compute_what_the_slow_twin_does(space: BoxSpace, first: bool) -> None:
    pytest.importorskip("onnxruntime")
    algorithm = make_algorithm("PPO", space, ACTED, {"network": SMALL}, 1)
    spec, rng = algorithm.spec(), np.random.default_rng(2)
    tensors = {t.name: rng.normal(0.0, 0.3, t.shape).astype(np.float32) for t in spec.tensors}
    images = rng.integers(0, 255, (5, *space.shape)) if space.dtype == "|u1" else rng.normal(size=(5, *space.shape))
    images = images.astype(space.dtype)
    expected = slow_outputs(space, tensors, images, first)

    def outputs(views: Any, observations: Any) -> Any:
        network = network_of(spec)
        for leaf, name in zip(network.views(network.flat)[0], views, strict=True):
            leaf.copy_(torch.from_numpy(views[name].copy()))
        with torch.no_grad():
            both = network(encode_observations(space, observations))
        assert torch.equal(both[0], network.one(0, encode_observations(space, observations)))
        return both[0]

    np.testing.assert_allclose(outputs(tensors, images), expected, rtol=1e-4, atol=1e-5)
    check_policy(
        spec,
        tensors,
        log_probs=lambda views, observed, raw: np.asarray(
            Categorical(outputs(views, observed)).log_probs(torch.from_numpy(np.asarray(raw) - ACTED.start))
        ),
    )


@pytest.mark.parametrize(
    ("shape", "channels", "features"),
    [
        ((84, 84, 4), (32, 64, 64), 3136),
        ((3, 36, 40), (32, 64, 64), 64),
        ((24, 24, 1), (16, 32, 32), 288),
        ((10, 10), (16, 32), 288),
    ],
)
def test_the_layers_follow_from_the_size_of_the_image(shape: Any, channels: tuple[int, ...], features: int) -> None:
    spec = spec_of(image(*shape), network="cnn")
    layers = [layer["filters"] for layer in spec.document["layers"] if layer["kind"] == "conv"]
    assert tuple(layers) == channels
    assert {t.name: t.shape for t in spec.tensors}["layers.0.weight"] == (128, features)


@pytest.mark.parametrize(
    ("network", "space", "problem"),
    [
        ("cnn", BoxSpace((4,)), "needs images.*use mlp"),
        ("cnn", DiscreteSpace(4), "needs images"),
        ("cnn", DictSpace({"a": image(9, 9), "b": image(9, 9)}), "needs one image, .* 2 Boxes .*, of which 2 are uint8; join"),
        ("cnn", DictSpace({"a": BoxSpace((9, 9)), "b": BoxSpace((9, 9))}), "of which 0 are uint8"),
        ("cnn", DictSpace({"a": DiscreteSpace(2)}), "needs images"),
        ("cnn", image(4, 4, 3), r"needs larger images than 4x4: a filter of 3x3 gets 2x2"),
        ("cnn", image(10, 10, 10), "axes: first or axes: last"),
        ({"kind": "cnn", "channels": [8]}, image(9, 9), "channels, kernels and strides of equal lengths"),
        ({"kind": "cnn", "channels": [8], "kernels": [3, 3], "strides": [1]}, image(9, 9), "equal lengths"),
        ({"kind": "cnn", "channels": [8], "kernels": [3], "strides": [0]}, image(9, 9), "integers from 1 to"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(network: Any, space: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        planned_policy("PPO", space, ACTED, {"network": network})


def test_a_large_image_without_convolutions_is_told_about_them() -> None:
    with pytest.raises(ConfigError, match="choose network: cnn"):
        planned_policy("PPO", image(96, 96, 3), ACTED, {})
    assert spec_of(image(96, 96, 3), network="cnn").kind == "layers"


def test_features_beside_an_image_are_joined_after_the_convolutions() -> None:
    pytest.importorskip("onnxruntime")
    spec = spec_of(CAR)
    assert spec.document["layers"][-4] == {"kind": "concat", "columns": [[72, 85]]}
    assert [tensor.shape for tensor in spec.tensors][4] == (6, 4 + 13)
    network = network_of(spec)

    def log_probs(views: Any, observed: Any, raw: Any) -> Any:
        others = feature_layout(CAR).batch(observed)[:, 72:]  # after 6 x 6 x 2 pixels
        convolutions = [views[f"convolutions.{k}.{part}"] for k in range(2) for part in ("weight", "bias")]
        joined = np.concatenate([slow_convolutions(observed["camera"] / 255.0, convolutions), others], axis=1)
        hidden = np.maximum(joined @ views["layers.0.weight"].T + views["layers.0.bias"], 0.0)
        expected = hidden @ views["layers.1.weight"].T + views["layers.1.bias"]
        network.flat[network.parts[0]] = torch.from_numpy(np.concatenate([view.ravel() for view in views.values()]))
        with torch.no_grad():
            outputs = network.one(0, encode_observations(CAR, observed))
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
        return Categorical(outputs).log_probs(torch.from_numpy(np.asarray(raw) - ACTED.start)).numpy()

    check_policy(spec, log_probs=log_probs)


@pytest.mark.parametrize(
    "space",
    [
        DictSpace({"a": BoxSpace((3, 2)), "z": image(6, 6)}),  # the only uint8 array is the image
        DictSpace({"a": DiscreteSpace(3), "z": BoxSpace((6, 6))}),  # the only array of two axes
        TupleSpace((BoxSpace((4,)), DictSpace({"deep": image(6, 6, 3)}), MultiDiscreteSpace((2, 2)))),
    ],
    ids=["uint8", "two axes", "nested"],
)
def test_an_image_can_stand_anywhere_in_an_observation(space: Any) -> None:
    pytest.importorskip("onnxruntime")
    spec = spec_of(space, network="cnn")
    network = network_of(spec, {"kind": "cnn"})

    def log_probs(views: Any, observed: Any, raw: Any) -> Any:
        network.flat[network.parts[0]] = torch.from_numpy(np.concatenate([view.ravel() for view in views.values()]))
        with torch.no_grad():
            outputs = network.one(0, encode_observations(space, observed))
        return Categorical(outputs).log_probs(torch.from_numpy(np.asarray(raw) - ACTED.start)).numpy()

    check_policy(spec, log_probs=log_probs)


def pictures(space: BoxSpace, actions: FlatSpace, seed: int) -> Iterator[Segment]:
    rng = np.random.default_rng(seed)
    for segment in segments(actions, seed):
        shape = (len(segment.observations), *space.shape)
        yield replace(segment, observations=rng.integers(0, 256, shape).astype(np.uint8))
