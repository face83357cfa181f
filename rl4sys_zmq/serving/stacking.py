"""Payloads of several callers as one, with a leading axis, and the answer taken apart again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl4sys_zmq.wire.trees import Tree

__all__ = ["batched", "shape_of", "stack", "unstack"]


def batched(fn: Callable[[Tree], Tree]) -> Callable[[Sequence[Tree]], list[Tree]]:
    """A function of a stacked payload as one of a list of payloads. Payloads of different shapes go to `fn` separately."""

    def run(payloads: Sequence[Tree]) -> list[Tree]:
        groups: dict[object, list[int]] = {}
        for index, payload in enumerate(payloads):
            groups.setdefault(shape_of(payload), []).append(index)
        answers: list[Tree] = [None] * len(payloads)
        for members in groups.values():
            answer = fn(stack([payloads[i] for i in members]))
            for i, part in zip(members, unstack(answer, len(members)), strict=True):
                answers[i] = part
        return answers

    return run


def shape_of(tree: Tree) -> object:
    """What trees must have in common to be stacked: structure, and the dtype and shape of each leaf."""
    kind = type(tree)
    if kind is list:
        tree = _numbers(tree)
        kind = type(tree)
    if kind is np.ndarray:
        return tree.dtype.str, tree.shape
    if kind is dict:
        return dict, tuple([(key, shape_of(tree[key])) for key in sorted(tree)])
    if kind is tuple:
        return tuple, tuple([shape_of(value) for value in tree])
    return tree.dtype.str if isinstance(tree, np.generic) else kind


def stack(trees: Sequence[Tree]) -> Tree:
    """``N`` trees of one shape as one.

    Arrays, numbers and lists of numbers become arrays ``[N, ...]``, other leaves lists of ``N``; dicts and tuples stay.
    """
    if type(trees[0]) is list:
        trees = [_numbers(tree) for tree in trees]
    first = trees[0]
    kind = type(first)
    if kind is np.ndarray:
        out = np.empty((len(trees), *first.shape), first.dtype)
        for index, tree in enumerate(trees):
            out[index] = tree
        return out
    if kind is dict:
        return {key: stack([tree[key] for tree in trees]) for key in first}
    if kind is tuple:
        return tuple([stack([tree[i] for tree in trees]) for i in range(len(first))])
    if kind in (bool, int, float) or isinstance(first, np.generic):
        return np.asarray(trees)
    return list(trees)


def unstack(tree: Tree, count: int) -> list[Tree]:
    """The inverse of `stack`: dicts and tuples of leaves, each an array ``[N, ...]`` (or a tensor) or a list of ``N``.

    Raises:
        ValueError: for a leaf that has no such axis, by its path.
    """
    return _unstack(tree, count, "answer")


def _unstack(tree: Tree, count: int, path: str) -> list[Tree]:
    if isinstance(tree, dict):
        parts = {key: _unstack(value, count, f"{path}[{key!r}]") for key, value in tree.items()}
        return [{key: part[i] for key, part in parts.items()} for i in range(count)]
    if isinstance(tree, tuple):
        columns = [_unstack(value, count, f"{path}[{i}]") for i, value in enumerate(tree)]
        return [tuple(column[i] for column in columns) for i in range(count)]
    if not isinstance(tree, list):
        tree = _array(tree)
    if (not isinstance(tree, list) and tree.ndim == 0) or len(tree) != count:
        size = "no axis" if not isinstance(tree, list) and tree.ndim == 0 else f"{len(tree)} entries"
        raise ValueError(f"{path} has {size}; a batch of {count} needs as many, along the first axis")
    return list(tree)


def _numbers(value: list[Any]) -> Any:
    """A list as an array if it holds numbers alone, as many in each row; else as it is."""
    try:
        array = np.asarray(value)
    except ValueError:
        return value
    return array if array.dtype.kind in "biuf" else value


def _array(value: Any) -> np.ndarray[Any, Any]:
    """An array of a leaf, of torch too."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)
