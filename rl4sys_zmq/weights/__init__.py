"""The encoding of policy weights for the actors, and the decoding: whole states, and exact diffs. No sockets.

A *state* is all weights of one policy version as a flat float32 array. A *snapshot* is a state with its version and digest. The
modules, from the outside to the bytes:

- `state`: converts a snapshot to header and payload, and back, with verification. Checksums without and with a key.
- `header`: the 72 bytes before every payload. `others`: the tensors that are not rounded.
- `coder`: whole states, and diffs of two. `forms`: rounding to a wire dtype, and states as integers.
- `integers`, `bits`: integers as bytes.
"""

from rl4sys_zmq.weights.coder import PayloadEncoding
from rl4sys_zmq.weights.forms import Steps, WireDtype, choose_steps, round_to
from rl4sys_zmq.weights.header import HEADER_BYTES, WeightsHeader
from rl4sys_zmq.weights.others import TRAILER_BYTES, division_of, verify_others
from rl4sys_zmq.weights.state import (
    TAG_KEY_BYTES,
    EncodingOptions,
    apply_update,
    digest,
    encode_update,
    is_tag_of,
    tag_of,
)

__all__ = [
    "HEADER_BYTES",
    "TAG_KEY_BYTES",
    "TRAILER_BYTES",
    "EncodingOptions",
    "PayloadEncoding",
    "Steps",
    "WeightsHeader",
    "WireDtype",
    "apply_update",
    "choose_steps",
    "digest",
    "division_of",
    "encode_update",
    "is_tag_of",
    "round_to",
    "tag_of",
    "verify_others",
]
