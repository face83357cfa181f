"""Header values: the output of msgpack-numpy is read, and values that it would execute are refused."""

import contextlib
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.values import DTYPES
from rl4sys_zmq.values.trees import MAX_DEPTH
from rl4sys_zmq.wire.frames import MAX_HEADER_BYTES, pack_header, unpack_header

from .conftest import refusal


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("import sys; sys.rl4sys_was_unpickled = True",))


PICKLED = pickle.dumps(Bomb())


@pytest.fixture(autouse=True)
def nothing_is_unpickled() -> Iterator[Any]:
    yield
    assert not hasattr(sys, "rl4sys_was_unpickled")


def array_form(**changes: Any) -> Any:
    form = {
        b"nd": True,
        b"type": "<f4",
        b"kind": b"",
        b"shape": [2],
        b"data": bytes(8),
        **{k.encode(): v for k, v in changes.items()},
    }
    return msgpack.packb({k: v for k, v in form.items() if v is not ...}, use_bin_type=True)


def code_of(data: Any) -> Any:
    with pytest.raises(ProtocolError) as caught:
        unpack_header(data)
    return caught.value.code


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3), (1,) * 8])
def test_arrays_come_back(dtype: Any, shape: Any) -> None:
    array = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    (back,) = unpack_header(pack_header([array]))
    assert (back.dtype.str, back.shape) == (dtype, shape)
    assert np.array_equal(back, array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scalars_come_back(dtype: Any) -> None:
    scalar = np.ones((), dtype)[()]
    back = unpack_header(pack_header({"x": scalar}))["x"]
    assert back == scalar
    assert np.asarray(back).dtype.str == dtype


@given(st.lists(st.integers(0, 4), max_size=4), st.sampled_from(DTYPES))
def test_views_are_packed_as_what_they_show(shape: Any, dtype: Any) -> None:
    doubled = [2 * shape[0], *shape[1:]] if shape else [2]
    array = np.arange(np.prod(doubled, dtype=int)).astype(dtype).reshape(doubled)
    view = array[::2].T
    assert np.array_equal(unpack_header(pack_header(view)), view)


@pytest.mark.parametrize(
    "bad",
    [
        np.array([Bomb(), None], dtype=object),
        np.array([object()]),
        np.zeros(2, dtype=[("a", "<f4"), ("b", "O")]),
        np.zeros(2, dtype=[("a", "<f4")])[0],
        np.zeros(2, ">f4"),
        np.array(["text"]),
        np.array([b"bytes"]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, np.complex64),
        np.zeros(2, np.longdouble),
    ],
    ids=lambda a: str(a.dtype),
)
def test_other_arrays_are_refused_before_they_are_packed(bad: Any) -> None:
    with refusal(RefusalReason.DTYPE):
        pack_header({"x": bad})


@pytest.mark.parametrize("bad", [object(), {1, 2}, 1j, {"x": range(3)}, 2**64, Bomb()])
def test_other_values_are_refused_before_they_are_packed(bad: Any) -> None:
    with pytest.raises(ProtocolError):
        pack_header(bad)


def test_a_loop_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ProtocolError):
        pack_header(loop)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"kind": b"O", "type": "|O", "data": PICKLED}, RefusalReason.DTYPE),
        ({"kind": b"O", "data": PICKLED}, RefusalReason.MALFORMED),
        ({"type": "|O", "data": PICKLED}, RefusalReason.DTYPE),
        ({"type": "O"}, RefusalReason.DTYPE),
        ({"kind": b"V", "type": [["a", "<f4"], ["b", "|O"]]}, RefusalReason.DTYPE),
        ({"kind": b"V", "type": "|V8"}, RefusalReason.DTYPE),
        ({"type": "<f4,<f4"}, RefusalReason.DTYPE),
        ({"type": "S1000000000"}, RefusalReason.DTYPE),
        ({"type": "<M8[s]"}, RefusalReason.DTYPE),
        ({"type": ">f4"}, RefusalReason.DTYPE),
        ({"type": "float32"}, RefusalReason.DTYPE),
        ({"type": b"<f4"}, RefusalReason.DTYPE),
        ({"type": None}, RefusalReason.DTYPE),
        ({"type": ...}, RefusalReason.DTYPE),
        ({"shape": [-2]}, RefusalReason.SHAPE),
        ({"shape": [-1, -2]}, RefusalReason.SHAPE),
        ({"shape": [2.0]}, RefusalReason.SHAPE),
        ({"shape": [True, 2]}, RefusalReason.SHAPE),
        ({"shape": ["2"]}, RefusalReason.SHAPE),
        ({"shape": "ab"}, RefusalReason.SHAPE),
        ({"shape": 2}, RefusalReason.SHAPE),
        ({"shape": None}, RefusalReason.SHAPE),
        ({"shape": [3]}, RefusalReason.SHAPE),
        ({"shape": [1] * 8 + [2]}, RefusalReason.SHAPE),
        ({"shape": [2**62, 8]}, RefusalReason.SHAPE),
        ({"shape": [0, 2**63], "data": b""}, RefusalReason.SHAPE),
        ({"shape": [2**62, 0, 2**62], "data": b""}, RefusalReason.SHAPE),
        ({"data": "12345678"}, RefusalReason.SHAPE),
        ({"data": bytes(7)}, RefusalReason.SHAPE),
        ({"data": None}, RefusalReason.SHAPE),
        ({"nd": 1}, RefusalReason.MALFORMED),
        ({"nd": None}, RefusalReason.MALFORMED),
        ({"nd": False}, RefusalReason.MALFORMED),
        ({"kind": ""}, RefusalReason.MALFORMED),
        ({"kind": ...}, RefusalReason.MALFORMED),
        ({"more": 1}, RefusalReason.MALFORMED),
        ({"nd": False, "kind": ..., "shape": ...}, RefusalReason.SHAPE),
        ({"nd": b"\x01", "kind": ..., "shape": ...}, RefusalReason.MALFORMED),
    ],
    ids=repr,
)
def test_array_forms_are_strict(changes: dict[str, Any], code: Any) -> None:
    assert code_of(array_form(**changes)) is code
    assert code_of(msgpack.packb([[1]])[:-1] + array_form(**changes)) is code


