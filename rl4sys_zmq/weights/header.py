"""The 72-byte header of every weights payload. docs/explanation/wire.md describes its fields and the refusals."""

from __future__ import annotations

import struct

import xxhash

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.weights.coder import CODECS, PayloadEncoding
from rl4sys_zmq.weights.forms import WireDtype

MAGIC = b"R4SW"
FORMAT = 3
HEADER_BYTES = 72
_FIELDS = struct.Struct("<4s4B8s3Q2H3I2Q")
_CHECK = struct.Struct("<I")
_CHECK_AT = 52
_PREDICTED, _OTHERS = 1, 2

_DTYPES = frozenset(int(dtype) for dtype in WireDtype)


@immutable
class WeightsHeader:
    """The header of a weight update.

    Attributes:
        policy_id: The 8 bytes that identify the policy; the learner assigns them in the handshake.
        generation: Generation of both versions.
        base_version: The version that a diff applies to; for a whole snapshot the same as the new version.
        new_version: The version that the receiver has after the update.
        codec: Form of the payload (`PayloadEncoding`).
        elements: Number of float32 elements of the complete state, not only of the changed ones.
        payload_bytes: Size of the payload.
        payload_hash: xxh3-64 of the payload.
        state_hash: The `digest` of the new state.
        wire_dtype: Number format of the elements.
        chunk: Index of this chunk, from 0.
        chunks: Number of chunks of this update.
        predicted: True if decoding also needs the version before the base version.
        others: True if the payload ends with the tensors that are not rounded.
    """

    policy_id: bytes
    generation: int
    base_version: int
    new_version: int
    codec: PayloadEncoding
    elements: int
    payload_bytes: int
    payload_hash: int
    state_hash: int
    wire_dtype: WireDtype = WireDtype.FP32
    chunk: int = 0
    chunks: int = 1
    predicted: bool = False
    others: bool = False

    def pack(self) -> bytes:
        """Return the header as 72 bytes.

        Raises:
            ProtocolError: If a field is out of range (``range``), or the payload is too large (``too_large``).
        """
        self._check()
        flags = self.predicted * _PREDICTED | self.others * _OTHERS
        try:
            bare = _FIELDS.pack(MAGIC, FORMAT, flags, self.codec, self.wire_dtype, self.policy_id, self.generation,
                                self.base_version, self.new_version, self.chunk, self.chunks, self.elements,
                                self.payload_bytes, 0, self.payload_hash, self.state_hash)  # fmt: skip
        except struct.error as exc:
            raise ProtocolError(RefusalReason.RANGE, f"a field of {self} is out of range: {exc}") from exc
        packed = bytearray(bare)
        _CHECK.pack_into(packed, _CHECK_AT, _check_of(packed))
        return bytes(packed)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> WeightsHeader:
        """Return the header that 72 bytes contain. The bytes can come from an untrusted peer.

        Raises:
            ProtocolError: With the code for the first invalid field. The check comes right after the format.
        """
        if len(data) != HEADER_BYTES:
            raise ProtocolError(RefusalReason.MALFORMED, f"a weights header has {len(data)} bytes; expected {HEADER_BYTES}")
        (magic, form, flags, codec, dtype, policy_id, generation, base, new, chunk, chunks, elements, payload_bytes, check,
         payload_hash, state_hash) = _FIELDS.unpack(data)  # fmt: skip
        if magic != MAGIC:
            raise ProtocolError(RefusalReason.MAGIC, f"a weights header cannot start with {magic!r}")
        if form != FORMAT:
            raise ProtocolError(RefusalReason.VERSION, f"weights format {form}; this side reads {FORMAT}")
        bare = bytearray(data)
        _CHECK.pack_into(bare, _CHECK_AT, 0)
        if check != _check_of(bare):
            raise ProtocolError(RefusalReason.CHECKSUM, "the checksum does not match the received weights header")
        if flags & ~(_PREDICTED | _OTHERS):
            raise ProtocolError(RefusalReason.FEATURE, f"unknown weights flags {flags:#04x}")
        if codec not in CODECS:
            raise ProtocolError(RefusalReason.KIND, f"unknown weights codec {codec}")
        if dtype not in _DTYPES:
            raise ProtocolError(RefusalReason.DTYPE, f"unknown weights dtype {dtype}")
        header = cls(policy_id, generation, base, new, PayloadEncoding(codec), elements, payload_bytes, payload_hash, state_hash,
                     WireDtype(dtype), chunk, chunks, bool(flags & _PREDICTED), bool(flags & _OTHERS))  # fmt: skip
        header._check()
        return header

    def _check(self) -> None:
        if len(self.policy_id) != 8:
            raise ProtocolError(RefusalReason.RANGE, f"a policy id has {len(self.policy_id)} bytes; expected 8")
        if self.base_version >= self.new_version if self.codec.is_diff else self.base_version != self.new_version:
            raise ProtocolError(
                RefusalReason.RANGE, f"{self.codec.name} cannot go from {self.base_version} to {self.new_version}"
            )
        if not self.chunk < self.chunks:
            raise ProtocolError(RefusalReason.RANGE, f"chunk {self.chunk} of {self.chunks} is out of range")
        if self.predicted and not self.codec.is_diff:
            raise ProtocolError(RefusalReason.RANGE, f"{self.codec.name} cannot need another version")
        if not self.others and self.payload_bytes > self.wire_dtype.itemsize * self.elements:
            raise ProtocolError(RefusalReason.TOO_LARGE, f"{self.payload_bytes} bytes for {self.elements} elements")


def _check_of(bare: bytearray) -> int:
    """Return the checksum of a header in which the field ``check`` is 0."""
    return xxhash.xxh3_64_intdigest(bytes(bare)) & 0xFFFFFFFF
