"""The interface of a layer, and the registry of kinds of layers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.config.options import check_fields
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.names import check_name
from rl4sys_zmq.plugins import Registry

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Shape = tuple[int, ...]
"""The shape of a layer's inputs or outputs for one observation."""

Array = NDArray[np.float32]

Step = Callable[[Array, Array], object]
"""A function of a layer's buffer and of the array of its outputs, to which it writes. Its return value is not used."""

HIDDEN_GAIN = math.sqrt(2.0)
"""The gain of the orthogonal initial weights of hidden layers."""


class RecurrentState:
    """The recurrent state of a network in numpy. A recurrent layer reads `before`, and sets `after` to a new array."""

    __slots__ = ("after", "before")

    before: Array
    after: Array


class NumpyLayer:
    """A layer in numpy, with the weights of one version. The weights can be views. Several threads can use one layer.

    Attributes:
        in_place: True if `step` writes the outputs to its inputs.
        slots: The number of extra elements after the inputs in the layer's buffer, such as the input of a bias. Their initial
            value is 1.
    """

    in_place: ClassVar[bool] = False
    slots: int = 0

    def batch(self, x: Array, state: RecurrentState) -> Array:
        """Return the outputs for ``N`` rows of inputs, as a new array ``[N, outputs]``.

        Args:
            x: The inputs, ``[N, inputs]``.
            state: The recurrent states of the rows, ``[N, units]``.
        """
        raise NotImplementedError

    def step(self, buffer: Array, state: RecurrentState) -> Step:
        """Return a function for one thread that computes one row of inputs.

        Args:
            buffer: The array from which the function reads: the inputs, and `slots` more elements.
            state: The recurrent state, ``[units]``.
        """
        raise NotImplementedError


class FunctionLayer(NumpyLayer):
    """A layer in numpy that is one function with two arguments: the inputs, and the array to fill with the outputs.

    Both can be the same array.
    """

    in_place = True

    def __init__(self, function: Step) -> None:
        self._function = function

    def batch(self, x: Array, state: RecurrentState) -> Array:
        out = np.empty_like(x)
        self._function(x, out)
        return out

    def step(self, buffer: Array, state: RecurrentState) -> Step:
        return self._function


