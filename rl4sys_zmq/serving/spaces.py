"""Gymnasium's spaces as trees that travel, and their elements.

A space is described by its class's name and its numbers, and built again from that: a list of known classes, nothing pickled,
nothing imported by a name that came from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rl4sys_zmq.errors import ConfigError, PayloadError
from rl4sys_zmq.wire.trees import Tree, pack_tree
from rl4sys_zmq.wire.values import MAX_DEPTH

__all__ = ["Space", "build_space", "describe_space", "from_tree", "misfit", "thaw", "to_tree", "what_travels"]

Space = gymnasium.Space[Any]

MAX_ELEMENTS = 1 << 26
"""Of one array: a description that somebody sent must not make anybody allocate more."""
ARRAYS = (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)
SUPPORTED = "Box, Discrete, MultiBinary, MultiDiscrete, Text, Dict, Tuple, Sequence, Graph and OneOf"


# ---- spaces


def describe_space(space: Space, path: str = "space") -> Tree:
    """A space as a tree that `build_space` reads.

    Raises:
        ConfigError: for a class that is not supported, with its name and place.
    """
    kind = type(space).__name__
    if type(space) is not getattr(spaces, kind, None):
        raise ConfigError(f"{path} is a {type(space).__module__}.{kind}, which cannot travel; {SUPPORTED} can", key=path)
    match space:
        case spaces.Box():
            bounds: dict[str, Tree] = {"low": _bound(space.low), "high": _bound(space.high)}
            return {"type": kind, "shape": list(space.shape), "dtype": _dtype(space.dtype, path), **bounds}
        case spaces.Discrete():
            return {"type": kind, "n": int(space.n), "start": int(space.start), "dtype": _dtype(space.dtype, path)}
        case spaces.MultiBinary():
            return {"type": kind, "n": list(space.n) if isinstance(space.n, tuple) else space.n}  # 3 and (3,) are not equal
        case spaces.MultiDiscrete():
            return {"type": kind, "nvec": space.nvec, "start": space.start, "dtype": _dtype(space.dtype, path)}
        case spaces.Text():
            return {
                "type": kind,
                "least": space.min_length,
                "most": space.max_length,
                "characters": "".join(space.character_list),
            }
        case spaces.Dict():
            for key in space.spaces:
                if type(key) is not str:
                    raise ConfigError(f"{path} is a Dict with the key {key!r}, which is no string", key=path)
            return {"type": kind, "spaces": [[k, describe_space(s, f"{path}[{k!r}]")] for k, s in space.spaces.items()]}
        case spaces.Tuple() | spaces.OneOf():
            return {"type": kind, "spaces": [describe_space(s, f"{path}[{i}]") for i, s in enumerate(space.spaces)]}
        case spaces.Sequence():
            return {"type": kind, "of": describe_space(space.feature_space, f"{path}[0]"), "stack": space.stack}
        case spaces.Graph():
            edges = None if space.edge_space is None else describe_space(space.edge_space, f"{path}.edges")
            return {"type": kind, "nodes": describe_space(space.node_space, f"{path}.nodes"), "edges": edges}
    raise ConfigError(f"{path} is a {kind}, which cannot travel; {SUPPORTED} can", key=path)


def build_space(form: Tree) -> Space:
    """The space of a description that nobody vouches for.

    Raises:
        ConfigError: when it is none.
    """
    try:
        return _build(form)
    except (ArithmeticError, AssertionError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as exc:
        raise ConfigError(f"a description of a space that is none: {type(exc).__name__}: {exc}", key="space") from exc


def _build(form: Tree) -> Space:
    match form["type"]:
        case "Box":
            shape, dtype = _shape(form["shape"]), np.dtype(form["dtype"])
            low, high = (np.array(np.broadcast_to(form[k].astype(dtype), shape)) for k in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            other = {} if form["dtype"] == "int64" else {"dtype": np.dtype(form["dtype"]).type}
            return spaces.Discrete(form["n"], start=form["start"], **other)
        case "MultiBinary":
            n = form["n"]
            return spaces.MultiBinary(list(_shape(n)) if isinstance(n, list) else _shape([n])[0])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(form["nvec"].copy(), np.dtype(form["dtype"]).type, start=form["start"].copy())
        case "Text":
            return spaces.Text(form["most"], min_length=form["least"], charset=form["characters"])
        case "Dict":
            return spaces.Dict([(key, _build(held)) for key, held in form["spaces"]])  # a dict would be sorted
        case "Tuple":
            return spaces.Tuple([_build(held) for held in form["spaces"]])
        case "OneOf":
            return spaces.OneOf([_build(held) for held in form["spaces"]])
        case "Sequence":
            return spaces.Sequence(_build(form["of"]), stack=bool(form["stack"]))
        case "Graph":
            return spaces.Graph(_build(form["nodes"]), None if form["edges"] is None else _build(form["edges"]))
    raise ValueError(f"no space {form['type']!r:.40}")


def _dtype(dtype: Any, path: str) -> str:
    name = str(np.dtype(dtype).name)
    if np.dtype(dtype).kind not in "biuf":
        raise ConfigError(f"{path} has the dtype {name}, which cannot travel", key=path)
    return name


def _bound(bound: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bounds, as one number where all are the same: those of an image would be longer than the image."""
    if bound.size and bool(np.all(bound == bound.flat[0])):
        return np.array(bound.flat[0], bound.dtype)
    return bound


def _shape(shape: Any) -> tuple[int, ...]:
    if len(shape) > 8 or not all(type(n) is int and n >= 0 for n in shape) or prod(shape) > MAX_ELEMENTS:
        raise ValueError(f"the shape {shape!r:.80}")
    return tuple(shape)


# ---- their elements


