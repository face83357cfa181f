"""Functions for trees: nested dicts, lists and tuples whose leaves are arrays, numbers, strings, bytes or None."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rl4sys_zmq.errors import DataError

Tree = Any
"""None, bool, int, float, str, bytes, a NumPy array or scalar, or a list, tuple or dict of trees.

The keys of a dict are strings, or all of them are integers.
"""
MAX_DEPTH = 16
"""The largest number of nested levels in a tree that can be sent."""
MAX_ITEMS = 65_536
"""The largest number of entries of one dict, list or tuple."""
MAX_KEY = 4096
"""The largest number of characters of a dict key. In UTF-8, it has at most as many bytes as a header allows."""
STORED_DEPTH = MAX_DEPTH - 2
"""The largest number of nested levels in an item of a data store. A message with the item adds two levels."""

Path = tuple[Any, ...]
"""A position in a tree: ``()`` for the root, else the path of the parent, and the key or index in the parent."""


Structure = tuple[type, tuple[Any, ...], tuple[Any, ...]] | None
"""A tree without its leaves: None for a leaf, else the type (dict or tuple), the keys (empty for a tuple), and the entries'."""


def flatten(tree: Tree, *, tuples: bool = True, by_key: bool = False) -> tuple[list[Any], Structure]:
    """Return the leaves of nested dicts and tuples, and their structure. A list is a leaf; without `tuples`, so is a tuple."""
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
    """Build nested dicts and tuples from leaves: the inverse of `flatten`."""
    left = iter(leaves)
    if structure is None:
        return next(left)
    kind, keys, parts = structure
    built = [next(left) if part is None else unflatten(part, left) for part in parts]
    return dict(zip(keys, built, strict=True)) if kind is dict else tuple(built)


def unflatten_each(structure: Structure, columns: Iterable[Any], count: int) -> list[Tree]:
    """Build `count` trees of one structure. `columns` has, for each leaf, the values of that leaf in all trees."""
    left = iter(columns)
    if structure is None:
        return list(next(left))
    kind, keys, parts = structure
    if not parts:
        return [kind() for _ in range(count)]
    rows = zip(*[unflatten_each(part, left, count) for part in parts], strict=True)
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
    """Return a copy of a tree, with writable arrays. The arrays of received data are read-only views of the message."""
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
    """Return a copy of a tree in which ``fn(leaf, path)`` replaces each leaf. Mappings become dicts, named tuples tuples."""
    if not isinstance(tree, (dict, list, tuple, Mapping)):
        return fn(tree, path)
    if max_depth <= 0:
        raise error(path, f"nested deeper than {len(keys_of(path))}")
    if len(tree) > MAX_ITEMS:
        raise error(path, f"has {len(tree)} entries; the limit is {MAX_ITEMS}. Use an array")
    deeper = max_depth - 1
    if isinstance(tree, Mapping):
        numbered = type(next(iter(tree), None)) is int
        for key in tree:
            if numbered:
                valid = type(key) is int and -(1 << 63) <= key < 1 << 64
            else:
                valid = isinstance(key, str) and len(key) <= MAX_KEY and is_text(key)
            if not valid:
                expected = f"strings of at most {MAX_KEY} characters, or all of them integers of at most 64 bits"
                raise error(path, f"{key!r:.60} is not a key; keys must be {expected}")
        return {key if numbered else str(key): map_tree(fn, held, error, deeper, (path, key)) for key, held in tree.items()}
    mapped = [map_tree(fn, held, error, deeper, (path, index)) for index, held in enumerate(tree)]
    return tuple(mapped) if isinstance(tree, tuple) else mapped


def keys_of(path: Path) -> list[Any]:
    """Return the keys and indices that a path text, such as ``['image'][0]``, consists of."""
    keys: list[Any] = []
    while path:
        path, key = path
        keys.append(key)
    return keys[::-1]


def is_text(value: str) -> bool:
    """Return True if UTF-8 can encode a string. A lone surrogate cannot be encoded."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def flatten_names(tree: Mapping[Any, object], prefix: str = "", depth: int = 0) -> dict[str, object]:
    """Return the leaves of nested mappings by name. The name of ``x`` in ``{"a": {"b": x}}`` is ``a/b``."""
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
    """Return the nested dicts whose leaves have these names: the inverse of `flatten_names`."""
    tree: dict[str, Any] = {}
    for path, value in leaves.items():
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = value
    return tree
