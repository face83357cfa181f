"""Specs with tensors of all dtypes and a blob are equal after a round trip. Specs that contradict their bytes are refused."""

import dataclasses
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import MAX_BLOB_BYTES, BoxSpace, DiscreteSpace, PolicySpec, TensorSpec
from rl4sys_zmq.values.policy import TENSOR_DTYPES
from rl4sys_zmq.wire import decode, encode, spec_body, spec_from_document, spec_to_document
from rl4sys_zmq.wire import messages as m
from rl4sys_zmq.wire import thread_messages as t
from rl4sys_zmq.wire.thread_messages import decode_thread_message

from .conftest import refusal

FOUR, TWO = BoxSpace((4,)), DiscreteSpace(2)
BLOB = bytes(range(256)) * 300
ONE, EXACT = TensorSpec("one", (), "int64"), TensorSpec("exact", (2,), exact=True)
SPEC = PolicySpec(FOUR, TWO, "graph", {"opset": 17}, (*(TensorSpec(d, (2, 3), d) for d in TENSOR_DTYPES), ONE, EXACT), BLOB)


def read(form: Any, body: Any) -> Any:
    return spec_from_document({**spec_to_document(SPEC), **form}, body)


def test_specs_come_back_with_their_blob() -> None:
    document, body = spec_to_document(SPEC), spec_body(SPEC)
    assert spec_from_document(document, body) == SPEC
    assert spec_from_document(document, [memoryview(BLOB)]).blob == BLOB
    assert document["blob"] == [len(BLOB), xxhash.xxh3_128_hexdigest(BLOB)]
    bare = dataclasses.replace(SPEC, blob=b"")
    assert spec_from_document(spec_to_document(bare)) == bare and spec_body(bare) == () and "blob" not in spec_to_document(bare)


def test_a_spec_of_float32_alone_has_no_dtypes() -> None:
    document = spec_to_document(mlp_spec(FOUR, TWO, "categorical", ()))
    assert document["tensors"] == [["layers.0.weight", [2, 4]], ["layers.0.bias", [2]]]
    exact = spec_to_document(mlp_spec(FOUR, TWO, "q_values", ()))["tensors"][-1]
    assert exact == ["epsilon", [1], "float32", True]
    assert list(document) == ["observation_space", "action_space", "kind", "document", "tensors", "columns"]


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.tuples(st.lists(st.integers(1, 2**70), max_size=8).map(tuple), st.sampled_from(sorted(TENSOR_DTYPES))),
        min_size=1,
        max_size=8,
    ),
    st.binary(max_size=100),
)
def test_specs_of_all_dtypes_survive_the_codec(tensors: Any, blob: bytes) -> None:
    sizes = [size for shape, _ in tensors.values() for size in shape]
    spec = PolicySpec(FOUR, TWO, "graph", {}, tuple(TensorSpec(name, *rest) for name, rest in tensors.items()), blob)
    ready = t.ThreadReady(spec_to_document(spec), "onpolicy", 1, 0, 0, [], {}, [], spec_body(spec))
    if max(sizes, default=0) < 1 << 64:
        again = decode_thread_message([bytes(frame) for frame in encode(ready)])
        assert isinstance(again, t.ThreadReady) and spec_from_document(again.spec, again.body) == spec
    else:
        with pytest.raises(ProtocolError):
            encode(ready)


@pytest.mark.parametrize("name", ["Welcome", "ThreadReady"])
def test_a_blob_travels_as_the_body(samples: dict[str, m.Message | t.ThreadMessage], name: str) -> None:
    plain = samples[name]
    assert isinstance(plain, m.Welcome | t.ThreadReady)
    assert len(encode(plain)) == 1
    message = dataclasses.replace(plain, spec=spec_to_document(SPEC), body=spec_body(SPEC))
    read = decode if isinstance(message, m.Welcome) else decode_thread_message
    again = read(encode(message))
    assert isinstance(again, m.Welcome | t.ThreadReady)
    assert again == message and spec_from_document(again.spec, again.body) == SPEC
    frames = [bytes(frame) for frame in encode(message)]
    with refusal(RefusalReason.CHECKSUM):
        read([frames[0], frames[1][:-1] + b"!"])


