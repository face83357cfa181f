"""The kind of network ``cnn``, convolutions before a perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl4sys_zmq.algorithms.networks.layer_kind import layer_network
from rl4sys_zmq.config.options import check_fields, nullable, one_of, option, sizes
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.layers.activation import ActivationLayer
from rl4sys_zmq.layers.concat import Concat
from rl4sys_zmq.layers.conv import Conv
from rl4sys_zmq.layers.image import Image
from rl4sys_zmq.layers.layer import Layer
from rl4sys_zmq.learner.registry.algorithm_entry import parameter_error
from rl4sys_zmq.learner.registry.network_entry import LayerPlan
from rl4sys_zmq.policies.mlp import hidden_layers
from rl4sys_zmq.values import ACTIVATIONS, BoxSpace, ObservationSpace
from rl4sys_zmq.values.features import feature_layout
from rl4sys_zmq.values.observations import leaves_of

NATURE = ((32, 64, 64), (8, 4, 3), (4, 2, 1))
"""The channels, kernels and strides for images of at least 36 pixels on each side (Mnih et al. 2015)."""
MEDIUM = ((16, 32, 32), (3, 3, 3), (2, 2, 1))
"""The same for images of at least 15 pixels on each side."""
SMALL = ((16, 32), (3, 3), (1, 2))
"""The same for smaller images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CNNOptions:
    """The options of a convolutional network. Features that are not of the image are joined to the last convolution's outputs.

    Raises:
        ConfigError: If only some of `channels`, `kernels` and `strides` are given, or their lengths differ.
    """

    channels: tuple[int, ...] | None = nullable(
        sizes, doc="number of filters of each convolution; null: by the size of the image"
    )
    kernels: tuple[int, ...] | None = nullable(
        sizes, doc="width and height of the filters of each convolution, in pixels; null: by the size of the image"
    )
    strides: tuple[int, ...] | None = nullable(sizes, doc="step of each convolution, in pixels; null: by the size of the image")
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


def planned(options: CNNOptions, space: ObservationSpace) -> LayerPlan:
    """Return the layers of a convolutional network for observations of `space`.

    The networks of an off-policy algorithm share the convolutions. The policy and the value network of an on-policy algorithm
    share all hidden layers.

    Raises:
        ConfigError: If the space has no images, or an image is too small for the convolutions.
    """
    number, box = _image_of(space)
    last = _channels_last(options, box.shape)
    layout = feature_layout(space)
    pixels = layout.parts[number].columns
    image = Image(start=pixels.start, shape=box.shape, channels_last=last, scaled=box.dtype == "|u1")
    _, height, width = shape = image.output((layout.size,), layout.size)
    least = min(height, width)
    sizes: tuple[tuple[int, ...], ...] = NATURE if least >= 36 else MEDIUM if least >= 15 else SMALL
    if options.channels is not None and options.kernels is not None and options.strides is not None:
        sizes = options.channels, options.kernels, options.strides
    function = ActivationLayer(function=options.activation)
    shared: list[Layer] = [image]
    for filters, kernel, stride in zip(*sizes, strict=True):
        if min(shape[1:]) < kernel:
            raise _unfit(
                f"with the kernels {list(sizes[1])} and the strides {list(sizes[2])} needs larger images than {height}x{width}: "
                f"a filter of {kernel}x{kernel} gets {shape[1]}x{shape[2]}; give channels, kernels and strides that fit"
            )
        layer = Conv(filters=filters, kernel=kernel, stride=stride)
        shape = layer.output(shape, layout.size)
        shared += [layer, function]
    beside = [(start, stop) for start, stop in ((0, pixels.start), (pixels.stop, layout.size)) if start < stop]
    if beside:
        shared.append(Concat(columns=tuple(beside)))
    return LayerPlan(shared=shared, own=hidden_layers(options.hidden_sizes, options.activation), values=(), normalises=False)


def _unfit(problem: str) -> ConfigError:
    return parameter_error("network", f"a network of kind 'cnn' {problem}")


def _image_of(space: ObservationSpace) -> tuple[int, BoxSpace]:
    """Return the image among the arrays of an observation, as an index and a space.

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


def _channels_last(options: CNNOptions, shape: Sequence[int]) -> bool:
    """Return True if the last axis of an image of this shape has the channels."""
    if len(shape) == 2:
        return False
    first, second, third = shape
    if options.axes == "auto":
        if (first < min(second, third)) == (third < min(first, second)):
            raise _unfit(f"cannot tell which axis of {tuple(shape)} has the colours; give axes: first or axes: last")
        return third < first
    return options.axes == "last"


ENTRY = layer_network(
    "cnn",
    CNNOptions,
    planned,
    summary="Convolutions and hidden layers for images. Actors compute it in onnxruntime.",
    reference="Mnih et al. 2015, Human-level control through deep reinforcement learning",
)
