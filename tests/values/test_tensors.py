"""Tensors of all dtypes: their bytes, their positions, and the errors of a spec."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies import build_policy
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import (
    MAX_BLOB_BYTES,
    BoxSpace,
    ColumnSpec,
    DiscreteSpace,
    PolicySnapshot,
    PolicySpec,
    TensorSpec,
    other_bytes,
)
from rl4sys_zmq.values.policy import TENSOR_DTYPES

FOUR, TWO = BoxSpace((4,)), DiscreteSpace(2)

TENSORS = st.lists(
    st.tuples(st.lists(st.integers(1, 4), max_size=3), st.sampled_from(sorted(TENSOR_DTYPES))), min_size=1, max_size=8
)


def spec_of(tensors: Any, **other: Any) -> PolicySpec:
    return PolicySpec(FOUR, TWO, "mine", {}, tuple(TensorSpec(f"t{i}", tuple(s), d) for i, (s, d) in enumerate(tensors)), **other)


def any_bits(spec: PolicySpec, seed: int) -> dict[str, Any]:
    """Return tensors of random bits, NaN and infinities included. Booleans are only 0 and 1."""
    rng = np.random.default_rng(seed)
    made = {}
    for tensor in spec.tensors:
        data = rng.integers(0, 2 if tensor.dtype == "bool" else 256, tensor.nbytes, dtype=np.uint8)
        made[tensor.name] = data.view(tensor.dtype).reshape(tensor.shape)
    return made


@given(TENSORS, st.integers(0, 2**32))
def test_views_and_flatten_are_inverse_for_all_dtypes(tensors: Any, seed: int) -> None:
    spec = spec_of(tensors)
    given_tensors = any_bits(spec, seed)
    flat, others = spec.flatten(given_tensors)
    assert 4 * flat.size + len(others) == spec.nbytes and len(others) == other_bytes(spec.others)
    views = spec.views(flat, others)
    assert list(views) == [tensor.name for tensor in spec.tensors]
    for tensor in spec.tensors:
        view, source = views[tensor.name], given_tensors[tensor.name]
        assert (view.dtype, view.shape) == (np.dtype(tensor.dtype), tensor.shape)
        assert view.tobytes() == source.tobytes()
        assert view.flags.aligned and (tensor.dtype == "float32" or not view.flags.writeable)
    again = spec.flatten(views)
    assert (again[0].tobytes(), again[1]) == (flat.tobytes(), others)
    assert spec.parameters == sum(source.size for source in given_tensors.values())


def test_the_buffer_is_ordered_by_the_size_of_elements_and_padded() -> None:
    spec = spec_of([((3,), "uint8"), ((2,), "float32"), ((1,), "int64"), ((1,), "float16"), ((2,), "int64")])
    assert [tensor.name for tensor in spec.others] == ["t2", "t4", "t3", "t0"]
    assert (spec.size, spec.parameters, spec.nbytes) == (2, 9, 8 + 32)
    tensors: dict[str, Any] = {
        "t0": np.array([1, 2, 3], np.uint8),
        "t1": np.array([0.5, -0.5], np.float32),
        "t2": np.array([-1]),
        "t3": np.array([1.0], np.float16),
        "t4": np.array([5, 6]),
    }
    _, others = spec.flatten(tensors)
    assert others == bytes([255] * 8) + bytes([5, *[0] * 7, 6, *[0] * 7]) + b"\x00\x3c" + bytes([1, 2, 3]) + bytes(3)


def test_other_dtypes_are_never_converted() -> None:
    spec = spec_of([((2,), "float32"), ((2,), "int64")])
    sound: dict[str, Any] = {"t0": np.zeros(2), "t1": np.zeros(2, np.int64)}
    assert spec.flatten(sound)[1] == bytes(16)  # float64 is converted to float32
    for wrong in (np.zeros(2, np.int32), np.zeros(2), np.zeros(2, ">i8"), np.zeros(2, np.uint64)):
        with pytest.raises(ConfigError, match=r"tensor t1 has dtype .*expected int64"):
            spec.flatten(sound | {"t1": wrong})
    with pytest.raises(ConfigError, match="tensor t1 has shape"):
        spec.flatten(sound | {"t1": np.zeros(3, np.int64)})
    for others in (b"", bytes(15), bytes(20)):
        with pytest.raises(ConfigError, match=f"{len(others)} bytes of tensors that are not float32; the policy has 16"):
            spec.views(np.zeros(2, np.float32), others)


@pytest.mark.parametrize("dtype", ["object", "float", "<f4", "complex64", "U3", "longdouble", 5, None, np.float16])
def test_the_list_of_dtypes_is_closed(dtype: Any) -> None:
    with pytest.raises(ConfigError, match="expected one of bool, int8") as caught:
        TensorSpec("w", (1,), dtype)
    assert caught.value.key == "tensors"


def test_a_blob_is_part_of_the_spec() -> None:
    plain = spec_of([((2,), "float32")])
    one, two = dataclasses.replace(plain, blob=b"graph"), dataclasses.replace(plain, blob=b"other")
    assert one == dataclasses.replace(plain, blob=b"graph") and len({plain, one, two}) == 3
    assert "graph" not in repr(one)
    for wrong in (bytearray(b"x"), "x", None, bytes(MAX_BLOB_BYTES + 1)):
        with pytest.raises(ConfigError) as caught:
            dataclasses.replace(plain, blob=wrong)  # type: ignore[arg-type]
        assert caught.value.key == "blob"
    assert len(dataclasses.replace(plain, blob=bytes(MAX_BLOB_BYTES)).blob) == MAX_BLOB_BYTES


def test_an_mlp_has_neither() -> None:
    spec = mlp_spec(FOUR, TWO, "categorical", ())
    snapshot = PolicySnapshot(1, 0, 0, np.zeros(spec.size, np.float32))
    build_policy(spec, snapshot)
    halves = tuple(dataclasses.replace(tensor, dtype="float16") for tensor in spec.tensors)
    columns = (ColumnSpec("state", (2,)),)
    for changes, key in (({"blob": b"x"}, "blob"), ({"tensors": halves}, "tensors"), ({"columns": columns}, "columns")):
        with pytest.raises(ConfigError) as caught:
            build_policy(dataclasses.replace(spec, **changes), snapshot)
        assert caught.value.key == key
