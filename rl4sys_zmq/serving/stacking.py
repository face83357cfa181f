"""Payloads of several callers as one, with a leading axis, and the answer taken apart again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl4sys_zmq.values.trees import Structure, Tree, flatten, unflatten

__all__ = ["batched", "stack", "unstack"]


def batched(fn: Callable[[Tree], Tree]) -> Callable[[Sequence[Tree]], list[Tree]]:
    """Return a function of a list of payloads made of one of a stacked payload.

    Payloads of different shapes go to `fn` separately. The dicts of a stacked payload have their keys in order.
    """

    def run(payloads: Sequence[Tree]) -> list[Tree]:
        groups: dict[object, list[int]] = {}
        flat = [_flat(payload) for payload in payloads]
        for index, (leaves, structure) in enumerate(flat):
            groups.setdefault((structure, tuple([_signature(leaf) for leaf in leaves])), []).append(index)
        answers: list[Tree] = [None] * len(payloads)
        for members in groups.values():
            answer = fn(_stack([flat[i] for i in members]))
            for i, part in zip(members, unstack(answer, len(members)), strict=True):
                answers[i] = part
        return answers

    return run


def stack(trees: Sequence[Tree]) -> Tree:
    """Return ``N`` trees of one shape as one.

    Arrays, numbers and lists of numbers become arrays ``[N, ...]``, other leaves lists of ``N``; dicts and tuples stay.
    """
    return _stack([_flat(tree) for tree in trees])


def unstack(tree: Tree, count: int) -> list[Tree]:
    """Undo `stack`: a tree of dicts and tuples whose leaves are arrays ``[N, ...]`` (or tensors) or lists of ``N``.

    Raises:
        ValueError: for a leaf that has no such axis, by its path.
    """
    leaves, structure = flatten(tree)
    columns = []
    for index, leaf in enumerate(leaves):
        rows = leaf if isinstance(leaf, list) else _array(leaf)
        if (not isinstance(rows, list) and rows.ndim == 0) or len(rows) != count:
            size = "no axis" if not isinstance(rows, list) and rows.ndim == 0 else f"{len(rows)} entries"
            path = [*structure.paths("answer")][index]
            raise ValueError(f"{path} has {size}; a batch of {count} needs as many, along the first axis")
        columns.append(rows)
    return [unflatten(structure, [column[i] for column in columns]) for i in range(count)]


def _flat(tree: Tree) -> tuple[list[Any], Structure]:
    """The leaves and the structure of a payload, with lists of numbers as arrays."""
    leaves, structure = flatten(tree, by_key=True)
    return [_numbers(leaf) if type(leaf) is list else leaf for leaf in leaves], structure


def _signature(leaf: Any) -> object:
    """What leaves must have in common to be stacked."""
    if type(leaf) is np.ndarray:
        return leaf.dtype.str, leaf.shape
    return leaf.dtype.str if isinstance(leaf, np.generic) else type(leaf)


def _stack(flat: Sequence[tuple[list[Any], Structure]]) -> Tree:
    return unflatten(flat[0][1], [_column(leaves) for leaves in zip(*[leaves for leaves, _ in flat], strict=True)])


def _column(leaves: Sequence[Any]) -> Tree:
    first = leaves[0]
    if type(first) is np.ndarray:
        return np.stack(leaves)
    if type(first) in (bool, int, float) or isinstance(first, np.generic):
        return np.asarray(leaves)
    return list(leaves)


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