def test_the_form_that_the_others_change_is_right() -> None:
    assert np.array_equal(unpack_header(array_form()), np.zeros(2, "<f4"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb({"a": 1})[:-1],
        msgpack.packb({"a": 1}) + b"\x00",
        b"\xa2\xff\xfe",
        b"\x81\x01\x01",
        b"\x81\xc0\x01",
        b"\x81\xc4\x01a\x01",
        b"\x82\xa1a\x01\xa1a\x02",
        b"\x91\x82\xa1a\x01\xa1a\x01",
        b"\x81\x90\x01",
        b"\xd4\x00\x00",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xc7\x00\x05",
        b"\xc7\x00\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x91" * 400 + b"\xc0",
        b"\x91" * (MAX_DEPTH + 1) + b"\xc0",
        b"\xdc\xff\xff" * 300,
        b"\xda\x40\x01" + b"a" * 0x4001,
    ],
    ids=lambda d: f"{d[:8].hex()}-{len(d)}",
)
def test_other_bytes_are_refused(data: Any) -> None:
    assert code_of(data) is RefusalReason.MALFORMED
    assert code_of(memoryview(data)) is RefusalReason.MALFORMED


def test_limits() -> None:
    assert unpack_header(b"\x91" * MAX_DEPTH + b"\xc0") is not None
    assert code_of(bytes(MAX_HEADER_BYTES + 1)) is RefusalReason.TOO_LARGE
    with refusal(RefusalReason.TOO_LARGE):
        pack_header(bytes(MAX_HEADER_BYTES))


@given(st.binary(max_size=200))
def test_no_bytes_do_worse_than_be_refused(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        unpack_header(data)
