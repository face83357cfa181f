"""The header of 72 bytes: its layout, and the error code of each invalid header."""

import dataclasses
import struct
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.weights import HEADER_BYTES, PayloadEncoding, WeightsHeader, WireDtype

HEADER = WeightsHeader(b"policy-1", 1_700_000_000_000, 6, 7, PayloadEncoding.PLANES, 1000, 321, 2**64 - 1, 2**63)
u64 = st.integers(0, 2**64 - 1)


def repacked(offset: Any, form: Any, value: Any) -> bytes:
    """Return the header with one field overwritten and a correct checksum."""
    data = bytearray(HEADER.pack())
    struct.pack_into(form, data, offset, value)
    struct.pack_into("<I", data, 52, 0)
    struct.pack_into("<I", data, 52, xxhash.xxh3_64_intdigest(bytes(data)) & 0xFFFFFFFF)
    return bytes(data)


def code_of(data: Any) -> Any:
    with pytest.raises(ProtocolError) as caught:
        WeightsHeader.unpack(data)
    return caught.value.code


def test_layout_is_the_documented_one() -> None:
    data = HEADER.pack()
    assert len(data) == HEADER_BYTES == 72
    assert data[:8] == b"R4SW" + bytes([3, 0, PayloadEncoding.PLANES, 0])
    assert data[8:16] == b"policy-1"
    assert struct.unpack_from("<3Q2H2I", data, 16) == (1_700_000_000_000, 6, 7, 0, 1, 1000, 321)
    assert struct.unpack_from("<2Q", data, 56) == (2**64 - 1, 2**63)


def test_golden_bytes() -> None:
    assert HEADER.pack().hex() == (
        "52345357030002 00 706f6c6963792d31 0068e5cf8b010000 0600000000000000 0700000000000000"
        " 0000 0100 e8030000 41010000 1f5bc2b6 ffffffffffffffff 0000000000000080"
    ).replace(" ", "")


@given(
    st.binary(min_size=8, max_size=8), u64, u64, u64, st.sampled_from(PayloadEncoding), st.sampled_from(WireDtype),
    st.integers(0, 2**30), u64, u64, st.data(),
)  # fmt: skip
def test_round_trip(
    policy_id: bytes, generation: int, a: int, b: int, codec: PayloadEncoding, dtype: WireDtype,
    elements: int, payload_hash: int, state_hash: int, data: st.DataObject,
) -> None:  # fmt: skip
    base, new = (min(a, b), max(a, b) + (a == b and a < 2**64 - 1)) if codec.is_diff else (a, a)
    if codec.is_diff and base == new:
        return
    size = data.draw(st.integers(0, min(dtype.itemsize * elements, 2**32 - 1)))
    header = WeightsHeader(policy_id, generation, base, new, codec, elements, size, payload_hash, state_hash, dtype)
    header = dataclasses.replace(header, predicted=codec.is_diff and data.draw(st.booleans()), others=data.draw(st.booleans()))
    assert WeightsHeader.unpack(header.pack()) == header
    assert WeightsHeader.unpack(memoryview(header.pack())) == header


def test_every_flipped_bit_is_detected() -> None:
    data = HEADER.pack()
    for index in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[index] ^= 1 << bit
            code_of(bytes(broken))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", RefusalReason.MALFORMED),
        (bytes(71), RefusalReason.MALFORMED),
        (bytes(72), RefusalReason.MAGIC),
        (repacked(4, "B", 2), RefusalReason.VERSION),
        (HEADER.pack()[:-1] + b"\xff", RefusalReason.CHECKSUM),
        (repacked(5, "B", 4), RefusalReason.FEATURE),
        (repacked(6, "B", 3), RefusalReason.KIND),
        (repacked(6, "B", 7), RefusalReason.KIND),
        (repacked(7, "B", 3), RefusalReason.DTYPE),
        (repacked(24, "<Q", 7), RefusalReason.RANGE),
        (repacked(32, "<Q", 5), RefusalReason.RANGE),
        (repacked(6, "B", PayloadEncoding.SNAPSHOT), RefusalReason.RANGE),
        (repacked(40, "<H", 1), RefusalReason.RANGE),
        (repacked(42, "<H", 0), RefusalReason.RANGE),
        (repacked(48, "<I", 4001), RefusalReason.TOO_LARGE),
    ],
)
def test_each_broken_rule_has_its_code(data: Any, code: Any) -> None:
    assert code_of(data) == code


@pytest.mark.parametrize("field", [{"policy_id": b"short"}, {"new_version": 2**64}, {"elements": 2**33}, {"generation": -1}])
def test_pack_refuses_what_does_not_fit(field: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        dataclasses.replace(HEADER, **field).pack()
    assert caught.value.code == RefusalReason.RANGE


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ({"wire_dtype": WireDtype.BF16, "payload_bytes": 2001}, RefusalReason.TOO_LARGE),
        ({"codec": PayloadEncoding.SNAPSHOT, "base_version": 7, "predicted": True}, RefusalReason.RANGE),
    ],
)
def test_pack_refuses_what_cannot_be(field: dict[str, Any], code: Any) -> None:
    with pytest.raises(ProtocolError) as caught:
        dataclasses.replace(HEADER, **field).pack()
    assert caught.value.code == code
