"""The encoding of whole states (all float32 weights): the plain elements, or byte planes if these are much shorter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl4sys_zmq.values import FlatWeights
from rl4sys_zmq.weights import planes
from rl4sys_zmq.weights.bits import BitReader, bad
from rl4sys_zmq.weights.coder import Payload, PayloadEncoding
from rl4sys_zmq.weights.forms import BF16, FP32, IntegerMapping, WireDtype

__all__ = ["decode_snapshot", "encode_snapshot"]

SNAPSHOT_GAIN = 0.6
"""A whole state is sent compressed if that reduces its size to at most this share.

Otherwise the saved bytes are not worth the time that every actor needs for decompression.
"""
SNAPSHOT_SAMPLE = 1024
"""The approximate size, in elements, of the sample that is compressed first to decide if compressing all can be worth it."""


def _snapshot_form(dtype: WireDtype) -> IntegerMapping:
    return BF16 if dtype is WireDtype.BF16 else FP32


def encode_snapshot(flat: FlatWeights, dtype: WireDtype, *, compress: bool) -> tuple[PayloadEncoding, Payload]:
    """Encode all weights of a policy version, compressed if that saves enough bytes. Return the form and the payload.

    The weights are sent as floating-point numbers. So the
    wire dtype ``grid`` (multiples of a power of two) needs no further data.

    Args:
        flat: The weights, float32 ``[n]``. Its values are already rounded to the wire dtype.
        dtype: Number format in which the elements are sent.
        compress: False if the weights are sent as they are, even if compression would save bytes.
    """
    every = 1 + flat.size // SNAPSHOT_SAMPLE
    sample = flat[::every]
    if compress and len(_planes_of(sample, dtype)) <= SNAPSHOT_GAIN * dtype.itemsize * sample.size:
        packed = _planes_of(flat, dtype)
        if len(packed) <= SNAPSHOT_GAIN * dtype.itemsize * flat.size:
            return PayloadEncoding.SNAPSHOT_PLANES, packed
    if dtype is WireDtype.BF16:
        return PayloadEncoding.SNAPSHOT, (flat.view(np.uint32) >> np.uint32(16)).astype("<u2").view(np.uint8).data
    return PayloadEncoding.SNAPSHOT, flat.astype("<f4", copy=False).view(np.uint8).data


def _planes_of(flat: FlatWeights, dtype: WireDtype) -> bytes:
    form = _snapshot_form(dtype)
    words: Iterator[planes.Words] = (
        form.integers(flat[piece]).astype(form.word, copy=False) for piece in planes.pieces(flat.size)
    )
    return b"".join(planes.pack(words, flat.size, form.word))


def decode_snapshot(codec: PayloadEncoding, payload: Payload, size: int, dtype: WireDtype) -> FlatWeights:
    """Return all weights of a policy version that `encode_snapshot` encoded, float32 ``[size]``.

    The array is in a new buffer or in the buffer of the payload.

    Raises:
        WeightsError: If the payload does not have `size` weights (``reason="payload"``).
    """
    if codec == PayloadEncoding.SNAPSHOT_PLANES:
        form, reader = _snapshot_form(dtype), BitReader(payload)
        parts = planes.unpack(reader, size, form.word)
        reader.end()
        flat = np.empty(size, dtype=np.float32)
        for piece, words in parts:
            flat[piece] = form.flat(words)
        return flat
    if len(payload) != dtype.itemsize * size:
        raise bad(f"a snapshot has {len(payload)} bytes for {size} elements")
    if dtype is WireDtype.BF16:
        return (np.frombuffer(payload, dtype="<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.require(np.frombuffer(payload, dtype="<f4"), np.float32, "A")
