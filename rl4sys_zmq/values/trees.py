"""Trees of arrays: nested dicts, lists and tuples whose leaves are arrays, numbers, strings, bytes or None.

This module walks them; `wire.trees` writes and reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Tree", "copy_tree"]

Tree = Any
"""None, bool, int, float, str, bytes, a numpy array or scalar, or a list, tuple or dict of trees."""


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
