"""The tensors that are not float32, in an update: always without loss, whatever the wire dtype.

Their buffer (`PolicySnapshot.others`) is coded in words of 4 bytes, as the bits of float32 elements are with the wire dtype
``fp32``. They follow the float32 elements in the payload, which ends with the number of their bytes (u32) and their `DiffCodec`
(u8)::

    the float32 elements | the words of the other tensors | number of bytes of the words | codec of the words
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.values import FlatWeights, TensorSpec, other_bytes, other_views
from rl4sys_zmq.weights.bits import bad
from rl4sys_zmq.weights.coder import DiffCodec, Payload, decode_diff, encode_diff
from rl4sys_zmq.weights.forms import WireDtype
from rl4sys_zmq.weights.snapshots import decode_snapshot, encode_snapshot

__all__ = ["TRAILER_BYTES", "append_others", "decode_others", "split_payload", "verify_others"]

_TRAILER = struct.Struct("<IB")
TRAILER_BYTES = _TRAILER.size
_CODECS = frozenset(int(codec) for codec in DiffCodec)


def append_others(payload: Payload, base: bytes | None, new: bytes, level: int) -> bytes:
    """Return the payload of an update of a policy with other tensors.

    Args:
        payload: The payload of the float32 elements.
        base: The buffer of the version that the receiver holds; None for a whole snapshot.
        new: The buffer to send.
        level: Compression level, as in `EncodingOptions`.

    Raises:
        WeightsError: If the sizes differ (``reason="size"``).
    """
    codec, coded = encode_snapshot(_words(new), WireDtype.FP32, level) if base is None else _diff(base, new, level)
    return b"".join((payload, coded, _TRAILER.pack(len(coded), codec)))


def split_payload(payload: Payload) -> tuple[Payload, Payload, int]:
    """Return the payload of the float32 elements, that of the other tensors, and the codec of the latter.

    Raises:
        WeightsError: If the payload is shorter than it says (``reason="payload"``).
    """
    view = memoryview(payload)
    end = len(view) - TRAILER_BYTES
    count, codec = _TRAILER.unpack_from(view, end) if end >= 0 else (0, 0)
    if not 0 <= count <= end:
        raise bad(f"a payload of {len(view)} bytes has {count} bytes of other tensors")
    return view[: end - count], view[end - count : end], codec


def decode_others(codec: int, coded: Payload, size: int, base: bytes | None) -> bytes:
    """Return a buffer of `size` bytes, from its part of a payload.

    Args:
        codec: Form of the part.
        coded: The part.
        size: Size of the buffer, a multiple of 4.
        base: The buffer that a diff starts from; None if the update is a whole snapshot.

    Raises:
        WeightsError: If the part is not such a buffer (``reason="payload"``).
    """
    if codec not in _CODECS or DiffCodec(codec).is_diff == (base is None):
        raise bad(f"the other tensors have the codec {codec} in a {'snapshot' if base is None else 'diff'}")
    if base is None:
        return decode_snapshot(DiffCodec(codec), coded, size // 4, WireDtype.FP32).tobytes()
    return decode_diff(DiffCodec(codec), coded, _words(base)).flat.tobytes()


def verify_others(tensors: Sequence[TensorSpec], others: bytes) -> None:
    """Check the contents of the buffer of these tensors (`PolicySpec.others`).

    Raises:
        WeightsError: If it has another size (``reason="size"``), a floating-point tensor is not finite (``finite``), or a boolean
            is not 0 or 1, or the padding is not 0 (``payload``).
    """
    if not tensors and not others:
        return
    if len(others) != (expected := other_bytes(tensors)):
        raise WeightsError(f"{len(others)} bytes of tensors that are not float32; the policy has {expected}", reason="size")
    for name, array in other_views(tensors, others).items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise WeightsError(f"the tensor {name} is not finite", reason="finite")
        if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
            raise bad(f"the tensor {name} has booleans that are not 0 or 1")
    if any(others[sum(tensor.nbytes for tensor in tensors) :]):
        raise bad("the padding of the other tensors is not 0")


def _diff(base: bytes, new: bytes, level: int) -> tuple[DiffCodec, Payload]:
    diff = encode_diff(_words(base), _words(new), level=level)
    return diff.codec, diff.payload


def _words(buffer: bytes) -> FlatWeights:
    return np.frombuffer(buffer, "<f4")