def to_tree(space: Space, value: Any, *, cast: bool = False) -> Tree:
    """An element of a space as a tree. What does not fit is left as it is, for `misfit` to find.

    Args:
        space: of which.
        value: the element.
        cast: give arrays the dtype of their space; what makes no array then raises what NumPy does.
    """
    match space:
        case spaces.Box() | spaces.MultiBinary() | spaces.MultiDiscrete():
            try:
                return np.asarray(value, space.dtype if cast else None)
            except Exception:  # a ragged list, a tensor that gives no array
                if cast:
                    raise
                return value
        case spaces.Dict() if isinstance(value, Mapping):
            return {k: to_tree(space.spaces[k], v, cast=cast) if k in space.spaces else v for k, v in value.items()}
        case spaces.Tuple() if isinstance(value, (tuple, list)) and len(value) == len(space.spaces):
            return tuple([to_tree(s, v, cast=cast) for s, v in zip(space.spaces, value, strict=True)])
        case spaces.Sequence() if not space.stack and isinstance(value, (tuple, list)):
            return tuple([to_tree(space.feature_space, v, cast=cast) for v in value])
    return value


def from_tree(space: Space, tree: Tree) -> Any:
    """The element that a tree is: with arrays that may be written, and a graph as a `GraphInstance`. What is none stays."""
    match space:
        case spaces.Dict() if type(tree) is dict:
            return {k: from_tree(space.spaces[k], v) if k in space.spaces else thaw(v) for k, v in tree.items()}
        case spaces.Tuple() if type(tree) is tuple and len(tree) == len(space.spaces):
            return tuple([from_tree(s, v) for s, v in zip(space.spaces, tree, strict=True)])
        case spaces.Sequence() if not space.stack and type(tree) is tuple:
            return tuple([from_tree(space.feature_space, v) for v in tree])
        case spaces.OneOf() if type(tree) is tuple and len(tree) == 2 and isinstance(tree[0], (int, np.integer)):
            if 0 <= tree[0] < len(space.spaces):
                return tree[0], from_tree(space.spaces[int(tree[0])], tree[1])
        case spaces.Graph() if type(tree) is tuple and len(tree) == 3:
            return spaces.GraphInstance(*[thaw(part) for part in tree])
    return thaw(tree)


def misfit(space: Space, value: Any, path: str = "") -> str:
    """What an environment could make nothing of: another structure or shape. Empty when there is nothing of that kind.

    Bounds are the environment's affair: many clip an action that is out of them.

    Args:
        space: the action space.
        value: an action as it came: a tree.
        path: where in the action it is.
    """
    match space:
        case spaces.Box() | spaces.MultiBinary() | spaces.MultiDiscrete():
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
                return f"{path or 'it'} is a {type(value).__name__}, and the space is {space}"
            if value.shape != space.shape:
                return f"{path or 'it'} has the shape {value.shape}, and the space is {space}"
        case spaces.Discrete():
            whole = isinstance(value, (int, np.integer)) or (isinstance(value, np.ndarray) and value.dtype.kind in "iu")
            if not whole or np.size(value) != 1:
                return f"{path or 'it'} is {value!r:.60}, and the space is {space}"
        case spaces.Dict():
            if not isinstance(value, dict) or set(value) != set(space.spaces):
                return f"{path or 'it'} has not the keys {', '.join(space.spaces)} of its Dict"
            return next(filter(None, [misfit(s, value[k], f"{path}[{k!r}]") for k, s in space.spaces.items()]), "")
        case spaces.Tuple():
            if not isinstance(value, tuple) or len(value) != len(space.spaces):
                return f"{path or 'it'} is no tuple of {len(space.spaces)}"
            parts = enumerate(zip(space.spaces, value, strict=True))
            return next(filter(None, [misfit(s, v, f"{path}[{i}]") for i, (s, v) in parts]), "")
        case _:
            try:
                fits = space.contains(from_tree(space, value))
            except Exception:  # noqa: BLE001 (Gymnasium goes through whatever it is given)
                fits = False
            if not fits:
                return f"{path or 'it'} is {value!r:.60}, and the space is {space}"
    return ""


# ---- trees without a space


def thaw(tree: Tree) -> Any:
    """A tree that may be written: what arrives shares its bytes with the message and may not."""
    kind = type(tree)
    if kind is np.ndarray:
        return tree.copy()
    if kind is dict:
        return {k: thaw(v) for k, v in tree.items()}
    if kind is list:
        return [thaw(v) for v in tree]
    if kind is tuple:
        return tuple([thaw(v) for v in tree])
    return tree


def what_travels(value: Any, path: str, depth: int = 0) -> tuple[Tree, list[str]]:
    """A value (an ``info``, say) without what cannot travel, and the paths of that.

    Args:
        value: what is to travel.
        path: its name.
        depth: how many lists, tuples and dicts it will be in when it travels.
    """
    return _what_travels(value, path, depth, set())


def _what_travels(value: Any, path: str, depth: int, seen: set[int]) -> tuple[Tree, list[str]]:
    if type(value) is dict and not value and depth < MAX_DEPTH:
        return value, []
    nested = value
    for _ in range(depth):
        nested = [nested]
    try:
        pack_tree(nested)
        return value, []
    except PayloadError:
        pass
    if not isinstance(value, Mapping) or depth >= MAX_DEPTH or id(value) in seen:
        return None, [path]
    seen.add(id(value))  # it may be in itself
    kept, dropped = {}, []
    for key, held in value.items():
        where = f"{path}[{key!r:.40}]"
        if not isinstance(key, str):
            dropped.append(where)
            continue
        part, missing = _what_travels(held, where, depth + 1, seen)
        if missing != [where]:
            kept[key] = part
        dropped += missing
    return kept, dropped
