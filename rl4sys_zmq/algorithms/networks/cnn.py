"""The options of the kind of network ``cnn``, convolutions before a perceptron, and its graph for actors. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl4sys_zmq.config.options import check_fields, one_of, option, optional, sizes
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.network_entry import NetworkEntry, PolicyRequirements
from rl4sys_zmq.policies.graphs.model import GraphBuilder, OnnxValue, encode_model
from rl4sys_zmq.policies.graphs.session import observation_inputs
from rl4sys_zmq.policies.onnx_policy import onnx_spec
from rl4sys_zmq.values import ACTIVATIONS, BoxSpace, ObservationSpace, PolicySpec, TensorSpec
from rl4sys_zmq.values.features import feature_layout
from rl4sys_zmq.values.observations import leaves_of

PIXEL_SCALE = float(np.float32(1.0 / 255.0))
"""The factor of the pixels of a uint8 image. Images of other dtypes are not scaled."""

NATURE = ((32, 64, 64), (8, 4, 3), (4, 2, 1))
"""The channels, kernels and strides for images of at least 36 pixels on each side (Mnih et al. 2015)."""
MEDIUM = ((16, 32, 32), (3, 3, 3), (2, 2, 1))
"""The same for images of at least 15 pixels on each side."""
SMALL = ((16, 32), (3, 3), (1, 2))
"""The same for smaller images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CNNOptions:
    """The options of a convolutional network. Features beside the image are joined to those of the last convolution.

    Raises:
        ConfigError: If only some of `channels`, `kernels` and `strides` are given, or their lengths differ.
    """

    channels: tuple[int, ...] | None = option(
        optional(sizes), None, doc="number of filters of each convolution; null: by the size of the image"
    )
    kernels: tuple[int, ...] | None = option(
        optional(sizes),
        None,
        doc="width and height of the filters of each convolution, in pixels; null: by the size of the image",
    )
    strides: tuple[int, ...] | None = option(
        optional(sizes), None, doc="step of each convolution, in pixels; null: by the size of the image"
    )
    hidden_sizes: tuple[int, ...] = option(sizes, (128,), doc="widths of the hidden layers after the convolutions")
    activation: str = option(one_of(*ACTIVATIONS), "relu", doc="activation function after each convolution and hidden layer")
    axes: str = option(
        one_of("auto", "first", "last"), "auto", doc="place of the colours in an image of three axes; auto: the shortest axis"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        given = [value for value in (self.channels, self.kernels, self.strides) if value is not None]
        if given and (len(given) < 3 or len({len(value) for value in given}) > 1 or not given[0]):
            raise ConfigError(
                "a network of kind 'cnn' needs channels, kernels and strides of equal lengths, or none of them; it has "
                f"channels {self.channels}, kernels {self.kernels} and strides {self.strides}",
                key="algorithm_parameters.network",
            )


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution, without padding.

    Attributes:
        into: The number of channels of its input.
        out: The number of its filters.
        kernel: The width and the height of the filters.
        stride: The step between two places of a filter.
    """

    into: int
    out: int
    kernel: int
    stride: int


@dataclass(frozen=True, slots=True)
class CNNLayers:
    """The layers of a convolutional network for one observation space.

    Attributes:
        image: The number of the image among the arrays of an observation (`SpaceLeaves`).
        shape: The shape of the image.
        start: The position of the first pixel among the features of an observation.
        beside: The number of features beside the image.
        order: The permutation of the axes ``[N, *shape]`` that gives ``[N, channels, height, width]``; None for no change.
        channels: The number of channels of an image.
        height, width: The size of an image.
        scale: The factor of the pixels; 1 for none.
        convolutions: The convolutions.
        dense: The number of inputs of each layer after the convolutions. The first one gets the features of the convolutions, and
            then those beside the image. The others get the units of the layer before.
    """

    image: int
    shape: tuple[int, ...]
    start: int
    beside: int
    order: tuple[int, ...] | None
    channels: int
    height: int
    width: int
    scale: float
    convolutions: tuple[Convolution, ...]
    dense: tuple[int, ...]

    def convolution_tensors(self) -> list[TensorSpec]:
        """Return the tensors of the convolutions, weights and biases in turn."""
        tensors = []
        for index, layer in enumerate(self.convolutions):
            tensors.append(TensorSpec(f"convolutions.{index}.weight", (layer.out, layer.into, layer.kernel, layer.kernel)))
            tensors.append(TensorSpec(f"convolutions.{index}.bias", (layer.out,)))
        return tensors

    def dense_tensors(self, outputs: int, joined: int = 0) -> list[TensorSpec]:
        """Return the tensors of the layers after the convolutions, weights and biases in turn.

        Args:
            outputs: The number of outputs of the last layer.
            joined: The number of inputs of the first layer beside the features of the observation.
        """
        tensors = []
        inputs = (self.dense[0] + joined, *self.dense[1:])
        for index, (into, out) in enumerate(zip(inputs, (*self.dense[1:], outputs), strict=True)):
            tensors += [TensorSpec(f"layers.{index}.weight", (out, into)), TensorSpec(f"layers.{index}.bias", (out,))]
        return tensors

    def tensors(self, outputs: int) -> list[TensorSpec]:
        """Return the tensors of a policy with so many outputs."""
        return [*self.convolution_tensors(), *self.dense_tensors(outputs)]


def cnn_layers(options: CNNOptions, space: ObservationSpace) -> CNNLayers:
    """Return the layers of a convolutional network for observations of a space.

    Raises:
        ConfigError: If the space has no images, or an image is too small for the convolutions.
    """
    image, box = _image_of(space)
    order, channels, height, width = _axes(options, box.shape)
    pixels = min(height, width)
    sizes: tuple[tuple[int, ...], ...] = NATURE if pixels >= 36 else MEDIUM if pixels >= 15 else SMALL
    if options.channels is not None and options.kernels is not None and options.strides is not None:
        sizes = options.channels, options.kernels, options.strides
    convolutions = []
    into, rows, columns = channels, height, width
    for out, kernel, stride in zip(*sizes, strict=True):
        if min(rows, columns) < kernel:
            raise _unfit(
                f"with the kernels {list(sizes[1])} and the strides {list(sizes[2])} needs larger images than {height}x{width}: "
                f"a filter of {kernel}x{kernel} gets {rows}x{columns}; give channels, kernels and strides that fit"
            )
        convolutions.append(Convolution(into, out, kernel, stride))
        into, rows, columns = out, (rows - kernel) // stride + 1, (columns - kernel) // stride + 1
    layout = feature_layout(space)
    beside = layout.size - box.size
    return CNNLayers(
        image=image,
        shape=box.shape,
        start=layout.parts[image].columns.start,
        beside=beside,
        order=order,
        channels=channels,
        height=height,
        width=width,
        scale=PIXEL_SCALE if box.dtype == "|u1" else 1.0,
        convolutions=tuple(convolutions),
        dense=(into * rows * columns + beside, *options.hidden_sizes),
    )


def _unfit(problem: str) -> ConfigError:
    return ConfigError(f"algorithm_parameters.network: a network of kind 'cnn' {problem}", key="algorithm_parameters.network")


def _image_of(space: ObservationSpace) -> tuple[int, BoxSpace]:
    """Return the number of the array of an observation that is the image, and its space.

    A Dict or Tuple can have other arrays of two or three axes if the image is the only one of dtype uint8.
    """
    leaves = [(k, leaf) for k, leaf in enumerate(leaves_of(space).spaces) if isinstance(leaf, BoxSpace)]
    boxes = [(k, leaf) for k, leaf in leaves if len(leaf.shape) in (2, 3)]
    images = boxes if len(boxes) == 1 else [(k, leaf) for k, leaf in boxes if leaf.dtype == "|u1"]
    if not boxes:
        raise _unfit(
            f"needs images: a Box of shape [height, width] or with one more axis for colours, not {space!s:.80}; use mlp"
        )
    if len(images) != 1:
        raise _unfit(
            f"needs one image, but {space!s:.200} has {len(boxes)} Boxes of two or three axes, of which {len(images)} are uint8; "
            "join the images along the axis of their colours"
        )
    return images[0]


def _axes(options: CNNOptions, shape: Sequence[int]) -> tuple[tuple[int, ...] | None, int, int, int]:
    """Return `CNNLayers.order`, the number of channels, the height and the width of an image."""
    if len(shape) == 2:
        return None, 1, shape[0], shape[1]
    first, second, third = shape
    axes = options.axes
    if axes == "auto":
        if (first < min(second, third)) == (third < min(first, second)):
            raise _unfit(f"cannot tell which axis of {tuple(shape)} has the colours; give axes: first or axes: last")
        axes = "first" if first < third else "last"
    return (None, first, second, third) if axes == "first" else ((0, 3, 1, 2), third, first, second)


def cnn_graph(layers: CNNLayers, activation: str, space: ObservationSpace, outputs: int) -> bytes:
    """Return the ONNX model of a policy, whose weights are inputs.

    Args:
        layers: The layers.
        activation: The activation function.
        space: The space of observations.
        outputs: The number of outputs.
    """
    graph = GraphBuilder()
    parts = feature_layout(space).parts
    values = graph.cast(parts[layers.image].name, np.float32)
    if layers.scale != 1.0:
        values = graph.add("Mul", values, graph.constant(np.float32(layers.scale)))
    if layers.order is not None:
        values = graph.add("Transpose", values, perm=layers.order)
    elif len(layers.shape) == 2:
        values = graph.add("Unsqueeze", values, graph.constant([1]))
    for index, layer in enumerate(layers.convolutions):
        names = [f"convolutions.{index}.{part}" for part in ("weight", "bias")]
        values = graph.add("Conv", values, *names, kernel_shape=(layer.kernel,) * 2, strides=(layer.stride,) * 2)
        values = graph.activation(activation, values)
    values = graph.add("Flatten", values)
    if layers.beside:
        others = [graph.features(part) for k, part in enumerate(parts) if k != layers.image]
        values = graph.add("Concat", values, *others, axis=1)
    last = len(layers.dense) - 1
    for index in range(last + 1):
        names = [f"layers.{index}.{part}" for part in ("weight", "bias")]
        values = graph.add("Gemm", values, *names, transB=1, output="outputs" if index == last else "")
        if index < last:
            values = graph.activation(activation, values)
    weights = [OnnxValue(tensor.name, tensor.dtype, tensor.shape) for tensor in layers.tensors(outputs)]
    outcome = OnnxValue("outputs", "float32", (None, outputs))
    return encode_model(graph.graph([*observation_inputs(space), *weights], [outcome]))


def plan(options: CNNOptions, requirements: PolicyRequirements) -> PolicySpec:
    """Return the specification of a policy of the kind ``onnx`` with convolutions. Observations are not standardised.

    Raises:
        ConfigError: If the network does not fit the spaces.
    """
    layers = cnn_layers(options, requirements.observation_space)
    space, head = requirements.observation_space, requirements.head
    outputs = head.outputs(requirements.action_space)
    model = cnn_graph(layers, options.activation, space, outputs)
    return onnx_spec(space, requirements.action_space, head, layers.tensors(outputs), model)


ENTRY = NetworkEntry(
    name="cnn",
    options=CNNOptions,
    plan=plan,
    actor_critic="rl4sys_zmq.algorithms.networks.cnn_actor_critic:CNNActorCritic",
    replay="rl4sys_zmq.algorithms.networks.cnn_replay:CNNReplay",
    linear_output=True,
    summary="Convolutions and hidden layers for images. Actors compute it in onnxruntime.",
    reference="Mnih et al. 2015, Human-level control through deep reinforcement learning",
    extra="learner",
)
