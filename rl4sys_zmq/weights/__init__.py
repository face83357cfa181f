"""The encoding of policy weights for the actors, and the decoding: whole states, and exact diffs. No sockets.

A *state* is all weights of one policy version as a flat float32 array. A *snapshot* is a state with its version and digest. The
modules, from the outside to the bytes:

- `state`: converts a snapshot to header and payload, and back, with verification.
- `header`: the 72 bytes before every payload. `digest`: checksums over a state, without and with a key.
- `others`: the tensors that are not rounded. `snapshots`: whole states.
- `coder`: diffs of two states. `forms`: rounding to a wire dtype, and states as integers. `blocks`: the part that changes.
- `integers`, `planes`, `bits`: integers as bytes.
"""

from rl4sys_zmq.weights.coder import PayloadEncoding
from rl4sys_zmq.weights.digest import TAG_BYTES, TAG_KEY_BYTES, digest, is_tag_of, tag_of
from rl4sys_zmq.weights.forms import Steps, WireDtype, choose_steps, round_to
from rl4sys_zmq.weights.header import HEADER_BYTES, WeightsHeader
from rl4sys_zmq.weights.others import TRAILER_BYTES, Division, division_of, verify_others
from rl4sys_zmq.weights.state import EncodingOptions, apply_update, encode_update

__all__ = [
    "HEADER_BYTES",
    "TAG_BYTES",
    "TAG_KEY_BYTES",
    "TRAILER_BYTES",
    "Division",
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
