"""Joining of the payloads of several calls to one batch, and splitting of the batched reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl4sys_zmq.values.trees import Structure, Tree, flatten, leaf_paths, unflatten, unflatten_each

_Form = tuple[Structure, tuple[object, ...]]


def batched(fn: Callable[[Tree], Tree]) -> Callable[[Sequence[Tree]], list[Tree]]:
    """Convert a function of a batch, stacked along axis 0, to a function of a list of payloads.

    It calls `fn` once for each group of payloads with the same structure, shapes and dtypes. Dicts get sorted keys.
    """

    def run(payloads: Sequence[Tree]) -> list[Tree]:
        flat = [_flat(payload) for payload in payloads]
        if len(flat) == 1:
            return unstack(fn(_stack(flat)), 1)
        groups: dict[object, list[int]] = {}
        for index, (_, form) in enumerate(flat):
            groups.setdefault(form, []).append(index)
        answers: list[Tree] = [None] * len(payloads)
        for members in groups.values():
            answer = fn(_stack([flat[i] for i in members]))
            for i, part in zip(members, unstack(answer, len(members)), strict=True):
                answers[i] = part
        return answers

    return run


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack ``N`` payloads of the same structure to one payload with a new first axis of length ``N``.

    Dicts and tuples keep their structure. Arrays, numbers and lists of numbers become arrays ``[N, ...]``. Any other value,
    such as a string, becomes a list of ``N`` values.
    """
    return _stack([_flat(tree) for tree in trees])


def unstack(tree: Tree, count: int) -> list[Tree]:
    """Split a stacked payload into a list of payloads. This is the inverse of `stack`.

    Args:
        tree: The stacked payload: nested dicts and tuples of arrays or torch tensors ``[count, ...]``, or lists of length
            `count`.
        count: Number of payloads.

    Raises:
        ValueError: If the first axis of an array or the length of a list is not `count`. The message has the path of the value.
    """
    leaves, structure = flatten(tree)
    columns = []
    for index, leaf in enumerate(leaves):
        rows = leaf if isinstance(leaf, list) else _array(leaf)
        if (not isinstance(rows, list) and rows.ndim == 0) or len(rows) != count:
            size = "no axis" if not isinstance(rows, list) and rows.ndim == 0 else f"{len(rows)} entries"
            path = [*leaf_paths(structure, "answer")][index]
            raise ValueError(f"{path} has {size}; a batch of {count} needs as many along the first axis")
        columns.append(rows)
    return unflatten_each(structure, columns, count)


def _flat(tree: Tree) -> tuple[list[Any], _Form]:
    """Return a payload's leaves, and its form. Payloads with an equal form can be stacked."""
    leaves, structure = flatten(tree, by_key=True)
    kinds: list[object] = []
    for index, leaf in enumerate(leaves):
        kind = type(leaf)
        if kind is list:
            leaves[index] = leaf = _numbers(leaf)
            kind = type(leaf)
        if kind is np.ndarray:
            kinds += leaf.dtype, leaf.shape
        else:
            kinds.append(leaf.dtype if isinstance(leaf, np.generic) else kind)
    return leaves, (structure, tuple(kinds))


def _stack(flat: Sequence[tuple[list[Any], _Form]]) -> Tree:
    return unflatten(flat[0][1][0], [_column(leaves) for leaves in zip(*[leaves for leaves, _ in flat], strict=True)])


def _column(leaves: Sequence[Any]) -> Tree:
    first = leaves[0]
    if type(first) is np.ndarray:
        out = np.empty((len(leaves), *first.shape), first.dtype)  # several times as fast as numpy.stack for small arrays
        for index, leaf in enumerate(leaves):
            out[index] = leaf
        return out
    if type(first) in (bool, int, float) or isinstance(first, np.generic):
        return np.asarray(leaves)
    return list(leaves)


def _numbers(value: list[Any]) -> Any:
    """Convert a list of numbers, or of rows of equal length, to an array. Return any other list unchanged."""
    try:
        array = np.asarray(value)
    except ValueError:
        return value
    return array if array.dtype.kind in "biuf" else value


def _array(value: Any) -> np.ndarray[Any, Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)
