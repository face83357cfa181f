"""Functions for trees: nested dicts, lists and tuples whose leaves are arrays, numbers, strings, bytes or None.

`wire.trees` encodes and decodes trees. `values.spaces` defines the trees of a space.
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
    "flatten_names",
    "unflatten_names",
    "unflatten",
    "unflatten_each",
]

Tree = Any
"""A tree: None, bool, int, float, str, bytes, a NumPy array or scalar, or a list, tuple or dict of trees."""
MAX_DEPTH = 16
"""The most levels of containers in a tree that can be sent."""
MAX_ITEMS = 65_536
"""The most entries of one container."""
MAX_KEY = 4096
"""The most characters of a key. With any characters, the key then fits a string of a header."""
STORED_DEPTH = MAX_DEPTH - 2
"""The most levels of an item of a data store, which is sent inside a message of two levels."""

Path = tuple[Any, ...]
"""A position in a tree: ``()`` for the root, else a pair of the parent's path and the key or index."""


Structure = tuple[type, tuple[Any, ...], tuple[Any, ...]] | None
"""The containers of a tree without its leaves. It can be hashed and compared.

None for a leaf, else a tuple of the type (dict or tuple), the keys of a dict, and the structures of the entries.
"""


def flatten(tree: Tree, *, tuples: bool = True, by_key: bool = False) -> tuple[list[Any], Structure]:
    """Return the leaves of a tree and its structure. A list is a leaf, because it can be converted to an array.

    Args:
        tree: The tree.
        tuples: True to descend into tuples; False to treat them as leaves.
        by_key: True to sort the entries of dicts by key, so that dicts with the same keys have the same structure.
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
    """Return the tree with this structure and these leaves, in the order of `flatten`."""
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Tree:
    if structure is None:
        return next(leaves)
    kind, keys, parts = structure
    built = [next(leaves) if part is None else _unflatten(part, leaves) for part in parts]
    return dict(zip(keys, built, strict=True)) if kind is dict else tuple(built)


def unflatten_each(structure: Structure, columns: Iterable[Any], count: int) -> list[Tree]:
    """Return `count` trees with this structure. Each column has `count` rows, one leaf of each tree."""
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
    """Return a tree with writable copies of its arrays. Arrays of a received message are read-only views."""
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
    """Return a tree that can be sent, with ``fn(leaf, path)`` for each leaf.

    Mappings become dicts, and named tuples become tuples.

    Args:
        fn: Returns a leaf that can be sent.
        tree: Nested mappings, lists and tuples of any leaves.
        error: Returns the exception to raise, from a path and a description of the problem.
        max_depth: The most levels of containers.
        path: The path of the tree.
    """
    if not isinstance(tree, (dict, list, tuple, Mapping)):
        return fn(tree, path)
    if max_depth <= 0:
        raise error(path, f"nested deeper than {len(keys_of(path))}")
    if len(tree) > MAX_ITEMS:
        raise error(path, f"has {len(tree)} entries; the limit is {MAX_ITEMS}. Use an array")
    deeper = max_depth - 1
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str) or len(key) > MAX_KEY or not is_text(key):
                raise error(path, f"{key!r:.60} is not a key; expected a string of at most {MAX_KEY} characters")
        return {str(key): map_tree(fn, held, error, deeper, (path, key)) for key, held in tree.items()}
    mapped = [map_tree(fn, held, error, deeper, (path, index)) for index, held in enumerate(tree)]
    return tuple(mapped) if isinstance(tree, tuple) else mapped


def keys_of(path: Path) -> list[Any]:
    """Return the keys and indices from the root to a position."""
    keys: list[Any] = []
    while path:
        path, key = path
        keys.append(key)
    return keys[::-1]


def is_text(value: str) -> bool:
    """Return True if UTF-8 can encode a string, which requires that it has no lone surrogates."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def flatten_names(tree: Mapping[Any, object], prefix: str = "", depth: int = 0) -> dict[str, object]:
    """Return the leaves of nested mappings by name. The name of ``x`` in ``{"a": {"b": x}}`` is ``a/b``.

    Raises:
        DataError: If a key is not a string, is empty or contains a ``/``, a mapping is empty, or the tree is too deep.
    """
    if depth > STORED_DEPTH:
        raise DataError(prefix.rstrip("/"), f"nested deeper than {STORED_DEPTH}")
    leaves: dict[str, object] = {}
    for key, value in tree.items():
        if type(key) is not str or not key or "/" in key:
            raise DataError(prefix.rstrip("/"), f"{key!r:.60} is not a key; expected a string without a slash")
        if isinstance(value, Mapping):
            if not value:
                raise DataError(prefix + key, "an empty dict cannot be stored")
            leaves.update(flatten_names(value, f"{prefix}{key}/", depth + 1))
        else:
            leaves[prefix + key] = value
    return leaves


def unflatten_names(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of nested dicts whose leaves have these names. It reverses `flatten_names`."""
    tree: dict[str, Any] = {}
    for path, value in leaves.items():
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = value
    return tree
