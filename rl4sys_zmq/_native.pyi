from typing import Any

from numpy.typing import NDArray

Bytes = bytes | bytearray | memoryview | NDArray[Any]

VERSION: str

def missing() -> str: ...
def xxh3_64(data: Bytes, /) -> int: ...

# Weights: states are float32 ``[n]``; `dtype` is a `WireDtype`, and `exponents` are those of `IntegerMapping`.
def encode_diff(
    base: Bytes, new: Bytes, before: Bytes | None, dtype: int, exponents: Bytes | None, prefix: bytes, /
) -> tuple[int, bytes, bool]: ...
def decode_diff(
    codec: int, payload: Bytes, base: Bytes, before: Bytes | None, dtype: int, exponents: Bytes | None, /
) -> bytes: ...
def encode_snapshot_planes(flat: Bytes, dtype: int, /) -> bytes | None: ...
def decode_snapshot_planes(payload: Bytes, size: int, dtype: int, /) -> bytes: ...
