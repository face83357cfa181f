"""The tensors of a weight update that are not rounded. Their encoding is always lossless.

All tensors of a policy version that are not float32 are in one buffer (`PolicySnapshot.others`). If the wire dtype rounds, the
exact float32 tensors (`TensorSpec.exact`) follow in the same buffer. `TensorDivision` separates them from the weights. The buffer
is treated as an array of words of 4 bytes. It is encoded as if the words were float32 elements with the wire dtype ``fp32``. In
the payload, the result follows the weights. The payload ends with the number of bytes of the result (u32) and its
`PayloadEncoding` (u8)::

    the weights | the words of this buffer | number of bytes of the words | codec of the words
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.values import FlatWeights, PolicySnapshot, TensorSpec, other_bytes, other_views
from rl4sys_zmq.values.policy import FLOAT32, other_tensors
from rl4sys_zmq.weights.bits import bad
from rl4sys_zmq.weights.coder import CODECS, Payload, PayloadEncoding, decode_diff, decode_snapshot, encode_diff, encode_snapshot
from rl4sys_zmq.weights.forms import WireDtype

_TRAILER = struct.Struct("<IB")
TRAILER_BYTES = _TRAILER.size


class TensorDivision:
    """The division of a policy's tensors into float32 elements that a wire dtype rounds, exact float32 elements, and the rest.

    Its methods raise `WeightsError` (``reason="size"``) for a state of another size.

    Attributes:
        size: The number of float32 elements of a state.
        sizes: The number of elements of each tensor that is rounded.
        kept: The number of exact float32 elements; 0 for the wire dtype ``FP32``, which rounds nothing.
        other_size: The size in bytes of `PolicySnapshot.others`.
    """

    def __init__(self, dtype: WireDtype, tensors: Sequence[TensorSpec]) -> None:
        weights = [(one.size, one.exact and dtype is not WireDtype.FP32) for one in tensors if one.dtype == FLOAT32]
        self.size, self.other_size = sum(size for size, _ in weights), other_bytes(other_tensors(tensors))
        self.sizes = tuple([size for size, is_exact in weights if not is_exact])
        self.kept = self.size - sum(self.sizes)
        self._runs: list[tuple[bool, slice]] = []
        end = 0
        for is_exact, run in itertools.groupby(weights, key=lambda tensor: tensor[1]):
            start, end = end, end + sum(size for size, _ in run)
            self._runs.append((is_exact, slice(start, end)))

    def rounded(self, flat: FlatWeights) -> FlatWeights:
        """Return the elements that are rounded: `flat` itself if all are, else a new array."""
        return self._part(flat, exact=False) if self.kept else flat

    def exact(self, flat: FlatWeights) -> FlatWeights:
        """Return the elements that are not rounded, in a new array."""
        return self._part(flat, exact=True) if self.kept else flat[:0]

    def parts(self, snapshot: PolicySnapshot) -> tuple[FlatWeights, bytes]:
        """Return the rounded elements, and the bytes of everything else: `PolicySnapshot.others`, then the exact elements."""
        if not self.kept:
            return snapshot.flat, snapshot.others
        exact = self.exact(snapshot.flat).astype("<f4", copy=False)
        return self.rounded(snapshot.flat), snapshot.others + exact.tobytes()

    def joined(self, rounded: FlatWeights, kept: FlatWeights) -> FlatWeights:
        """Put rounded and exact elements together to a state: `rounded` itself if nothing is exact, else a new array."""
        if not self.kept:
            return rounded
        flat = np.empty(self.size, dtype=np.float32)
        begins = {False: 0, True: 0}
        for is_exact, run in self._runs:
            begin = begins[is_exact]
            begins[is_exact] = end = begin + run.stop - run.start
            flat[run] = (kept if is_exact else rounded)[begin:end]
        return flat

    def _part(self, flat: FlatWeights, *, exact: bool) -> FlatWeights:
        if flat.size != self.size:
            raise WeightsError(f"{flat.size} elements for a policy of {self.size}", reason="size")
        parts = [flat[run] for is_exact, run in self._runs if is_exact is exact]
        return np.concatenate(parts) if parts else flat[:0]


@lru_cache(maxsize=64)
def division_of(dtype: WireDtype, tensors: tuple[TensorSpec, ...]) -> TensorDivision:
    """Return the division of a policy's tensors (`PolicySpec.tensors`) for a wire dtype."""
    return TensorDivision(dtype, tensors)


def append_others(payload: Payload, base: bytes | None, new: bytes, *, compress: bool) -> bytes:
    """Append `new`, the tensors that are not rounded, to a payload: as a diff to `base`, or as a whole without a base."""
    words = _words(new)
    if base is None:
        codec, coded = encode_snapshot(words, WireDtype.FP32, compress=compress)
    else:
        diff = encode_diff(_words(base), words)
        codec, coded = diff.codec, diff.payload
    return b"".join((payload, coded, _TRAILER.pack(len(coded), codec)))


def split_payload(payload: Payload) -> tuple[Payload, Payload, int]:
    """Split a payload into the weights, the encoded tensors that are not rounded, and the `PayloadEncoding` of these."""
    view = memoryview(payload)
    end = len(view) - TRAILER_BYTES
    count, codec = _TRAILER.unpack_from(view, end) if end >= 0 else (0, 0)
    if not 0 <= count <= end:
        raise bad(f"a payload of {len(view)} bytes has {count} bytes of other tensors")
    return view[: end - count], view[end - count : end], codec


def decode_others(codec: int, coded: Payload, size: int, base: bytes | None) -> bytes:
    """Return the bytes of the tensors that are not rounded, `size` in all, from a diff to `base`, or without a base."""
    if codec not in CODECS or PayloadEncoding(codec).is_diff == (base is None):
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
