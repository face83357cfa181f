"""The encoding of those tensors of a weight update that are not rounded. It is always lossless.

All tensors of a policy version that are not float32 are in one buffer (`PolicySnapshot.others`). If the wire dtype rounds, the
exact float32 tensors (`TensorSpec.exact`) follow in it. The buffer is treated as an array of words of 4 bytes. It is encoded as
if the words were float32 elements with the wire dtype ``fp32``. In the payload, the result follows the other float32 elements.
The payload ends with the number of bytes of the result (u32) and its `PayloadEncoding` (u8)::

    the other float32 elements | the words of this buffer | number of bytes of the words | codec of the words
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.values import FlatWeights, TensorSpec, other_bytes, other_views
from rl4sys_zmq.weights.bits import bad
from rl4sys_zmq.weights.coder import Payload, PayloadEncoding, decode_diff, encode_diff
from rl4sys_zmq.weights.forms import WireDtype
from rl4sys_zmq.weights.snapshots import decode_snapshot, encode_snapshot

__all__ = ["TRAILER_BYTES", "append_others", "decode_others", "split_payload", "verify_others"]

_TRAILER = struct.Struct("<IB")
TRAILER_BYTES = _TRAILER.size
_CODECS = frozenset(int(codec) for codec in PayloadEncoding)


def append_others(payload: Payload, base: bytes | None, new: bytes, *, compress: bool) -> bytes:
    """Return the complete payload of an update for a policy that has tensors that are not rounded.

    Args:
        payload: The payload of the other float32 elements.
        base: The buffer (`Division.parts`) of the version that the receiver holds; None if the update is a whole snapshot.
        new: The buffer of the version to send.
        compress: False if a whole snapshot is sent uncompressed.

    Raises:
        WeightsError: If the sizes differ (``reason="size"``).
    """
    words = _words(new)
    if base is None:
        codec, coded = encode_snapshot(words, WireDtype.FP32, compress=compress)
    else:
        diff = encode_diff(_words(base), words)
        codec, coded = diff.codec, diff.payload
    return b"".join((payload, coded, _TRAILER.pack(len(coded), codec)))


def split_payload(payload: Payload) -> tuple[Payload, Payload, int]:
    """Split the payload of a weight update: the float32 elements, the other tensors, and the codec of the other tensors.

    The codec is the `PayloadEncoding` in which they are encoded, as a number.

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
    """Return the buffer of the tensors that are not rounded (`Division.parts`), from its part of a payload.

    Args:
        codec: Form of the part (`PayloadEncoding`).
        coded: The part, as `split_payload` returns it.
        size: Size of the buffer in bytes, a multiple of 4.
        base: The buffer to which a diff applies; None if the update is a whole snapshot.

    Raises:
        WeightsError: If the part cannot be decoded to a buffer of this size (``reason="payload"``).
    """
    if codec not in _CODECS or PayloadEncoding(codec).is_diff == (base is None):
        raise bad(f"the other tensors have the codec {codec} in a {'snapshot' if base is None else 'diff'}")
    if base is None:
        return decode_snapshot(PayloadEncoding(codec), coded, size // 4, WireDtype.FP32).tobytes()
    return decode_diff(PayloadEncoding(codec), coded, _words(base)).flat.tobytes()


def verify_others(tensors: Sequence[TensorSpec], others: bytes) -> None:
    """Check a buffer with the tensors of a policy that are not float32: its size, and the values of each tensor.

    Args:
        tensors: Descriptions of these tensors (`PolicySpec.others`).
        others: The buffer (`PolicySnapshot.others`).

    Raises:
        WeightsError: If the buffer has the wrong size (``reason="size"``), a floating-point tensor is not finite (``finite``), a
            boolean is not 0 or 1, or the padding is not 0 (``payload``).
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


def _words(buffer: bytes) -> FlatWeights:
    return np.frombuffer(buffer, "<f4")
