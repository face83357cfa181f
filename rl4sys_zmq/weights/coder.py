"""Whole states, and exact diffs between two states, encoded in few bytes at high speed.

Each weight is mapped to an integer (`forms`). A diff consists of the differences of these integers. Blocks of elements that do
not change are left out. If few elements change, the diff has positions and small numbers (`integers`). If more than 60 % change,
it has byte planes of the differences, or of the differences minus those of the last version, if these are shorter. In
between it has the shorter of both. If the result is longer than the plain differences, the plain differences are sent.

A whole state is sent as its plain elements, or as byte planes if these are much shorter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq import native
from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.values import FlatWeights
from rl4sys_zmq.weights.bits import BitReader, Buffer, Integers, bad
from rl4sys_zmq.weights.forms import FP32, IntegerMapping, WireDtype, form_of
from rl4sys_zmq.weights.integers import (
    SPARSE_SHARE_OF_UNITS,
    Words,
    active_blocks,
    is_sparse,
    pack_integers,
    pack_planes,
    pieces,
    read_blocks,
    symbols_of,
    unpack_integers,
    unpack_planes,
)

Payload = bytes | memoryview

SURELY_SPARSE = 0.2
"""The share of changed elements up to which positions are written without a comparison with byte planes."""
_LEAST = 64
"""The smallest number of elements for which the state before the base is used as a prediction."""
PREDICTION_GAIN = 0.98
"""The largest ratio of the sizes of a diff with prediction and without, for which prediction is used.

