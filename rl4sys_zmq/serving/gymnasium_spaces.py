"""Conversion of this library's spaces and of received payloads to Gymnasium's types.

`rl4sys_zmq.values.space_conversion` converts in the other direction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.values import spaces as ours
from rl4sys_zmq.values.spaces import AnySpace, BoxSpace
from rl4sys_zmq.values.trees import Tree, copy_tree

GymSpace = gymnasium.Space[Any]


def to_gymnasium(space: AnySpace) -> GymSpace:
    """Return the Gymnasium space that corresponds to one of this library's spaces."""
    try:
        return _build(space)
    except (ArithmeticError, AssertionError, TypeError, ValueError) as exc:
        raise ConfigError(f"Gymnasium rejects the space {space!s:.120}: {type(exc).__name__}: {exc}", key="space") from exc


def _build(space: AnySpace) -> GymSpace:
    match space:
        case BoxSpace():
            dtype = np.dtype(space.dtype)
            low, high = (_bound(space, bound) for bound in (space.low, space.high))
            return spaces.Box(low, high, space.shape, dtype.type)
        case ours.DiscreteSpace():
            other: dict[str, Any] = {} if space.dtype == "<i8" else {"dtype": np.dtype(space.dtype).type}
            return spaces.Discrete(space.n, start=space.start, **other)
        case ours.MultiBinarySpace():
            return spaces.MultiBinary(list(space.n) if isinstance(space.n, tuple) else space.n)  # 3 and (3,) are not equal
        case ours.MultiDiscreteSpace():
            dtype = np.dtype(space.dtype)
            nvec, start = (np.array(numbers, dtype).reshape(space.shape) for numbers in (space.nvec, space.start))
            return spaces.MultiDiscrete(nvec, dtype.type, start=start)
        case ours.TextSpace():
            return spaces.Text(space.max_length, min_length=space.min_length, charset=space.characters)
        case ours.DictSpace():
            return spaces.Dict([(key, _build(part)) for key, part in space.spaces.items()])  # Gymnasium would sort a dict
        case ours.TupleSpace():
            return spaces.Tuple([_build(part) for part in space.spaces])
        case ours.OneOfSpace():
            return spaces.OneOf([_build(part) for part in space.spaces])
        case ours.SequenceSpace():
            return spaces.Sequence(_build(space.space), stack=space.stack)
        case ours.GraphSpace():
            return spaces.Graph(_build(space.nodes), None if space.edges is None else _build(space.edges))


def _bound(space: BoxSpace, bound: Any) -> np.ndarray[Any, Any]:
    """Return a bound as an array with the shape and dtype of its space. Integer bounds are clipped to the dtype's range."""
    dtype = np.dtype(space.dtype)
    if dtype.kind in "iu":
        held = np.iinfo(dtype)
        numbers = [min(max(n, held.min), held.max) for n in (bound if isinstance(bound, tuple) else (bound,))]
        bound = tuple(int(n) for n in numbers) if isinstance(bound, tuple) else int(numbers[0])
    array = np.array(bound, dtype)
    return array.reshape(space.shape) if isinstance(bound, tuple) else np.array(np.broadcast_to(array, space.shape))


def element_reader(space: AnySpace) -> Callable[[Any], Any]:
    """Return a function that copies a received payload to an element of the space, such as an observation.

    The arrays of the element are writable. A part of the payload that does not fit the space stays as it is.
    """
    return (lambda tree: _changed(space, copy_tree(tree), _as_graph)) if _has_graph(space) else copy_tree


def clipped(space: AnySpace, tree: Tree) -> Tree:
    """Return an element of a space in which the finite floats of each Box are clipped to the bounds, in the Box's dtype."""
    return _changed(space, tree, _clip)


def _clip(space: AnySpace, value: Tree) -> Tree:
    if not isinstance(space, BoxSpace) or not isinstance(value, np.ndarray) or np.dtype(space.dtype).kind != "f":
        return value
    if value.shape != space.shape or value.dtype.kind not in "biuf":
        return value
    with np.errstate(over="ignore"):
        cast = value.astype(space.dtype)
    low, high = (_bound(space, bound) for bound in (space.low, space.high))
    return np.clip(cast, low, high) if np.isfinite(cast).all() else value


def _has_graph(space: AnySpace) -> bool:
    return isinstance(space, ours.GraphSpace) or any(_has_graph(part) for part in space.parts)


def _as_graph(space: AnySpace, value: Tree) -> Any:
    return (
        spaces.GraphInstance(*value) if isinstance(space, ours.GraphSpace) and type(value) is tuple and len(value) == 3 else value
    )


def _changed(space: AnySpace, tree: Any, change: Callable[[AnySpace, Any], Any]) -> Any:
    """Return an element of a space in which `change` has replaced each innermost part that fits its part of the space."""
    match space:
        case ours.DictSpace() if type(tree) is dict:
            return {k: _changed(space.spaces[k], v, change) if k in space.spaces else v for k, v in tree.items()}
        case ours.TupleSpace() if type(tree) is tuple and len(tree) == len(space.spaces):
            return tuple([_changed(s, v, change) for s, v in zip(space.spaces, tree, strict=True)])
        case ours.SequenceSpace() if not space.stack and type(tree) is tuple:
            return tuple([_changed(space.space, v, change) for v in tree])
        case ours.OneOfSpace() if type(tree) is tuple and len(tree) == 2 and isinstance(tree[0], (int, np.integer)):
            if 0 <= tree[0] < len(space.spaces):
                return tree[0], _changed(space.spaces[int(tree[0])], tree[1], change)
    return change(space, tree)
