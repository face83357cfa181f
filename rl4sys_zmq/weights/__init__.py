"""The encoding of policy weights for the actors, and the decoding: whole states, and exact diffs. No sockets.

A *state* is all weights of one policy version as a flat float32 array. A *snapshot* is a state with its version and digest.

- `round_to`, `choose_steps`: round the learner's weights to a `WireDtype`, the number format in which they are sent.
- `encode_update`, `apply_update`: convert a snapshot to header and payload, and back, with verification. `EncodingOptions` has
  the options.
- `WeightsHeader`: the 72 bytes before every payload.
- `encode_diff`, `decode_diff`: convert a diff (the difference of two states) to bytes and back. `digest`: the checksum over a
  state. `tag_of`, `is_tag_of`: a checksum with a secret key.

The modules: `coder` chooses the form of a diff, with the help of `forms` (states as integers), `blocks` and `choice`.
`integers`, `planes`, `symbols` and `bits` write the bytes. `snapshots` encodes whole states, and `others` the tensors that are
not rounded. `division` separates these from the weights.
"""

from rl4sys_zmq.weights.coder import DecodedState, Diff, PayloadEncoding, decode_diff, encode_diff
from rl4sys_zmq.weights.digest import digest
from rl4sys_zmq.weights.division import Division, division_of
from rl4sys_zmq.weights.forms import BF16, FP32, FixedPointMapping, IntegerMapping, WireDtype, form_of
from rl4sys_zmq.weights.header import HEADER_BYTES, WeightsHeader
from rl4sys_zmq.weights.others import TRAILER_BYTES, verify_others
from rl4sys_zmq.weights.rounding import Steps, choose_steps, round_to
from rl4sys_zmq.weights.state import EncodingOptions, apply_update, encode_update
from rl4sys_zmq.weights.tag import TAG_BYTES, TAG_KEY_BYTES, is_tag_of, tag_of

__all__ = [
    "BF16",
    "FP32",
    "HEADER_BYTES",
    "TAG_BYTES",
    "TAG_KEY_BYTES",
    "TRAILER_BYTES",
    "PayloadEncoding",
    "DecodedState",
    "Diff",
    "Division",
    "IntegerMapping",
    "FixedPointMapping",
    "Steps",
    "WeightsHeader",
    "WireDtype",
    "EncodingOptions",
    "apply_update",
    "choose_steps",
    "decode_diff",
    "digest",
    "division_of",
    "encode_diff",
    "encode_update",
    "form_of",
    "is_tag_of",
    "round_to",
    "tag_of",
    "verify_others",
]