@pytest.mark.parametrize(
    "tensor",
    [
        ["w", [2], "object"],
        ["w", [2], "<f4"],
        ["w", [2], "float128"],
        ["w", [2], "(2,)f4"],
        ["w", [2], ""],
        ["w", [2], 5],
        ["w", [2], None],
        ["w", [2], ["int8"]],
        ["w", [0], "int64"],
        ["w", [-1], "int64"],
        ["w", [2] * 9, "int64"],
        ["w", [2], "int64", 1],
        ["w", [2], "float32", None],
        ["w", [2], "float32", True, True],
        ["w"],
        "w2",
    ],
    ids=str,
)
def test_other_tensors_are_refused(tensor: Any) -> None:
    with refusal(RefusalReason.SPEC):
        read({"tensors": [tensor]}, spec_body(SPEC))


def test_a_size_beyond_all_memory_is_only_a_number() -> None:
    spec = read({"tensors": [["w", [1 << 62] * 8, "int64"]]}, spec_body(SPEC))
    assert spec.nbytes == 8 * (1 << 62) ** 8  # the actor compares it with its limit before it allocates anything


DIGEST = xxhash.xxh3_128_hexdigest(BLOB)


@pytest.mark.parametrize(
    ("blob", "body"),
    [
        ([len(BLOB), DIGEST], []),
        ([len(BLOB), DIGEST], [BLOB, BLOB]),
        ([len(BLOB), DIGEST], [BLOB, b""]),
        ([len(BLOB), DIGEST], [BLOB[:-1]]),
        ([len(BLOB), DIGEST], [BLOB + b"\0"]),
        ([len(BLOB), DIGEST], [BLOB[:-1] + b"\0"]),
        ([len(BLOB) - 1, DIGEST], [BLOB]),
        ([len(BLOB), DIGEST[:-1] + "g"], [BLOB]),
        ([len(BLOB), ""], [BLOB]),
        ([0, ""], [BLOB]),
        ([0, DIGEST], [b""]),
        ([-1, DIGEST], [BLOB]),
        ([True, DIGEST], [b"x"]),
        ([float(len(BLOB)), DIGEST], [BLOB]),
        ([len(BLOB), DIGEST, 0], [BLOB]),
        ([len(BLOB)], [BLOB]),
        ([], [BLOB]),
        (None, [BLOB]),
        (BLOB, [BLOB]),
        ([1 << 62, DIGEST], [BLOB]),
        ([MAX_BLOB_BYTES + 1, DIGEST], [bytes(MAX_BLOB_BYTES + 1)]),
    ],
    ids=lambda value: f"{value!s:.40}",
)
def test_other_blobs_are_refused(blob: Any, body: Any) -> None:
    with refusal(RefusalReason.SPEC):
        read({"blob": blob}, body)


def test_a_body_that_is_left_out_is_that_of_the_spec_that_is_held() -> None:
    document, plain = spec_to_document(SPEC), dataclasses.replace(SPEC, blob=b"")
    assert spec_from_document(document, (), SPEC) == SPEC
    assert spec_from_document(spec_to_document(plain), (), SPEC) == plain
    for held in (None, plain, dataclasses.replace(SPEC, blob=BLOB[::-1])):
        with pytest.raises(ProtocolError):
            spec_from_document(document, (), held)


def test_a_body_that_the_spec_does_not_announce_is_refused() -> None:
    plain = spec_to_document(dataclasses.replace(SPEC, blob=b""))
    with pytest.raises(ProtocolError, match=r"frames of \[76800\] bytes; expected a blob of 0"):
        spec_from_document(plain, [BLOB])
