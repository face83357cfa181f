"""Trees of arrays: nested dicts, lists and tuples whose leaves are arrays, numbers, strings, bytes or None.

This module walks them. `wire.trees` writes and reads them; `values.spaces` says what the trees of a space look like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rl4sys_zmq.errors import DataError

__all__ = [
    "MAX_DEPTH",
    "MAX_ITEMS",
    "MAX_KEY",
    "Path",
    "Structure",
    "Tree",
    "copy_tree",
    "flatten",
    "is_text",
    "keys_of",
    "leaf_paths",
    "map_tree",
    "named_leaves",
    "tree_of_names",
    "unflatten",
    "unflatten_each",
]

Tree = Any
"""None, bool, int, float, str, bytes, a numpy array or scalar, or a list, tuple or dict of trees."""
MAX_DEPTH = 16
"""The most levels of containers in a tree that travels."""
MAX_ITEMS = 65_536
"""The most entries of one container."""
MAX_KEY = 4096
"""The most characters of a key: so many fit a header's string in any script."""
STORED_DEPTH = MAX_DEPTH - 2
"""The most levels of an item of a data store, which travels within a message of two levels."""

Path = tuple[Any, ...]
"""A place in a tree: ``()`` for the root, else a pair of the parent's place and the key or index."""


Structure = tuple[type, tuple[Any, ...], tuple[Any, ...]] | None
"""The containers of a tree, without its leaves: None for a leaf, else dict or tuple, a dict's keys, and the entries' structures.

It can be hashed and compared.
"""


def flatten(tree: Tree, *, tuples: bool = True, by_key: bool = False) -> tuple[list[Any], Structure]:
    """Return the leaves of a tree and its structure. A list is a leaf: it may be an array to be.

    Args:
        tree: the tree.
        tuples: go into tuples; otherwise they are leaves, too.
        by_key: take the entries of a dict in the order of the keys, so that dicts with the same keys have one structure.
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, (dict, tuple) if tuples else (dict,), by_key)


def _flatten(tree: Tree, leaves: list[Any], containers: tuple[type, ...], by_key: bool) -> Structure:
    if isinstance(tree, dict):
        kind: type = dict
        keys = tuple(sorted(tree) if by_key else tree)
        entries: Iterable[Any] = tree.values() if not by_key else map(tree.__getitem__, keys)
    elif isinstance(tree, tuple) and tuple in containers:
        kind, keys, entries = tuple, (), tree
    else:
        leaves.append(tree)
        return None
    parts: list[Structure] = []
    for held in entries:
        if type(held) is np.ndarray or not isinstance(held, containers):
            leaves.append(held)
            parts.append(None)
        else:
            parts.append(_flatten(held, leaves, containers, by_key))
    return kind, keys, tuple(parts)


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Tree:
    """Return the tree of this structure that has these leaves, in the order of `flatten`."""
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Tree:
    if structure is None:
        return next(leaves)
    kind, keys, parts = structure
    built = [next(leaves) if part is None else _unflatten(part, leaves) for part in parts]
    return dict(zip(keys, built, strict=True)) if kind is dict else tuple(built)


def unflatten_each(structure: Structure, columns: Iterable[Any], count: int) -> list[Tree]:
    """Return `count` trees of this structure. Each column has `count` rows: that leaf of each tree."""
    return _unflatten_each(structure, iter(columns), count)


def _unflatten_each(structure: Structure, columns: Iterator[Any], count: int) -> list[Tree]:
    if structure is None:
        return list(next(columns))
    kind, keys, parts = structure
    if not parts:
        return [kind() for _ in range(count)]
    rows = zip(*[_unflatten_each(part, columns, count) for part in parts], strict=True)
    return [dict(zip(keys, row, strict=True)) for row in rows] if kind is dict else list(rows)


def leaf_paths(structure: Structure, prefix: str = "") -> Iterator[str]:
    """Yield the path of each leaf, like ``['image'][0]``, in the order of `flatten`."""
    if structure is None:
        yield prefix
        return
    _, keys, parts = structure
    for key, part in zip(keys or range(len(parts)), parts, strict=True):
        yield from leaf_paths(part, f"{prefix}[{key!r}]")


def copy_tree(tree: Tree) -> Any:
    """Return a tree whose arrays may be written to: those of a received message share its bytes and may not."""
    kind = type(tree)
    if kind is np.ndarray:
        return tree.copy()
    if kind is dict:
        return {k: copy_tree(v) for k, v in tree.items()}
    if kind is list:
        return [copy_tree(v) for v in tree]
    if kind is tuple:
        return tuple([copy_tree(v) for v in tree])
    return tree


def map_tree(
    fn: Callable[[Any, Path], Any],
    tree: Any,
    error: Callable[[Path, str], Exception],
    max_depth: int = MAX_DEPTH,
    path: Path = (),
) -> Tree:
    """Return a tree that can travel, with ``fn(leaf, path)`` for each leaf. Mappings become dicts, named tuples tuples.

    Args:
        fn: makes a leaf that can travel.
        tree: nested mappings, lists and tuples of anything.
        error: makes the exception to raise for a path and what is wrong there.
        max_depth: the most levels of containers.
        path: the place of the tree.
    """
    if not isinstance(tree, (dict, list, tuple, Mapping)):
        return fn(tree, path)
    if max_depth <= 0:
        raise error(path, f"nested deeper than {len(keys_of(path))}")
    if len(tree) > MAX_ITEMS:
        raise error(path, f"{len(tree)} entries, where {MAX_ITEMS} can travel: use an array")
    deeper = max_depth - 1
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str) or len(key) > MAX_KEY or not is_text(key):
                raise error(path, f"{key!r:.60} is not a key: a key is a string of at most {MAX_KEY} characters")
        return {str(key): map_tree(fn, held, error, deeper, (path, key)) for key, held in tree.items()}
    mapped = [map_tree(fn, held, error, deeper, (path, index)) for index, held in enumerate(tree)]
    return tuple(mapped) if isinstance(tree, tuple) else mapped


def keys_of(path: Path) -> list[Any]:
    """Return the keys and indices from the root to a place."""
    keys: list[Any] = []
    while path:
        path, key = path
        keys.append(key)
    return keys[::-1]


def is_text(value: str) -> bool:
    """Return True for a string that UTF-8 can say: without lone surrogates."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def named_leaves(tree: Mapping[Any, object], prefix: str = "", depth: int = 0) -> dict[str, object]:
    """Return the leaves of nested mappings by their names: ``{"observations": {"camera": x}}`` has ``observations/camera``.

    Raises:
        DataError: for a key that is not a string or has a ``/``, an empty mapping, or a tree that is too deep.
    """
    if depth > STORED_DEPTH:
        raise DataError(prefix.rstrip("/"), f"nested deeper than {STORED_DEPTH}")
    leaves: dict[str, object] = {}
    for key, value in tree.items():
        if type(key) is not str or not key or "/" in key:
            raise DataError(prefix.rstrip("/"), f"{key!r:.60} is not a key: a key is a string without a slash")
        if isinstance(value, Mapping):
            if not value:
                raise DataError(prefix + key, "an empty dict has nothing to store")
            leaves.update(named_leaves(value, f"{prefix}{key}/", depth + 1))
        else:
            leaves[prefix + key] = value
    return leaves


def tree_of_names(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of dicts that has the leaves with these names."""
    tree: dict[str, Any] = {}
    for path, value in leaves.items():
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = value
    return tree
