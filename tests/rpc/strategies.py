"""Strategies that draw trees and messages for the tests of calls."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rl4sys_zmq.values import DTYPES

FOREIGN_ORDER = (">i2", ">f4", ">u8")


@st.composite
def arrays(draw: Any) -> Any:
    """Draw an array that can be sent: 0-d, empty, big-endian, F-ordered, reversed, with gaps."""
    dtype = draw(st.sampled_from([*DTYPES, *FOREIGN_ORDER]))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    count = int(np.prod(shape, dtype=np.int64))
    raw = draw(st.binary(min_size=count * np.dtype(dtype).itemsize, max_size=count * np.dtype(dtype).itemsize))
    array = np.frombuffer(raw, dtype).reshape(shape) if dtype != "|b1" else (np.frombuffer(raw, "|u1") % 2 == 1).reshape(shape)
    match draw(st.sampled_from(["as it is", "fortran", "reversed", "gaps"])):
        case "fortran":
            return np.asfortranarray(array)
        case "reversed" if array.ndim:
            return array[::-1]
        case "gaps" if array.ndim:
            return array[..., ::2]
    return array


SCALARS = st.sampled_from([d for d in DTYPES if d != "|b1"]).flatmap(
    lambda d: st.binary(min_size=np.dtype(d).itemsize, max_size=np.dtype(d).itemsize).map(lambda raw: np.frombuffer(raw, d)[0])
)
TEXTS = st.one_of(st.text(max_size=20), st.text(min_size=1, max_size=3).map(lambda t: t * 1500))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    TEXTS,
    st.binary(max_size=40),
    st.integers(2000, 9000).map(lambda n: b"\xfe" * n),
    arrays(),
    SCALARS,
    st.sampled_from([np.True_, np.False_]),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=8), inner, max_size=4),
        st.dictionaries(st.integers(-(1 << 63), (1 << 64) - 1), inner, max_size=3),
    ),
    max_leaves=12,
)


def assert_same(left: Any, right: Any) -> None:
    """Assert that two trees are equal to the bit: types, dtypes except for their byte order, shapes, the bits of NaNs."""
    assert type(left) is type(right) or (isinstance(left, np.ndarray) and isinstance(right, np.ndarray))
    if isinstance(left, np.ndarray):
        assert left.dtype.newbyteorder("<") == right.dtype
        assert left.shape == right.shape
        assert left.astype(right.dtype).tobytes() == right.tobytes()
        assert not right.flags.writeable
    elif isinstance(left, np.generic):
        assert left.dtype == right.dtype
        assert left.tobytes() == right.tobytes()
    elif isinstance(left, float):
        assert np.float64(left).tobytes() == np.float64(right).tobytes() or (left != left and right != right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    else:
        assert left == right
