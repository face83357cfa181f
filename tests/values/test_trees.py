"""Functions on trees: to split a tree into leaves and join them again, to copy it, and to change each leaf."""

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.errors import DataError
from rl4sys_zmq.values.trees import (
    MAX_ITEMS,
    Path,
    copy_tree,
    flatten,
    flatten_names,
    keys_of,
    leaf_paths,
    map_tree,
    unflatten,
    unflatten_each,
    unflatten_names,
)

LEAVES = st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2), st.just(np.arange(3)))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.dictionaries(st.text(max_size=3), inner, max_size=3), st.just({}), st.just(())
    ),
    max_leaves=10,
)


@given(TREES, st.booleans(), st.booleans(), st.integers(0, 3))
def test_a_tree_taken_apart_is_put_together_again(tree: Any, tuples: bool, by_key: bool, count: int) -> None:
    leaves, structure = flatten(tree, tuples=tuples, by_key=by_key)
    assert not any(isinstance(leaf, dict) or (tuples and isinstance(leaf, tuple)) for leaf in leaves)
    np.testing.assert_equal(unflatten(structure, leaves), tree)
    np.testing.assert_equal(unflatten_each(structure, [[leaf] * count for leaf in leaves], count), [tree] * count)
    for path, leaf in zip(leaf_paths(structure), leaves, strict=True):
        assert eval(f"tree{path}", {"tree": tree}) is leaf  # a path is an expression
    assert flatten(copy_tree(tree), tuples=tuples, by_key=by_key)[1] == structure
    hash(structure)


def test_the_order_of_keys_matters_on_demand() -> None:
    one, other = {"a": 1, "b": (2, 3)}, {"b": (4, 5), "a": 6}
    assert flatten(one)[1] != flatten(other)[1]
    assert flatten(one, by_key=True)[1] == flatten(other, by_key=True)[1]
    assert flatten(other, by_key=True)[0] == [6, 4, 5]
    assert list(leaf_paths(flatten(one)[1], "x")) == ["x['a']", "x['b'][0]", "x['b'][1]"]


NAMES = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=4)


@given(
    st.dictionaries(
        NAMES, st.recursive(st.integers(), lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=6)
    )
)
def test_named_leaves_make_their_tree(tree: Any) -> None:
    assert unflatten_names(flatten_names(tree)) == tree


Pair = namedtuple("Pair", "x y")


def fault(path: Path, problem: str) -> DataError:
    return DataError("/".join(map(str, keys_of(path))), problem)


def test_a_tree_is_changed_leaf_by_leaf() -> None:
    seen: list[Any] = []

    def leaf(value: Any, path: Path) -> Any:
        seen.append(keys_of(path))
        return value * 2

    mapped = map_tree(leaf, {"a": Pair(1, [2]), "b": OrderedDict(c=3)}, fault)
    assert mapped == {"a": (2, [4]), "b": {"c": 6}}
    assert (type(mapped["a"]), type(mapped["b"])) == (tuple, dict)
    assert seen == [["a", 0], ["a", 1, 0], ["b", "c"]]


@pytest.mark.parametrize(
    ("tree", "key", "words"),
    [
        ({"a": {"x": 1, 1: 2}}, "a", "1 is not a key"),
        ({"a": {1: 1, "x": 2}}, "a", "'x' is not a key"),
        ({"a": {1 << 64: 2}}, "a", "is not a key"),
        ({"a": {"k" * 5000: 2}}, "a", "is not a key"),
        ({"a": {"\ud800": 2}}, "a", "is not a key"),
        ([[0] * (MAX_ITEMS + 1)], "0", "65537 entries"),
        ([[[[1]]]], "0/0/0", "nested deeper than 3"),
    ],
)
def test_a_tree_that_cannot_travel_is_refused_by_its_path(tree: Any, key: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        map_tree(lambda value, path: value, tree, fault, max_depth=3)
    assert caught.value.key == key
