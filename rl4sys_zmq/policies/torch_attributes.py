"""The attributes of the nodes of ONNX graphs, and the arguments that determine shapes, for torch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.policies.onnx_model import Attribute, OnnxNode

__all__ = ["MAX_ITEMS", "Attributes", "Function", "integers_of", "tensor_of"]

Function = Callable[..., Tensor | tuple[Tensor, ...]]
"""The function of a node, from its inputs to its outputs."""

MAX_ITEMS = 1024
"""The largest number of integers in an argument that determines a shape."""


class Attributes:
    """The attributes of a node, with the defaults of the standard.

    Attributes:
        node: The node.
        opset: The version of the standard operators.
    """

    def __init__(self, node: OnnxNode, opset: int) -> None:
        self.node, self.opset = node, opset
        self._values: Mapping[str, Attribute] = node.attributes

    def integer(self, name: str, default: int) -> int:
        """Return an integer."""
        return operator.index(cast(int, self._values.get(name, default)))

    def number(self, name: str, default: float) -> float:
        """Return a number."""
        return float(cast(float, self._values.get(name, default)))

    def integers(self, name: str) -> list[int] | None:
        """Return integers; None if they are not given."""
        value = self._values.get(name)
        return None if value is None else [operator.index(item) for item in cast(tuple[int, ...], value)]

    def text(self, name: str, default: str) -> str:
        """Return a text."""
        value = self._values.get(name)
        return default if value is None else cast(bytes, value).decode("ascii")

    def tensor(self, name: str) -> Tensor | None:
        """Return a tensor; None if it is not given."""
        value = self._values.get(name)
        return None if value is None else tensor_of(np.asarray(value))


def tensor_of(array: NDArray[Any]) -> Tensor:
    """Return a copy of an array, in memory: not on another device that the program uses by default."""
    return torch.from_numpy(np.array(array))


def integers_of(values: Tensor) -> list[int]:
    """Return the integers of an argument that determines a shape."""
    if values.numel() > MAX_ITEMS:
        raise ValueError(f"an argument for a shape has {values.numel()} integers; the limit is {MAX_ITEMS}")
    return [operator.index(value) for value in values.reshape(-1).tolist()]
