"""Parameters of any framework as arrays, and items as columns."""

import sys
from collections import OrderedDict, namedtuple
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.errors import PayloadError
from rl4sys_zmq.serving.trainer_transfer import copy_params, pack_items, params_as_arrays, unpack_items
from rl4sys_zmq.values.trees import copy_tree
from rl4sys_zmq.wire.trees import pack_tree, unpack_tree

from .trees import same


class JaxLike:
    """An array of another framework. It supports only the conversion to numpy."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._values if dtype is None else self._values.astype(dtype)


def test_trees_of_any_framework() -> None:
    Pair = namedtuple("Pair", "a b")
    mine = np.arange(3.0)
    tree = params_as_arrays(
        MappingProxyType({"jax": JaxLike([[1, 2]]), "np": mine, "list": [np.float32(1), 2, None], "pair": Pair(1.5, "x")})
    )
    assert type(tree) is dict and type(tree["jax"]) is np.ndarray
    assert tree["jax"].tolist() == [[1, 2]] and tree["list"] == [1.0, 2, None] and tree["pair"] == (1.5, "x")
    mine += 1
    assert tree["np"].tolist() == [0.0, 1.0, 2.0]
    again = copy_tree(tree)
    assert again["np"] is not tree["np"] and again["pair"] == (1.5, "x")


def test_integer_keys_stay_integers() -> None:
    tree = params_as_arrays({"layers": MappingProxyType({1: np.ones(2), 0: {"w": np.zeros(1)}}), "none": {}})
    assert list(tree["layers"]) == [1, 0] and tree["none"] == {}
    assert copy_params(tree)["layers"][0]["w"].tolist() == [0.0]


def test_bfloat16_is_copied_and_readable_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.delitem(sys.modules, "ml_dtypes", raising=False)  # the package onnx imports it
    weights = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    tree = params_as_arrays({"w": weights})
    weights += 1
    copy = copy_params(tree)["w"]
    assert copy.dtype == np.float32 and copy.tolist() == [1.5, -2.0] and copy.flags.writeable


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(2, 3)
    tree = params_as_arrays(layer.state_dict())
    assert np.array_equal(tree["weight"], layer.weight.detach().numpy())
    with torch.no_grad():
        layer.weight += 1
    assert not np.array_equal(tree["weight"], layer.weight.detach().numpy())
    assert params_as_arrays(layer.weight).shape == (3, 2)  # a parameter that requires a gradient; the result has no graph
    with pytest.raises(PayloadError, match=r"params\['x'\]\[0\].*cast it"):
        params_as_arrays({"x": [torch.eye(2).to_sparse()]})


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"a": {"b": object()}}, r"params\['a'\]\['b'\]: a value of type builtins.object"),
        ({"a": [{1, 2}]}, r"params\['a'\]\[0\]"),
        ({1.5: 2}, "1.5 is not a key"),
        (np.array([object()]), "dtype object"),
        (np.zeros(2, np.complex64), "cast it"),
    ],
)
def test_what_cannot_travel_is_named_by_its_path(params: Any, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        params_as_arrays(params)


def test_parameters_too_deep_or_too_large() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with pytest.raises(PayloadError, match="nested deeper"):
        params_as_arrays(deep)
    with pytest.raises(PayloadError, match="the limit is"):
        params_as_arrays(np.broadcast_to(np.zeros(1, np.uint8), ((256 << 20) + 1,)))


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text(max_size=5), st.binary(max_size=5)
) | st.builds(lambda shape, dtype: np.ones(shape, dtype), st.sampled_from([(), (2,), (2, 3)]), st.sampled_from(["f4", "i8", "?"]))
scalars = st.sampled_from([np.float32(1), np.int64(2), np.bool_(True)])
trees = st.recursive(
    leaves | scalars, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(max_size=3), t, max_size=3), max_leaves=6
)


@given(st.lists(trees, max_size=6) | st.tuples(trees, st.integers(1, 6)).map(lambda pair: [pair[0]] * pair[1]))
def test_items_come_out_as_they_went_in(items: list[Any]) -> None:
    skeleton, frames = pack_tree(pack_items(items))
    out = unpack_items(unpack_tree(skeleton, frames))
    assert len(out) == len(items) and all(map(same, items, out))


def test_items_that_are_alike_are_columns() -> None:
    items = [OrderedDict(x=np.ones(3) * n) for n in range(3)]
    assert pack_items([dict(item) for item in items])["columns"]["x"].shape == (3, 3)
