"""Arrays of other libraries, read by their methods, and bfloat16."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import DataError, PayloadError
from rl4sys_zmq.replay.layout import as_leaf, copy_payload
from rl4sys_zmq.serving.trainer_transfer import params_as_arrays
from rl4sys_zmq.values.arrays import BFLOAT16_BITS, array_from, read_bfloat16
from rl4sys_zmq.wire.trees import drop_unsupported, pack_tree, unpack_tree

NUMBERS = [0.0, -0.0, 1.0, -2.5, 3.140625, 2.0**127, 2.0**-133, float("inf"), float("nan")]
"""Numbers that bfloat16 holds exactly."""


class JaxLike:
    """An array of another library: NumPy can convert it, and it has no further methods of an array."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._values if dtype is None else self._values.astype(dtype)


def bits_of(numbers: Any) -> Any:
    return (np.asarray(numbers, "<f4").view("<u4") >> 16).astype("<u2").view(BFLOAT16_BITS)


def sent(tree: Any) -> Any:
    skeleton, frames = pack_tree(tree)
    return unpack_tree(skeleton, frames)


@pytest.fixture
def no_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove ml_dtypes from the imported modules. Another test may have imported it, for example by way of onnx."""
    monkeypatch.delitem(sys.modules, "ml_dtypes", raising=False)


@pytest.mark.usefixtures("no_ml_dtypes")
def test_bfloat16_is_read_as_float32_with_the_same_values() -> None:
    np.testing.assert_array_equal(read_bfloat16(bits_of(NUMBERS)), np.array(NUMBERS, np.float32))
    assert read_bfloat16(bits_of(NUMBERS)).dtype == np.float32
    scalar = read_bfloat16(bits_of(1.5).reshape(()))
    assert type(scalar) is np.ndarray
    assert scalar.shape == () and scalar == 1.5
    assert read_bfloat16(bits_of(np.ones((0, 3)))).shape == (0, 3)


def test_bfloat16_is_read_as_bfloat16_where_the_program_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", SimpleNamespace(bfloat16=np.dtype("<f2")))
    assert read_bfloat16(bits_of([1.0, 2.0])).dtype == np.float16  # a stand-in of the same size


@pytest.mark.usefixtures("no_ml_dtypes")
@pytest.mark.parametrize("shape", [(), (9,), (3, 3), (600, 600)], ids=str)
def test_bfloat16_tensors_travel_as_two_bytes_a_number(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(torch.bfloat16)
    size = sum(map(len, pack_tree(params_as_arrays({"w": torch.nn.Parameter(tensor)}))[1]))
    assert size <= 2 * tensor.numel() + 8
    for tree in ({"w": tensor}, params_as_arrays({"w": tensor})):
        got = sent(tree)["w"]
        assert got.dtype == np.float32 and got.shape == shape
        np.testing.assert_array_equal(got, tensor.float().numpy())


def test_the_dtype_of_ml_dtypes_travels() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    for value in (array, JaxLike(array), array[0, 1]):
        got = sent({"w": value})["w"]
        assert got.dtype == ml_dtypes.bfloat16 and np.array_equal(got, np.asarray(value))
    assert as_leaf("x", array).dtype == np.float32
    assert copy_payload(array).dtype == ml_dtypes.bfloat16


def test_tensors_travel_in_payloads() -> None:
    torch = pytest.importorskip("torch")
    weights = torch.ones(2, 3, requires_grad=True)
    for value in (weights, weights.T, weights.sum(), JaxLike([[1, 2]])):
        want = array_from(value)
        assert want is not None
        for got in (sent(value), sent([{"x": value}])[0]["x"], copy_payload(value), as_leaf("x", value)):
            assert type(got) is np.ndarray and got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
    bfloat16 = torch.tensor([1.5, 2.0], dtype=torch.bfloat16)
    for got in (copy_payload(bfloat16), as_leaf("x", bfloat16)):
        assert got.dtype.name in {"bfloat16", "float32"} and got.astype(np.float32).tolist() == [
            1.5,
            2.0,
        ]  # with and without ml_dtypes
    assert drop_unsupported({"loss": weights, "odd": object()}, "info") == ({"loss": weights}, ["info['odd']"])


def test_arrays_that_cannot_travel_are_named() -> None:
    torch = pytest.importorskip("torch")
    sparse = torch.eye(2).to_sparse()
    with pytest.raises(PayloadError, match=r"payload\['x'\]: a value of type torch.* cannot be converted"):
        pack_tree({"x": sparse})
    with pytest.raises(DataError, match="cannot be converted"):
        copy_payload({"x": sparse})
    with pytest.raises(PayloadError, match="complex64 cannot travel"):
        pack_tree(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(PayloadError, match="MaskedArray cannot travel"):
        pack_tree(np.ma.MaskedArray([1.0], [True]))
    assert array_from(1.0) is array_from("x") is array_from(object()) is None