Prediction must save some bytes, because a new actor then needs one more version before it can apply the diff.
"""
SAMPLE, QUICK_SAMPLE = 1 << 12, 1 << 10
"""The approximate size of the sample in `_estimated_bits` and in `_prediction_helps`, in elements."""
_CELL_BITS = 4.0
"""The approximate size, in bits, of the table entry for one symbol."""


class PayloadEncoding(IntEnum):
    """The form in which the payload of a weight update is encoded: one of several kinds of diff, or a whole state.

    A diff is applied to the state that the receiver has. A *block* is 1024 consecutive elements. The planes of integers are
    their lowest bytes, then their second bytes, and so on.

    =================  ==========================================================================================
    `UNCHANGED`        a diff of zeros: no payload
    `SPARSE`           a diff: the list of changed blocks, then integers
    `PLANES`           a diff: the list of changed blocks, then the planes of the differences, lowest byte first
    `RAW`              a diff: the plain differences, with bf16 in 2 bytes each, else in 4 bytes
    `SNAPSHOT`         a whole state: its elements
    `SNAPSHOT_PLANES`  a whole state: the planes of its diff from a state of zeros
    =================  ==========================================================================================
    """

    UNCHANGED = 0
    SPARSE = 1
    PLANES = 2
    RAW = 4
    SNAPSHOT = 5
    SNAPSHOT_PLANES = 6

    @property
    def is_diff(self) -> bool:
        """True if the payload is a diff, which the receiver can only decode with the state to which the diff applies."""
        return self < PayloadEncoding.SNAPSHOT


CODECS = frozenset(int(codec) for codec in PayloadEncoding)
"""The numbers of all forms. Before Python 3.12, `in` raises an error for a plain number and an enumeration."""


@immutable
class Diff:
    """An encoded diff. If `predicted`, the receiver needs two states: the one to which the diff applies, and the one before."""

    codec: PayloadEncoding
    parts: Sequence[Buffer] = ()
    predicted: bool = False

    @property
    def size(self) -> int:
        """The number of bytes of the payload."""
        return sum(map(len, self.parts))

    @property
    def payload(self) -> bytes:
        """The payload: all parts joined to new bytes."""
        return b"".join(self.parts)


@immutable
class DecodedState:
    """A decoded state, ``[n]`` in a new buffer, and the values of the elements that can differ from the state before."""

    flat: FlatWeights
    written: FlatWeights


def encode_diff(
    base: FlatWeights,
    new: FlatWeights,
    *,
    form: IntegerMapping = FP32,
    before: FlatWeights | None = None,
    prefix: bytes = b"",
) -> Diff:
    """Return the diff that leads from the state `base` to `new`. It is never longer than `new`.

    `form` maps the weights to integers, and represents each value of `new` exactly. `before` is the state before `base`, if the
    receiver holds it too. The payload begins with `prefix`, unless the encoding is `RAW` or `UNCHANGED`.
    """
    if base.shape != new.shape or (before is not None and before.shape != base.shape):
        raise WeightsError(f"no diff between {base.size} and {new.size} elements", reason="size")
    if (compiled := native.load()) is not None:
        number, payload, predicted = compiled.encode_diff(base, new, before, form.dtype, form.exponents, prefix)
        return Diff(PayloadEncoding(number), (payload,), predicted)
    canonical_base = form.canonical(base)
    different = canonical_base.view(np.int32) != new.view(np.int32)
    count = int(np.count_nonzero(different))
    if not count and (canonical_base is base or np.array_equal(base.view(np.int32), new.view(np.int32))):
        return Diff(PayloadEncoding.UNCHANGED)
    where, head = active_blocks(different, count)
    inner = before[where] if before is not None else None
    coded = _encode(canonical_base[where], new[where], form.select(where), inner, different[where], count)
    raw = _raw_form(form)
    if len(prefix) + len(head) + coded.size >= base.size * np.dtype(raw.word).itemsize:
        return Diff(PayloadEncoding.RAW, [_wrapped(raw.integers(new) - raw.integers(base), raw).tobytes()])
    return Diff(coded.codec, [prefix, head, *coded.parts], coded.predicted)


def decode_diff(
    codec: PayloadEncoding,
    payload: Payload,
    base: FlatWeights,
    *,
    form: IntegerMapping = FP32,
    before: FlatWeights | None = None,
) -> DecodedState:
    """Return the state to which a diff leads from the state `base`. It has the same bits as the sender's state.

    The payload can come from an untrusted peer. Memory use is limited to a few times the size of the state. `before` is given
    if, and only if, the diff is `predicted`.
    """
    if not PayloadEncoding(codec).is_diff:
        raise bad(f"codec {codec} is not a diff")
    if (compiled := native.load()) is not None:
        return _fresh(np.frombuffer(compiled.decode_diff(codec, payload, base, before, form.dtype, form.exponents), np.float32))
    reader = BitReader(payload)
    if codec == PayloadEncoding.UNCHANGED:
        reader.end()
        return DecodedState(base.copy(), base[:0])
    if codec == PayloadEncoding.RAW:
        raw = _raw_form(form)
        word = np.dtype(raw.word).newbyteorder("<")
        difference = np.frombuffer(reader.take(base.size * word.itemsize), dtype=word)
        reader.end()
        return _fresh(raw.flat(_wrapped(raw.integers(base) + difference, raw)))
    canonical_base = form.canonical(base)
    where = read_blocks(reader, base.size)
    inner = None if before is None else before[where]
    decoded = _decode(reader, codec, canonical_base[where], form.select(where), inner)
    if isinstance(where, slice):
        return decoded if canonical_base is base else _fresh(decoded.flat)
    out = canonical_base.copy()
    out[where] = decoded.flat
    return DecodedState(out, decoded.written if canonical_base is base else out)


def _encode(
    base: FlatWeights,
    new: FlatWeights,
    form: IntegerMapping,
    before: FlatWeights | None,
    different: NDArray[np.bool_],
    count: int,
) -> Diff:
    size = base.size
    if count > SPARSE_SHARE_OF_UNITS * size:
        return _encode_planes(base, new, form, before)
    positions = np.flatnonzero(different)
    there = form.select(positions)
    values = _wrapped(there.integers(new[positions]) - there.integers(base[positions]), form).astype(np.int64)
    if not is_sparse(np.abs(values), size):
        return _encode_planes(base, new, form, before)
    dense = None
    if count > SURELY_SPARSE * size:
        dense = _encode_planes(base, new, form, before)
        integers = np.zeros(size, dtype=np.int64)
        integers[positions] = values
        if dense.size < _estimated_bits(integers) / 8:
            return dense
    sparse = Diff(PayloadEncoding.SPARSE, [pack_integers(positions, values, size)])
    return sparse if dense is None or sparse.size <= dense.size else dense


def _encode_planes(base: FlatWeights, new: FlatWeights, form: IntegerMapping, before: FlatWeights | None) -> Diff:
    if before is not None and (base.size < _LEAST or not _prediction_helps(before, base, new, form)):
        before = None

    def difference(piece: slice) -> Words:
        here = form.select(piece)
        was = here.integers(base[piece])
        now = here.integers(new[piece])
        now -= was
        if before is not None:
            was -= here.integers(before[piece])
            now -= was
        return _wrapped(now, form)

    packed = pack_planes(map(difference, pieces(base.size)), base.size, form.word)
    return Diff(PayloadEncoding.PLANES, packed, predicted=before is not None)


def _prediction_helps(before: FlatWeights, base: FlatWeights, new: FlatWeights, form: IntegerMapping) -> bool:
    """Estimate from a sample if byte planes get shorter when each change is encoded as its difference from the last change."""
    step = 1 + base.size // QUICK_SAMPLE
    some = form.select(np.arange(0, base.size, step)) if step > 1 else form
    now, was, last = (some.integers(flat[::step]) for flat in (new, base, before))
    plain: Integers = (now - was).astype(form.word, copy=False)
    predicted: Integers = plain - (was - last).astype(form.word, copy=False)
    return _magnitude_bits(predicted) < PREDICTION_GAIN * _magnitude_bits(plain)


def _magnitude_bits(words: Integers) -> float:
    """Return the approximate size of integers in bits, in a code whose lengths depend on the magnitudes alone."""
    magnitudes = np.abs(words.astype(np.float32))
    magnitudes += 1
    return float(np.log2(magnitudes, out=magnitudes).sum()) + 2.0 * words.size


def _estimated_bits(differences: Integers) -> float:
    """Estimate, from a sample, how many bits `pack_integers` would need for these differences."""
    step = 1 + differences.size // SAMPLE
    classes = symbols_of(np.abs(differences[::step].astype(np.int64)), 0)
    counts = np.bincount(classes)
    some = counts[counts > 0].astype(np.float64)
    entropy = float(classes.size * np.log2(classes.size) - (some * np.log2(some)).sum())
    # The entropy of a sample is too low, by about 1 / (2 ln 2) bits for each symbol.
    return step * (entropy + float(classes.sum())) + some.size * (_CELL_BITS + 0.72 * step)


def _decode(
    reader: BitReader, codec: PayloadEncoding, base: FlatWeights, form: IntegerMapping, before: FlatWeights | None
) -> DecodedState:
    if codec == PayloadEncoding.PLANES:
        return _fresh(_decode_planes(reader, base, form, before))
    if before is not None:
        raise bad("payload and header disagree on the need for the version before the base")
    positions, values = unpack_integers(reader, base.size)
    reader.end()
    there = form.select(positions)
    written = there.flat(_wrapped(there.integers(base[positions]) + values, form))
    out = base.copy()
    out[positions] = written
    return DecodedState(out, written)


def _fresh(flat: FlatWeights) -> DecodedState:
    return DecodedState(flat, flat)


def _decode_planes(reader: BitReader, base: FlatWeights, form: IntegerMapping, before: FlatWeights | None) -> FlatWeights:
    differences = unpack_planes(reader, base.size, form.word)
    reader.end()
    out = np.empty_like(base)
    for piece, difference in differences:
        here = form.select(piece)
        now = here.integers(base[piece])
        if before is not None:
            difference = _wrapped(difference + (now - here.integers(before[piece])), form)
        now += difference
        out[piece] = here.flat(_wrapped(now, form))
    return out


def _raw_form(form: IntegerMapping) -> IntegerMapping:
    """Return the mapping of weights in whole states and in `PayloadEncoding.RAW`: `form`, but that of float32 for ``GRID``."""
    return FP32 if form.rounds else form


def _wrapped(integers: Integers, form: IntegerMapping) -> Words:
    return integers.astype(form.word, copy=False)


SNAPSHOT_GAIN = 0.6
"""A whole state is sent compressed if that reduces its size to at most this share.

