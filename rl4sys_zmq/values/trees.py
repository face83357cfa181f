"""Trees of arrays: nested dicts, lists and tuples whose leaves are arrays, numbers, strings, bytes or None.

This module walks them. `wire.trees` writes and reads them; `values.spaces` says what the trees of a space look like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

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
    "map_tree",
    "named_leaves",
    "tree_of_names",
    "unflatten",
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


class Structure(NamedTuple):
    """The containers of a tree, without its leaves. It can be hashed and compared.

    Attributes:
        kind: dict or tuple; None for a leaf.
        keys: a dict's keys.
        parts: the structure of each entry.
    """

    kind: type | None
    keys: tuple[Any, ...]
    parts: tuple[Structure, ...]

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield the path of each leaf, like ``['image'][0]``, in the order of `flatten`."""
        if self.kind is None:
            yield prefix
        for key, part in zip(self.keys or range(len(self.parts)), self.parts, strict=True):
            yield from part.paths(f"{prefix}[{key!r}]")


_LEAF = Structure(None, (), ())


def flatten(tree: Tree, *, tuples: bool = True, by_key: bool = False) -> tuple[list[Any], Structure]:
    """Return the leaves of a tree and its structure. A list is a leaf: it may be an array to be.

    Args:
        tree: the tree.
        tuples: go into tuples; otherwise they are leaves, too.
        by_key: take the entries of a dict in the order of the keys, so that dicts with the same keys have one structure.
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, tuples, by_key)


def _flatten(tree: Tree, leaves: list[Any], tuples: bool, by_key: bool) -> Structure:
    if isinstance(tree, dict):
        keys = tuple(sorted(tree) if by_key else tree)
        return Structure(dict, keys, tuple([_flatten(tree[key], leaves, tuples, by_key) for key in keys]))
    if tuples and isinstance(tree, tuple):
        return Structure(tuple, (), tuple([_flatten(held, leaves, tuples, by_key) for held in tree]))
    leaves.append(tree)
    return _LEAF


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Tree:
    """Return the tree of this structure that has these leaves, in the order of `flatten`."""
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Tree:
    kind, keys, parts = structure
    if kind is None:
        return next(leaves)
    built = [_unflatten(part, leaves) if part.kind else next(leaves) for part in parts]
    return dict(zip(keys, built, strict=True)) if kind is dict else tuple(built)


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
