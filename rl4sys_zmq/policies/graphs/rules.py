"""The rules for ONNX graphs from a peer: what a graph may contain, and how its inputs and outputs must fit the policy.

Some graphs that onnxruntime accepts would crash the process or take all memory: an integer division by zero, a stride of zero,
a shape that depends on the data. So only the operators of `OPERATORS` are allowed, and these rules hold:

- Each value is computed once, before it is used. No operator has a subgraph, a random output or an output whose shape depends on
  the values of its inputs. Arguments that determine a shape depend only on constants and on shapes.
- Attributes are within bounds in which onnxruntime is safe.
- Integers are divided only by positive constants, and no mean of integers is computed.
- The graph's inputs are the observation's arrays and the weights, with their names, dtypes and shapes. Its only output is
  ``outputs``, float32 ``[N, outputs]``. Only the axis ``N``, the number of observations, has no fixed length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.graphs.model import ELEMENT_TYPES, Attribute, OnnxGraph, OnnxNode, OnnxValue

OUTPUTS = "outputs"
"""The name of the graph's output."""

MAX_CONSTANT_BYTES = 64 << 20
"""The largest size of all constants of a graph, in bytes. Large arrays are weights, which are inputs."""
MAX_ATTRIBUTE = 1 << 20
"""The largest absolute value of a whole number in an attribute."""

SHAPED = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "ReduceL2": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceSumSquare": (1,),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "Unsqueeze": (1,),
}
"""The operators with inputs whose values determine the shape of the output, and the places of these inputs."""

# fmt: off
OPERATORS = frozenset(
    {
        "Abs", "Add", "And", "ArgMax", "ArgMin", "AveragePool", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip",
        "Concat", "Constant", "Conv", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Flatten", "Floor", "Gather", "Gelu",
        "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "GroupNormalization", "HardSigmoid",
        "HardSwish", "Identity", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log",
        "LogSoftmax", "MatMul", "Max", "MaxPool", "Mean", "Min", "Mish", "Mul", "Neg", "Not", "Or", "PRelu", "Pow",
        "Reciprocal", "Relu", "Round", "Selu", "Shape", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt",
        "Sub", "Sum", "Tanh", "Transpose", "Where",
    }
) | frozenset(SHAPED)
"""The operators that a graph can use. The shapes of their outputs follow from those of their inputs."""

_FLOATING = frozenset(
    {
        "AveragePool", "Gelu", "GlobalAveragePool", "InstanceNormalization", "LayerNormalization", "Mean", "Pow",
        "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
    }
)
# fmt: on
"""The operators whose first input must have floating-point numbers."""
_TYPED = {
    **dict.fromkeys(("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or"), "bool"),
    **dict.fromkeys(("ArgMax", "ArgMin", "Shape"), "int64"),
}
"""The operators whose output has another dtype than their first input, and this dtype."""
_LEAST = {"strides": 1, "dilations": 1, "kernel_shape": 1, "group": 1, "num_outputs": 1, "num_groups": 1, "pads": 0}
"""The least values of the whole numbers in these attributes."""
_DTYPES = {number: name for name, number in ELEMENT_TYPES.items()}


def check_graph(graph: OnnxGraph, inputs: Sequence[OnnxValue], outputs: int) -> None:
    """Check that a graph follows the rules of this module, and has these inputs and this number of outputs.

    Raises:
        ConfigError: If the graph breaks a rule. The message has the operator or the value.
    """
    _check_values(graph.inputs, inputs)
    if len(graph.outputs) != 1 or graph.outputs[0].name != OUTPUTS:
        raise _refused(f"it has the outputs {_listed([value.name for value in graph.outputs])}; expected {OUTPUTS!r}")
    given = graph.outputs[0]
    if given.dtype != "float32" or len(given.shape) != 2 or given.shape[1] not in (None, outputs):
        raise _refused(f"its output is {given.dtype} {_shape(given.shape)}; expected float32 [N, {outputs}]")
    size = sum(array.nbytes for array in _all_constants(graph))
    if size > MAX_CONSTANT_BYTES:
        raise _refused(f"its constants have {size} bytes; the limit is {MAX_CONSTANT_BYTES}; make them weights")
    _GraphChecker(graph).check()


def _refused(problem: str) -> ConfigError:
    return ConfigError(f"the ONNX graph of the policy cannot be used: {problem}", key="blob")


