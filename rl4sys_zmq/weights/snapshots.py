"""The encoding of whole states: the plain elements, or byte planes if these are much shorter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl4sys_zmq.values import FlatWeights
from rl4sys_zmq.weights import planes
from rl4sys_zmq.weights.bits import BitReader, bad
from rl4sys_zmq.weights.coder import Payload, PayloadEncoding
from rl4sys_zmq.weights.forms import BF16, FP32, IntegerMapping, WireDtype

SNAPSHOT_GAIN = 0.6
"""A whole state is sent compressed if that reduces its size to at most this share.

Otherwise the saved bytes are not worth the time that every actor needs for decompression.
"""
SNAPSHOT_SAMPLE = 1024
"""The approximate size, in elements, of the sample that is compressed first to decide if compressing all can be worth it."""


def encode_snapshot(flat: FlatWeights, dtype: WireDtype, *, compress: bool) -> tuple[PayloadEncoding, Payload]:
    """Return the form and the payload of a state whose values are values of `dtype`. One of ``GRID`` is sent as float32."""
    every = 1 + flat.size // SNAPSHOT_SAMPLE
    sample = flat[::every]
    if compress and len(_planes_of(sample, dtype)) <= SNAPSHOT_GAIN * dtype.itemsize * sample.size:
        packed = _planes_of(flat, dtype)
        if len(packed) <= SNAPSHOT_GAIN * dtype.itemsize * flat.size:
            return PayloadEncoding.SNAPSHOT_PLANES, packed
    if dtype is WireDtype.BF16:
        return PayloadEncoding.SNAPSHOT, (flat.view(np.uint32) >> np.uint32(16)).astype("<u2").view(np.uint8).data
    return PayloadEncoding.SNAPSHOT, flat.astype("<f4", copy=False).view(np.uint8).data


def decode_snapshot(codec: PayloadEncoding, payload: Payload, size: int, dtype: WireDtype) -> FlatWeights:
    """Return the state of `size` elements that `encode_snapshot` encoded, in a new buffer or in the buffer of the payload."""
    if codec == PayloadEncoding.SNAPSHOT_PLANES:
        form, reader = _form(dtype), BitReader(payload)
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


def _form(dtype: WireDtype) -> IntegerMapping:
    return BF16 if dtype is WireDtype.BF16 else FP32


def _planes_of(flat: FlatWeights, dtype: WireDtype) -> bytes:
    form = _form(dtype)
    words: Iterator[planes.Words] = (
        form.integers(flat[piece]).astype(form.word, copy=False) for piece in planes.pieces(flat.size)
    )
    return b"".join(planes.pack(words, flat.size, form.word))