class OnnxNodeWriter(Protocol):
    """The methods with which a layer adds itself to an ONNX graph. `GraphBuilder` of `rl4sys_zmq.policies.graphs` has them."""

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node (one operation) to the graph, and return the name of its output."""

    def constant(self, array: NDArray[Any] | np.generic | Sequence[int], name: str = "") -> str:
        """Add a constant array to the graph, and return its name."""


class Sequences(Protocol):
    """The division of a batch of rows into sequences (`rl4sys_zmq.algorithms.networks.inputs.Sequences`)."""

    @property
    def lengths(self) -> Sequence[int]:
        """The number of rows of each sequence."""

    @property
    def states(self) -> Tensor:
        """The recurrent state before the first row of each sequence, ``[S, n]``."""

    def padding(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the indices that convert rows to a table of equally long sequences, and back."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerContext:
    """Further data about a batch of ``B`` rows that a layer in torch can read besides its inputs.

    Attributes:
        features: The features of the ``B`` observations, ``[B, F]``.
        sequences: The division of the rows into sequences; None if each row is the start of an episode.
    """

    features: Tensor
    sequences: Sequences | None = None


TorchForm = Callable[["Tensor", Sequence["Tensor"], LayerContext], "Tensor"]
"""A layer in torch: a function of its inputs ``[B, *inputs]``, its parameters and `LayerContext`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(ABC):
    """One layer of a network. The fields of a subclass are its options, declared with `rl4sys_zmq.config.options.option`.

    All forms compute the same, from the same tensors: `numpy_form` and `onnx_form` in actors, `torch_form` in learners. With a
    layer that has no form in numpy, the actor computes the whole network in onnxruntime.

    Attributes:
        kind: The name of the kind.
        tensor_prefix: The beginning of the names of the layer's tensors. The layer's number among the layers with this prefix
            follows.
        trained: False if an algorithm sets the tensors by other means than a gradient. Such tensors are never rounded.
        in_numpy: False if there is no form in numpy.
        input_parameters: The indices of the weight ``[out, inputs]`` and the bias ``[out]`` of a linear map of the inputs,
            which an algorithm adapts when it rescales the inputs. None if the layer has no such map.

    Raises:
        ConfigError: If an option is invalid.
    """

    kind: ClassVar[str]
    tensor_prefix: ClassVar[str] = ""
    trained: ClassVar[bool] = True
    in_numpy: ClassVar[bool] = True
    input_parameters: ClassVar[tuple[int, int] | None] = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def state_size(self) -> int:
        """The number of elements of the recurrent state; 0 for no state."""
        return 0

    @abstractmethod
    def output(self, inputs: Shape, features: int) -> Shape:
        """Return the shape of the outputs.

        Args:
            inputs: The shape of the inputs.
            features: The number of features of an observation, the inputs of the first layer.

        Raises:
            ConfigError: If the layer cannot have inputs of this shape.
        """

    def tensors(self, inputs: Shape) -> Mapping[str, Shape]:
        """Return the shape of each tensor by the last part of its name, such as ``weight``, in the order of a `PolicySpec`."""
        return {}

    def numpy_form(self, tensors: Sequence[Array]) -> NumpyLayer:
        """Return the form in numpy with these weights, if `in_numpy` is True."""
        raise NotImplementedError

    @abstractmethod
    def onnx_form(self, graph: OnnxNodeWriter, values: str, names: Sequence[str], features: str, inputs: Shape) -> str:
        """Append the layer to an ONNX graph, and return the name of its outputs, ``[N, *outputs]``.

        Args:
            graph: The graph.
            values: The name of the inputs, ``[N, *inputs]``.
            names: The names of the tensors.
            features: The name of the features of the observations, ``[N, F]``.
            inputs: The shape of the inputs.

        Raises:
            ConfigError: If the layer has no form in ONNX.
        """

    @abstractmethod
    def torch_form(self, inputs: Shape) -> TorchForm:
        """Return the form in torch. Only this method imports torch."""

    def initialise(self, tensors: Sequence[Tensor], gain: float, generator: torch.Generator) -> None:
        """Set random orthogonal weights with a gain, and zero biases."""
        import torch

        torch.nn.init.orthogonal_(tensors[0], gain, generator=generator)
        for bias in tensors[1:]:
            bias.zero_()

    def initialise_uniform(self, tensors: Sequence[Tensor], generator: torch.Generator) -> None:
        """Set weights and biases to uniform random numbers between ``±1 / √n``.

        ``n`` is the number of inputs of a unit, or, with a recurrent state, the number of units.
        """
        bound = 1.0 / math.sqrt(self.state_size or tensors[0][0].numel())
        for tensor in tensors:
            tensor.uniform_(-bound, bound, generator=generator)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerEntry:
    """One kind of layer in the registry `LAYERS`.

    Attributes:
        name: The name of the kind, as in a list of layers.
        layer: The class of the layers of this kind.
        summary: One line of documentation.
    """

    name: str
    layer: type[Layer]
    summary: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, "kind")


LAYERS = Registry(
    LayerEntry,
    {
        "activation": "rl4sys_zmq.layers.activation:ENTRY",
        "concat": "rl4sys_zmq.layers.concat:ENTRY",
        "conv": "rl4sys_zmq.layers.conv:ENTRY",
        "dense": "rl4sys_zmq.layers.dense:ENTRY",
        "gru": "rl4sys_zmq.layers.gru:ENTRY",
        "image": "rl4sys_zmq.layers.image:ENTRY",
        "normalise": "rl4sys_zmq.layers.normalise:ENTRY",
    },
    noun="kind of layer",
    group="rl4sys_zmq.layers",
    key="kind",
)
"""The registry of all kinds of layers. To add a built-in kind, add a module with its `LayerEntry`, and a line to this dict."""


def register_layer(entry: LayerEntry) -> None:
    """Make a kind of layer available in this process. Actors need it too. A second call with the same entry changes nothing.

    Raises:
        ConfigError: If another kind has the name.
    """
    LAYERS.add(entry, replace=False)


def unfit(kind: str, inputs: Shape, expected: str) -> ConfigError:
    """Return the error to raise for a layer of kind `kind` whose inputs have another shape than the expected one."""
    return ConfigError(f"a layer of kind {kind!r} has inputs of shape {list(inputs)}; it needs {expected}", key="layers")