Otherwise the saved bytes are not worth the time that every actor needs for decompression.
"""
SNAPSHOT_SAMPLE = 1024
"""The approximate size, in elements, of the sample that is compressed first to decide if compressing all can be worth it."""


def encode_snapshot(flat: FlatWeights, dtype: WireDtype, *, compress: bool) -> tuple[PayloadEncoding, Payload]:
    """Return the encoding and the payload of a whole state with values of `dtype`. ``GRID`` is sent as float32.

    With `compress`, the payload is compressed if that saves much.
    """
    if compress and (packed := _short_planes(flat, dtype)) is not None:
        return PayloadEncoding.SNAPSHOT_PLANES, packed
    if dtype is WireDtype.BF16:
        return PayloadEncoding.SNAPSHOT, (flat.view(np.uint32) >> np.uint32(16)).astype("<u2").view(np.uint8).data
    return PayloadEncoding.SNAPSHOT, flat.astype("<f4", copy=False).view(np.uint8).data


def decode_snapshot(codec: PayloadEncoding, payload: Payload, size: int, dtype: WireDtype) -> FlatWeights:
    """Return the state of `size` elements that `encode_snapshot` encoded, in a new buffer or in the buffer of the payload."""
    if codec == PayloadEncoding.SNAPSHOT_PLANES:
        if (compiled := native.load()) is not None:
            return np.frombuffer(compiled.decode_snapshot_planes(payload, size, dtype), np.float32)
        form, reader = _raw_form(form_of(dtype)), BitReader(payload)
        parts = unpack_planes(reader, size, form.word)
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


def _short_planes(flat: FlatWeights, dtype: WireDtype) -> bytes | None:
    """Return the planes of a state, or None if these are not much shorter than its elements."""
    if (compiled := native.load()) is not None:
        packed: bytes | None = compiled.encode_snapshot_planes(flat, dtype)
        return packed
    most = SNAPSHOT_GAIN * dtype.itemsize
    sample = flat[:: 1 + flat.size // SNAPSHOT_SAMPLE]
    if len(_planes_of(sample, dtype)) > most * sample.size or len(planes := _planes_of(flat, dtype)) > most * flat.size:
        return None
    return planes


def _planes_of(flat: FlatWeights, dtype: WireDtype) -> bytes:
    form = _raw_form(form_of(dtype))
    words: Iterator[Words] = (form.integers(flat[piece]).astype(form.word, copy=False) for piece in pieces(flat.size))
    return b"".join(pack_planes(words, flat.size, form.word))