def _shape(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("N" if length is None else str(length) for length in shape) + "]"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{name!r:.80}" for name in names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "none"


def _all_constants(graph: OnnxGraph) -> list[NDArray[Any]]:
    within = [value for node in graph.nodes for value in node.attributes.values() if isinstance(value, np.ndarray)]
    return [*graph.constants.values(), *within]


def _check_values(found: Sequence[OnnxValue], expected: Sequence[OnnxValue]) -> None:
    """Check that the inputs of a graph are the expected ones."""
    given = {value.name: value for value in found}
    wanted = {value.name: value for value in expected}
    if len(given) != len(found):
        raise _refused("two of its inputs have the same name")
    if given.keys() != wanted.keys():
        lacks, extra = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
        raise _refused(f"it lacks the inputs {_listed(lacks)}, and has the unknown inputs {_listed(extra)}")
    for name, value in given.items():
        if any(length is None for length, fixed in zip(value.shape, wanted[name].shape, strict=False) if fixed is not None):
            raise _refused(
                f"the input {name!r:.80} has the dynamic shape {_shape(value.shape)}; expected {_shape(wanted[name].shape)}: "
                "N is the number of observations and all other lengths are fixed"
            )
        if value != wanted[name]:
            raise _refused(
                f"the input {name!r:.80} is {value.dtype} {_shape(value.shape)}; expected {wanted[name].dtype} "
                f"{_shape(wanted[name].shape)}"
            )


class _GraphChecker:
    """A checker of the nodes of one graph, in the order of their computation."""

    def __init__(self, graph: OnnxGraph) -> None:
        self._graph = graph
        self._constants: dict[str, NDArray[Any]] = dict(graph.constants)
        self._dtypes = {value.name: value.dtype for value in graph.inputs}
        self._data = set(self._dtypes)
        """The values that depend on the values of the graph's inputs, not only on their shapes."""
        for name, array in self._constants.items():
            if name in self._dtypes:
                raise _refused(f"{name!r:.80} is an input and a constant")
            self._dtypes[name] = array.dtype.name

    def check(self) -> None:
        """Check all nodes, as `check_graph` describes."""
        for node in self._graph.nodes:
            self._check_node(node)
        if self._dtypes.get(OUTPUTS) != "float32" or OUTPUTS not in self._data:
            raise _refused(f"{OUTPUTS!r} is not a float32 value that it computes from its inputs")

    def _check_node(self, node: OnnxNode) -> None:
        operator = node.operator
        if operator not in OPERATORS:
            raise _refused(f"unknown operator {operator!r:.80}; expected only {', '.join(sorted(OPERATORS))}")
        for name in node.inputs:
            if name and name not in self._dtypes:
                raise _refused(f"an operator {operator} takes {name!r:.80}, which was not computed before")
        for name, value in node.attributes.items():
            _check_attribute(operator, name, value)
        dtypes = [self._dtypes.get(name, "") for name in node.inputs]
        first = dtypes[0] if dtypes else ""
        if operator != "Constant" and not first:
            raise _refused(f"an operator {operator} has no input")
        if operator in _FLOATING and not first.startswith("float"):
            raise _refused(f"an operator {operator} gets {first} numbers; expected floating-point numbers")
        if operator == "Div" and not first.startswith("float"):
            divisor = self._constants.get(node.inputs[1]) if len(node.inputs) == 2 else None
            if divisor is None or divisor.size == 0 or divisor.min() < 1:
                raise _refused("whole numbers are divided by a value that is not a positive constant")
        for place in SHAPED.get(operator, ()):
            if place < len(node.inputs) and node.inputs[place] in self._data:
                raise _refused(f"the shape of the output of an operator {operator} depends on data; expected only fixed shapes")
        self._add_outputs(node, dtypes)

    def _add_outputs(self, node: OnnxNode, dtypes: list[str]) -> None:
        operator = node.operator
        data = operator != "Shape" and any(name in self._data for name in node.inputs)
        dtype = _TYPED.get(operator, dtypes[0] if dtypes else "")
        if operator == "Constant":
            array = _constant(node)
            dtype = array.dtype.name
            self._constants.update((name, array) for name in node.outputs[:1])
        elif operator == "ConstantOfShape":
            value = node.attributes.get("value")
            dtype = value.dtype.name if isinstance(value, np.ndarray) else "float32"
        elif operator == "Cast":
            to = node.attributes.get("to")
            if not isinstance(to, int) or to not in _DTYPES:
                raise _refused(f"an operator Cast has the dtype number {to!s:.40}")
            dtype = _DTYPES[to]
        elif operator in ("Where", "OneHot"):
            dtype = dtypes[-1]
        outputs = [(name, "int64" if index and operator == "MaxPool" else dtype) for index, name in enumerate(node.outputs)]
        for name, kind in outputs:
            if name in self._dtypes:
                raise _refused(f"{name!r:.80} is computed twice")
            if name:
                self._dtypes[name] = kind
                if data:
                    self._data.add(name)


def _check_attribute(operator: str, name: str, value: Attribute) -> None:
    """Check that the numbers of an attribute are within the bounds in which onnxruntime is safe."""
    if isinstance(value, np.ndarray | bytes | float):
        return
    for number in (value,) if isinstance(value, int) else value:
        if isinstance(number, int) and not _LEAST.get(name, -MAX_ATTRIBUTE) <= number <= MAX_ATTRIBUTE:
            raise _refused(f"the attribute {name!r:.80} of an operator {operator} has the value {number}")
    if name == "training_mode" and value != 0:
        raise _refused(f"an operator {operator} is in training mode")


def _constant(node: OnnxNode) -> NDArray[Any]:
    """Return the value of a node with the operator Constant."""
    if len(node.attributes) != 1 or node.inputs or len(node.outputs) != 1:
        raise _refused("an operator Constant has inputs, or not exactly one value")
    ((name, value),) = node.attributes.items()
    if name == "value" and isinstance(value, np.ndarray):
        return value
    if name in ("value_int", "value_ints", "value_float", "value_floats") and not isinstance(value, bytes):
        return np.asarray(value, np.int64 if "int" in name else np.float32)
    raise _refused(f"an operator Constant has the attribute {name!r:.80}; expected a number, numbers or a tensor")
